#!/usr/bin/env python3
"""Checks vocabularies that exist only as tokenizer.json: makes GGUF files of them in a temporary folder, laid out as
PACELINE_TEST_DATA is, and runs the text suite on that folder.

usage: PACELINE_TEST_DATA=FOLDER tokenizer_json.py BUILD/tests/unit/text/test-text
Needs the Python package gguf (made with 0.19.0) and xz.
"""
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile

import gguf

# tokenizer.json, the name of its pre-tokenizer, the expected ids
CASES = [
    ("restricted-licence/llama3", "llama-bpe", "ggml-vocab/ggml-vocab-llama-bpe.gguf.out"),
    ("qwen3", "qwen2", "tokenizers/qwen3/expected-ids.txt"),
    ("gptoss", "gpt-4o", "tokenizers/gptoss/expected-ids.txt"),
]
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def convert(source, target, pre):
    with lzma.open(source, "rt", encoding="utf-8") as f:
        whole = json.load(f)
    model, added = whole["model"], whole["added_tokens"]
    n = max(list(model["vocab"].values()) + [a["id"] for a in added]) + 1
    tokens, types = [f"[PAD{i}]" for i in range(n)], [UNUSED] * n
    for text, i in model["vocab"].items():
        tokens[i], types[i] = text, NORMAL
    for a in added:
        tokens[a["id"]], types[a["id"]] = a["content"], CONTROL if a["special"] else USER_DEFINED
    w = gguf.GGUFWriter(target, "llama")
    w.add_string("tokenizer.ggml.model", "gpt2")
    w.add_string("tokenizer.ggml.pre", pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def main():
    models = os.path.join(os.environ["PACELINE_TEST_DATA"], "models")
    with tempfile.TemporaryDirectory() as tmp:
        folder = os.path.join(tmp, "models", "ggml-vocab")
        os.makedirs(folder)
        for source, pre, expected in CASES:
            gguf_path = os.path.join(folder, f"ggml-vocab-{pre}.gguf")
            convert(os.path.join(models, "tokenizers", source, "tokenizer.json.xz"), gguf_path, pre)
            shutil.copy(os.path.join(models, "ggml-vocab", "ggml-vocab-gpt-2.gguf.inp"), gguf_path + ".inp")
            shutil.copy(os.path.join(models, expected), gguf_path + ".out")
        env = dict(os.environ, PACELINE_TEST_DATA=tmp, CK_RUN_CASE="real")
        return subprocess.run([sys.argv[1]], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
