#!/usr/bin/env python3
"""Checks vocabularies that exist only as tokenizer.json: makes GGUF files of them in a temporary folder and has the text
suite compare their tokens with the expected ones.

usage: PACELINE_TEST_DATA=FOLDER tokenizer_json.py BUILD/tests/unit/text/test-text
       PACELINE_TEST_DATA=FOLDER tokenizer_json.py --keep FOLDER     (only makes the files)
"""
import json
import lzma
import os
import shutil
import struct
import subprocess
import sys
import tempfile

# tokenizer.json, the name of its pre-tokenizer, the expected ids
CASES = [
    ("restricted-licence/llama3", "llama-bpe", "ggml-vocab/ggml-vocab-llama-bpe.gguf.out"),
    ("qwen3", "qwen2", "tokenizers/qwen3/expected-ids.txt"),
    ("qwen3", "deepseek-r1-qwen", "ggml-vocab/ggml-vocab-deepseek-r1-qwen.gguf.out"),
    ("gptoss", "gpt-4o", "tokenizers/gptoss/expected-ids.txt"),
    ("restricted-licence/gemma3", "gemma4", "tokenizers/restricted-licence/gemma3/expected-ids.txt"),
]
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
I32, STRING, ARRAY = 5, 8, 9


def text(s):
    data = s.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def write_gguf(path, entries):
    """entries: (key, kind, value); lists become arrays."""
    out = [b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))]
    for key, kind, value in entries:
        out.append(text(key))
        if isinstance(value, list):
            out.append(struct.pack("<IIQ", ARRAY, kind, len(value)))
            out.append(b"".join(map(text, value)) if kind == STRING else struct.pack(f"<{len(value)}i", *value))
        else:
            out.append(struct.pack("<I", kind) + text(value))
    with open(path, "wb") as f:
        f.write(b"".join(out))


def convert(source, target, pre):
    with lzma.open(source, "rt", encoding="utf-8") as f:
        whole = json.load(f)
    model, added = whole["model"], whole["added_tokens"]
    n = max(list(model["vocab"].values()) + [a["id"] for a in added]) + 1
    tokens, types = [f"[PAD{i}]" for i in range(n)], [UNUSED] * n
    for word, i in model["vocab"].items():
        byte = model.get("byte_fallback") and len(word) == 6 and word.startswith("<0x")
        tokens[i], types[i] = word, BYTE if byte else NORMAL
    for a in added:
        tokens[a["id"]], types[a["id"]] = a["content"], CONTROL if a["special"] else USER_DEFINED
    write_gguf(target, [
        ("general.architecture", STRING, "llama"),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, pre),
        ("tokenizer.ggml.tokens", STRING, tokens),
        ("tokenizer.ggml.token_type", I32, types),
        ("tokenizer.ggml.merges", STRING, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]),
    ])


def make(models, folder):
    for source, pre, expected in CASES:
        path = os.path.join(folder, f"ggml-vocab-{pre}.gguf")
        convert(os.path.join(models, "tokenizers", source, "tokenizer.json.xz"), path, pre)
        shutil.copyfile(os.path.join(models, "ggml-vocab", "ggml-vocab-gpt-2.gguf.inp"), path + ".inp")
        shutil.copyfile(os.path.join(models, expected), path + ".out")


def main():
    data = os.environ.get("PACELINE_TEST_DATA")
    if not data:
        print("skipped: vocabularies made from tokenizer.json (PACELINE_TEST_DATA is not set)")
        return 77
    models = os.path.join(data, "models")
    if sys.argv[1] == "--keep":
        make(models, sys.argv[2])
        return 0
    with tempfile.TemporaryDirectory() as tmp:
        make(models, tmp)
        env = dict(os.environ, PACELINE_MADE_VOCABULARIES=tmp, CK_RUN_CASE="made")
        return subprocess.run([sys.argv[1]], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
