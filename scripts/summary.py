#!/usr/bin/env python3
"""Counts what scripts/test ran: single checks, not executables. Last line: N passed, N failed, N skipped."""
import json
import pathlib
import re
import sys

folder = pathlib.Path(sys.argv[1])
passed = failed = skipped = 0
bad, left_out = [], []

for log in sorted(folder.glob("*.json")):
    for line in log.read_text().splitlines():
        test = json.loads(line)
        name = "%s: %s" % (log.stem, test["name"])
        out = test.get("stdout") or ""
        checks = re.findall(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", out + "\n" + (test.get("stderr") or ""), re.M)
        units = re.findall(r"^Ran (\d+) tests? in", out + "\n" + (test.get("stderr") or ""), re.M)
        skips = re.findall(r"^skipped: (.+)$", out + "\n" + (test.get("stderr") or ""), re.M | re.I)
        result = test["result"]
        if result == "SKIP":
            skipped += 1
            left_out.append("%s: %s" % (name, "; ".join(skips) or "skipped"))
            continue
        skipped += len(skips)
        left_out += ["%s: %s" % (name, s) + (" (%d times)" % skips.count(s) if skips.count(s) > 1 else "") for s in dict.fromkeys(skips)]
        good = result in ("OK", "EXPECTEDFAIL")
        if checks:
            n = sum(int(c) for c, _, _ in checks)
            lost = sum(int(f) + int(e) for _, f, e in checks)
            passed += max(n - lost - len(skips), 0)  # Check calls what returned early a success
            failed += max(lost, 0 if good else 1)
        elif units:
            n = sum(map(int, units))
            lost = sum(map(int, re.findall(r"(?:failures|errors)=(\d+)", out + (test.get("stderr") or ""))))
            left = re.findall(r"^(test_\w+).*?skipped ['\"](.*)['\"]$", test.get("stderr") or "", re.M)
            skipped += len(left)
            left_out += ["%s: %s: %s" % (name, *s) for s in left]
            passed += max(n - lost - len(left), 0)
            failed += max(lost, 0 if good else 1)
        else:
            passed += good
            failed += not good
        if not good:
            bad.append("%s (%s)" % (name, result))

broken = folder / "broken"
if broken.exists():
    names = broken.read_text().splitlines()
    failed += len(names)
    bad += names
fuzzed = folder / "fuzzed"
if fuzzed.exists():
    passed += len(fuzzed.read_text().splitlines())

for name in left_out:
    print("skipped:", name)
for name in bad:
    print("FAILED:", name)
if passed == 0 and failed == 0:
    failed = 1
    print("FAILED: no test ran")
print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
sys.exit(1 if failed else 0)
