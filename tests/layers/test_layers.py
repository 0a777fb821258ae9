"""The shape of the tree: who includes whom, headers that stand alone, foreign libraries in their one place."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CC = os.environ.get("CC", "cc").split()

# What each module may include beside itself and engine/base.
ENGINE = ["types", "gguf", "graph", "cpu", "cuda", "text", "sample", "model", "stage"]
TABLE = {
    "engine/base": [],
    "engine/types": [],
    "engine/gguf": ["engine/types"],
    "engine/graph": ["engine/types"],
    "engine/cpu": ["engine/types", "engine/graph"],
    "engine/cuda": ["engine/types", "engine/graph"],
    "engine/text": ["engine/gguf"],
    "engine/sample": ["engine/text"],
    "engine/model": ["engine/types", "engine/gguf", "engine/graph"],
    "engine/stage": ["engine/" + m for m in ENGINE],
    "proto": [],
    "transport": ["proto"],
    "node": ["engine/stage", "transport", "proto"],
    "coordinator": ["engine/gguf", "engine/text", "engine/sample", "engine/model/profile.h", "transport", "proto"],
}
# What a module's allowed headers themselves bring in is theirs; node sees the engine through stage.h, whose parts it may name.
TABLE["node"] += ["engine/" + m for m in ("types", "gguf", "model", "sample", "cpu")]
TABLE["coordinator"] += ["engine/types"]

# A foreign header is used in one place, so that its library can be replaced there.
FOREIGN = {
    "zmq.h": ["transport/zmq.c", "transport/curve.c"],
    "uv.h": ["transport/loop_uv.c", "coordinator/http/server.c"],
    "jansson.h": ["engine/base/json.c"],
    "sodium.h": ["engine/base/hash.c", "transport/curve.c"],
    "xxhash.h": ["engine/base/hash.c"],
    "pcre2.h": ["engine/text/pretok.c"],
    "llhttp.h": ["coordinator/http/server.c"],
    "openssl/ssl.h": ["coordinator/http/server.c"],
    "curl/curl.h": ["cli/cmd_status.c"],
    "editline/readline.h": ["cli/cmd_run.c"],
}


def sources():
    for folder in ("engine", "proto", "transport", "node", "coordinator", "cli"):
        for p in sorted((ROOT / folder).rglob("*.[ch]")):
            yield str(p.relative_to(ROOT)), p.read_text()


def module(path):
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "engine" else parts[0]


class Layers(unittest.TestCase):
    def test_includes_point_down_as_the_table_says(self):
        wrong = []
        for path, text in sources():
            me = module(path)
            if me == "cli":
                continue
            for other in re.findall(r'^#include "(.+?)"', text, re.M):
                if other.endswith(".pb-c.h"):
                    other = "proto/" + os.path.basename(other)
                them = module(other)
                allowed = [me, "engine/base"] + TABLE[me]
                if them not in allowed and other not in allowed:
                    wrong.append("%s includes %s" % (path, other))
        self.assertEqual(wrong, [])

    def test_includes_are_written_from_the_root(self):
        wrong = ["%s: %s" % (path, i) for path, text in sources() for i in re.findall(r'^#include "(.+?)"', text, re.M) if "/" not in i and not i.endswith(".pb-c.h")]
        self.assertEqual(wrong, [])

    def test_foreign_libraries_are_used_in_one_place(self):
        wrong = []
        for path, text in sources():
            for header in re.findall(r"^#include <(.+?)>", text, re.M):
                for name, places in FOREIGN.items():
                    if header == name and path not in places:
                        wrong.append("%s includes <%s>" % (path, header))
        self.assertEqual(wrong, [])

    def test_every_header_compiles_alone(self):
        build = os.environ.get("PACELINE_BUILD", ".")
        wrong = []
        for path, text in sources():
            if not path.endswith(".h") or path.startswith("engine/cpu/x86") or path.startswith("engine/cpu/arm"):
                continue
            r = subprocess.run(CC + ["-std=c17", "-D_GNU_SOURCE", "-DPL_VERSION=\"\"", "-fsyntax-only", "-I", str(ROOT), "-I", build, "-I", os.path.join(build, "proto"), "-include", path, "-x", "c", "/dev/null"],
                               capture_output=True, text=True, cwd=ROOT)
            if r.returncode:
                wrong.append(path + ": " + r.stderr.splitlines()[0])
        self.assertEqual(wrong, [])

    def test_nothing_is_left_unfinished(self):
        wrong = []
        for path, text in sources():
            for n, line in enumerate(text.splitlines(), 1):
                if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line):
                    wrong.append("%s:%d" % (path, n))
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main(verbosity=1)
