#!/usr/bin/env python3
"""Checks random texts of the grammars of schema_corpus.json against jsonschema, an independent validator, and keeps some as
schema_texts.json for the suite, which needs no Python package.

    schema.py build/tests/golden/schema-samples [COUNT [SEED]] [--record]

Written with jsonschema 4 and its format checker (rfc3339-validator, fqdn and the like where they are installed).
"""
import json
import pathlib
import subprocess
import sys

import jsonschema

HERE = pathlib.Path(__file__).parent


def main():
    words = [w for w in sys.argv[1:] if w != "--record"]
    corpus = HERE / "schema_corpus.json"
    out = subprocess.run([words[0], str(corpus), *words[1:]], check=True, stdout=subprocess.PIPE).stdout
    samples = {s["name"]: s["texts"] for s in json.loads(out)}
    n = bad = 0
    for case in json.loads(corpus.read_text()):
        jsonschema.Draft202012Validator.check_schema(case["schema"])
        validator = jsonschema.Draft202012Validator(case["schema"], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        texts = samples[case["name"]]
        if not texts:
            bad += 1
            print(f"{case['name']}: no text")
        for text in texts:
            n += 1
            try:
                validator.validate(json.loads(text))
            except Exception as e:
                bad += 1
                print(f"{case['name']}: {text!r}: {str(e).splitlines()[0]}")
    print(f"{n} texts of {len(samples)} schemas, {bad} wrong")
    if "--record" in sys.argv and not bad:
        kept = [{"name": k, "texts": v[:3]} for k, v in samples.items()]
        texts = [json.loads(t) for k in kept for t in k["texts"]]
        for k, case in zip(kept, json.loads(corpus.read_text())):
            validator = jsonschema.Draft202012Validator(case["schema"], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
            # Which of all texts are valid under this schema.
            k["valid"] = "".join("01"[validator.is_valid(t)] for t in texts)
        (HERE / "schema_texts.json").write_text(json.dumps(kept, ensure_ascii=True, indent=0) + "\n")
    return 1 if bad else 0


sys.exit(main())
