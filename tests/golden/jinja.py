#!/usr/bin/env python3
"""Renders the chat templates below PACELINE_TEST_DATA, and the small ones of jinja_small.json, with jinja2 set up as the
transformers library sets it up, and writes what came out:

jinja_small.json      "expected" of each entry (null: it fails)
jinja_expected.txt    template, case of jinja_cases.json, bytes and BLAKE2b-256 of the text, or "error"

Made with Jinja2 3.1.6. usage: PACELINE_TEST_DATA=FOLDER jinja.py
"""
import datetime
import hashlib
import json
import os
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2026, 1, 1, 0, 0, 0)


class Generation(jinja2.ext.Extension):
    """The block that marks what the model wrote; here it only renders."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: NOW.strftime(f)
    return env


def render(source, variables):
    try:
        return environment().from_string(source).render(**variables)
    except Exception as e:  # pylint: disable=broad-except
        if os.environ.get("SHOW"):
            print("   ", type(e).__name__, e, file=sys.stderr)
        return None


def main():
    small_path = os.path.join(HERE, "jinja_small.json")
    with open(small_path, encoding="utf-8") as f:
        small = json.load(f)
    for entry in small:
        entry["expected"] = render(entry["template"], entry.get("vars", {}))
    with open(small_path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(" " + json.dumps(e, ensure_ascii=False) for e in small) + "\n]\n")

    with open(os.path.join(HERE, "jinja_cases.json"), encoding="utf-8") as f:
        cases = json.load(f)
    folder = os.path.join(os.environ["PACELINE_TEST_DATA"], "models", "chat-templates")
    with open(os.path.join(HERE, "jinja_expected.txt"), "w", encoding="utf-8") as out:
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8", newline="") as f:
                source = f.read()
            for case in cases:
                text = render(source, dict(case["vars"], bos_token="<s>", eos_token="</s>"))
                if text is None:
                    out.write(f"{name} {case['name']} error -\n")
                    continue
                data = text.encode()
                out.write(f"{name} {case['name']} {len(data)} {hashlib.blake2b(data, digest_size=32).hexdigest()}\n")
                if os.environ.get("DUMP"):
                    with open(os.path.join(os.environ["DUMP"], f"{name}.{case['name']}"), "wb") as dump:
                        dump.write(data)


if __name__ == "__main__":
    main()
