#!/usr/bin/env python3
"""Compares our tokens with those of the models' own libraries, `tokenizers` and `sentencepiece`, over generated texts: all scripts, emoji,
combining marks, control bytes, long spaces, digits, code, special tokens. Prints a line per vocabulary, and what differs.

usage: PACELINE_TEST_DATA=FOLDER compare_tokenizers.py BUILD/tests/golden/tokenize-many [--texts N] [--seed N] [--gemma GGUF] [NAME ...]
Needs the packages tokenizers (0.23.3), sentencepiece (0.2.3), gguf (0.19.0), numpy. The Unicode of Python 3.11 and of PCRE2 10.42 is 14.

Run with --texts 100000 --seed 5 (100000 texts each; "differ" is the number of texts whose ids are not the same):
    gpt-2 4805871 tokens, 0 differ        llama-bpe 3736142, 0        gemma-raw (Gemma 3) 4037035, 0         bert-bge 1613822, 0
    refact 4251896, 0                     qwen2 3704662, 0            llama-spm 4868996, 0                  unigram 2217040, 0
    falcon 4588657, 0                     gpt-4o 3511122, 0           phi-3 4854032, 0
    deepseek-llm 4438673, 0               deepseek-coder 5004784, 0   baichuan 4775813, 0
Bytes that are no UTF-8 cannot be given to these libraries; that they come back is checked by the text suite and by fuzz-tokenize.
"""
import argparse
import json
import lzma
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

import tokenizer_json

DATA = os.path.join(os.environ["PACELINE_TEST_DATA"], "models")
SPACE = "\u2581"

# ---- texts ----

SCRIPTS = [(0x41, 0x5a), (0x61, 0x7a), (0xc0, 0x24f), (0x370, 0x3ff), (0x400, 0x52f), (0x531, 0x58f), (0x590, 0x5ff), (0x600, 0x6ff), (0x700, 0x74f),
           (0x780, 0x7bf), (0x900, 0x97f), (0x980, 0x9ff), (0xa00, 0xa7f), (0xb80, 0xbff), (0xc00, 0xc7f), (0xd00, 0xd7f), (0xe00, 0xe7f), (0xf00, 0xfff),
           (0x1000, 0x109f), (0x10a0, 0x10ff), (0x1100, 0x11ff), (0x1200, 0x137f), (0x13a0, 0x13ff), (0x1780, 0x17ff), (0x1e00, 0x1fff), (0x2c00, 0x2dff),
           (0x3040, 0x30ff), (0x3130, 0x318f), (0x3400, 0x4db5), (0x4e00, 0x9fa5), (0xa000, 0xa48c), (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xff00, 0xffef),
           (0x10000, 0x100ff), (0x10400, 0x1044f), (0x1d400, 0x1d7ff), (0x20000, 0x2a6d0)]
MARKS = [0x300, 0x301, 0x308, 0x323, 0x327, 0x345, 0x5b0, 0x64b, 0x93c, 0x94d, 0x9cd, 0xe31, 0xe48, 0x1dc4, 0x20d0, 0x3099, 0xfe0f, 0xfe20]
EMOJI = ["\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1f3\U0001f1f4", "\u2764\ufe0f", "\u2603", "#\ufe0f\u20e3", "\U0001f9d1\u200d\U0001f4bb"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\n\n", "\r", "\u00a0", "\u2003", "\u3000", "\u2028", "\x0b", "\x0c", "\u0085", "\u200b", "\u180e", "\ufeff", "\u1680", "\u202f"]
CODE = ["def f(x):\n    return x**2\n", "for (int i = 0; i < n; i++) {\n\t\ta[i] += 1;\n}", "if(a==b&&c!=d){}", "<div class=\"x\">&nbsp;</div>", "SELECT * FROM t WHERE a>=1;",
        "https://example.com/a/b?c=d&e=%20#f", "{\"key\": [1, 2.5e-3, null]}", "#include <stdio.h>\n", "$HOME/bin:$PATH", "camelCaseWord snake_case_word CONST_NAME", "\\n\\t\\x00", "x->y::z",
        "0x1F 1_000_000 3.14159", "/* comment */ // more", "```python\nprint('hi')\n```"]
ENGLISH = ["It's", "I'll", "WE'VE", "don'T", "they're", "the", "quick", "brown", "fox", "Hello", "world", "'s", "'", "\u2019s", "can't've", "antidisestablishmentarianism", "a", "I", "NASA", "iPhone"]
PUNCTUATION = [".", ",", "!", "?", "...", "\u2026", "--", "\u2014", "(", ")", "[", "]", "\"", "'", "\u201c", "\u201d", "\u00bf", "\u3002", "\uff0c", "\u0964", "@", "#", "$", "%", "^", "&", "*", "~", "`", "|", "=", "+", "\u20ac", "\u00a3", "\u2192", "\u2211"]


def assigned(c):
    """The libraries' tables are of several old versions of Unicode, so what became a mark or punctuation lately, or ceased to be, is left out."""
    kind, old = unicodedata.category(chr(c)), unicodedata.ucd_3_2_0.category(chr(c))
    return kind not in ("Cn", "Cs", "Co") and (kind == old or old == "Cn" and kind[0] not in "MPC")


class Texts:
    def __init__(self, seed, specials):
        self.r = random.Random(seed)
        self.specials = specials
        self.letters = [[chr(c) for c in range(a, b + 1) if assigned(c)] for a, b in SCRIPTS]
        self.any = [chr(c) for c in range(0x20, 0x30000) if assigned(c)]

    def part(self):
        r, kind = self.r, self.r.randrange(14)
        if kind == 0:
            return r.choice(ENGLISH)
        if kind == 1:
            script = r.choice(self.letters)
            return "".join(r.choice(script) for _ in range(r.randrange(1, 9)))
        if kind == 2:
            return "".join(r.choice("0123456789") for _ in range(r.choice([1, 1, 2, 3, 4, 5, 7, 12, 30])))
        if kind == 3:
            return r.choice(SPACES) * r.choice([1, 1, 1, 2, 3, 4, 8, 17, 40])
        if kind == 4:
            return r.choice(EMOJI)
        if kind == 5:
            script = r.choice(self.letters)
            return "".join(r.choice(script) + "".join(chr(r.choice(MARKS)) for _ in range(r.randrange(3))) for _ in range(r.randrange(1, 5)))
        if kind == 6:
            return chr(r.choice([*range(0x20), 0x7f, *range(0x80, 0xa0)]))
        if kind == 7:
            return r.choice(CODE)
        if kind == 8:
            return "".join(r.choice(PUNCTUATION) for _ in range(r.randrange(1, 4)))
        if kind == 9:
            return "".join(r.choice(self.any) for _ in range(r.randrange(1, 4)))
        if kind == 10 and self.specials:
            s = r.choice(self.specials)
            return s if r.random() < 0.7 else s[:r.randrange(1, len(s) + 1)]
        if kind == 11:
            return r.choice("abcxyzABC\u00e9\u0416") * r.choice([1, 2, 5, 20, 120])
        return " " + r.choice(ENGLISH)

    def text(self):
        return "".join(self.part() for _ in range(self.r.choice([1, 1, 2, 3, 5, 8, 13, 25])))


# ---- the models' own tokenizers ----

def contents(reader, key, default=None):
    field = reader.fields.get("tokenizer.ggml." + key)
    return default if field is None else field.contents()


class Vocab:
    def __init__(self, path):
        r = gguf.GGUFReader(path)
        self.path = path
        self.tokens, self.types = contents(r, "tokens"), contents(r, "token_type")
        self.merges, self.scores = contents(r, "merges"), contents(r, "scores")
        self.unk = contents(r, "unknown_token_id")
        self.space_prefix = contents(r, "add_space_prefix", True)
        self.controls = [t for t, k in zip(self.tokens, self.types) if k in (2, 3)]
        self.users = [t for t, k in zip(self.tokens, self.types) if k == 4]


def add_tokens(t, v, rstrip=()):
    t.add_special_tokens([AddedToken(s, normalized=False, rstrip=s in rstrip) for s in v.controls])
    t.add_tokens([AddedToken(s, normalized=False, rstrip=s in rstrip) for s in v.users])
    return t


def byte_bpe(v, pre, normalizer=None):
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(v.tokens)}, merges=[tuple(m.split(" ")) for m in v.merges]))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence(pre)
    return add_tokens(t, v)


def split(regex):
    return pre_tokenizers.Split(Regex(regex), "isolated")


def byte_level(regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


def spm_bpe(v, rstrip=()):
    """As the converter of the transformers library makes BPE of a SentencePiece model: every way to join two tokens to a third, best score first."""
    ids = {s: i for i, (s, k) in enumerate(zip(v.tokens, v.types)) if k in (1, 4)}
    merges = []
    for piece, i in ids.items():
        if v.types[i] != 1:
            continue
        for cut in range(1, len(piece)):
            if piece[:cut] in ids and piece[cut:] in ids:
                merges.append((-v.scores[i], ids[piece[:cut]], ids[piece[cut:]]))
    merges.sort()
    vocab = {s: i for i, s in enumerate(v.tokens)}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[(v.tokens[a], v.tokens[b]) for _, a, b in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend(SPACE)] if v.space_prefix else []
    t.normalizer = normalizers.Sequence(steps + [normalizers.Replace(" ", SPACE)])
    return add_tokens(t, v, rstrip)


def word_piece(v):
    vocab = {}
    for i, s in enumerate(v.tokens):
        vocab[s if v.types[i] != 1 or (s[0] == "[" and s[-1] == "]" and len(s) > 1) else s[1:] if s.startswith(SPACE) else "##" + s] = i
    t = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return add_tokens(t, v)


def from_json(name):
    with lzma.open(os.path.join(DATA, "tokenizers", name, "tokenizer.json.xz"), "rt", encoding="utf-8") as f:
        return Tokenizer.from_str(f.read())




def deepseek():
    """The class of letters is long and full of characters that look alike, so it is read from where it stands."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "engine", "text", "pretok.c")
    with open(source, encoding="utf-8") as f:
        block = re.search(r"#define CASED\s(.*?)#define", f.read(), re.S).group(1)
    cased = "".join(re.findall(r'"([^"]*)"', block)).replace("\\\\", "\\")
    return [split("[\r\n]"), split("\\s?[" + cased + "]+"), split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"), split("\\s+$"), split("[一-龥ࠀ-一가-퟿]+"),
            pre_tokenizers.Digits(individual_digits=True), byte_level(False)]


def unigram(tmp):
    """A small model trained on the spot, with the normalization rules that T5's has; both as a GGUF file and as its library."""
    import sentencepiece
    corpus = os.path.join(tmp, "corpus")
    r = Texts(77, [])
    with open(corpus, "w", encoding="utf-8") as f:
        for _ in range(6000):
            f.write(" ".join(r.text().split()) + "\n")
    sentencepiece.SentencePieceTrainer.train(input=corpus, model_prefix=os.path.join(tmp, "u"), vocab_size=14000, model_type="unigram", normalization_rule_name="nmt_nfkc",
                                             character_coverage=0.995, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, num_threads=2, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(tmp, "u.model"))
    from sentencepiece import sentencepiece_model_pb2 as pb
    m = pb.ModelProto()
    with open(os.path.join(tmp, "u.model"), "rb") as f:
        m.ParseFromString(f.read())
    path = os.path.join(tmp, "unigram.gguf")
    w = gguf.GGUFWriter(path, "t5")
    w.add_tokenizer_model("t5")
    w.add_token_list([p.piece for p in m.pieces])
    w.add_token_scores([p.score for p in m.pieces])
    w.add_token_types([p.type for p in m.pieces])
    w.add_add_space_prefix(m.normalizer_spec.add_dummy_prefix)
    w.add_remove_extra_whitespaces(m.normalizer_spec.remove_extra_whitespaces)
    w.add_precompiled_charsmap(m.normalizer_spec.precompiled_charsmap)
    w.add_unk_token_id(2)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    # The cut is that of `tokenizers`, which adds scores in doubles as we do; SentencePiece adds floats, and so breaks ties otherwise.
    t = Tokenizer(models.Unigram([(p.piece, p.score) for p in m.pieces], 2, False))
    return path, lambda texts: [e.ids for e in t.encode_batch([sp.normalize(x) for x in texts], add_special_tokens=False)]


def library(t):
    return lambda texts: [e.ids for e in t.encode_batch(texts, add_special_tokens=False)]


def cases(tmp, gemma):
    def vocab(name):
        return Vocab(os.path.join(DATA, "ggml-vocab", f"ggml-vocab-{name}.gguf"))

    def of(name, make):
        v = vocab(name)
        return v.path, library(make(v)), v.controls + v.users

    def made(source, pre):
        path = os.path.join(tmp, pre + ".gguf")
        tokenizer_json.convert(os.path.join(DATA, "tokenizers", source, "tokenizer.json.xz"), path, pre)
        t = from_json(source)
        return path, library(t), [a.content for a in t.get_added_tokens_decoder().values()][:300]

    digits = pre_tokenizers.Digits(individual_digits=True)
    yield "gpt-2", lambda: of("gpt-2", lambda v: byte_bpe(v, [byte_level(True)]))
    yield "refact", lambda: of("refact", lambda v: byte_bpe(v, [digits, byte_level(True)]))
    yield "falcon", lambda: of("falcon", lambda v: byte_bpe(v, [pre_tokenizers.Punctuation("contiguous"), byte_level(True), pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")]))
    yield "deepseek-llm", lambda: of("deepseek-llm", lambda v: byte_bpe(v, deepseek()))
    yield "deepseek-coder", lambda: of("deepseek-coder", lambda v: byte_bpe(v, [split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), digits, byte_level(False)]))
    yield "llama-bpe", lambda: made("restricted-licence/llama3", "llama-bpe")
    yield "qwen2", lambda: made("qwen3", "qwen2")
    yield "gpt-4o", lambda: made("gptoss", "gpt-4o")
    yield "gemma-raw", lambda: made("restricted-licence/gemma3", "gemma4")
    if gemma:
        def spm():
            t = from_json("restricted-licence/gemma3")
            return gemma, library(t), [a.content for a in t.get_added_tokens_decoder().values()][:300]
        yield "gemma-spm", spm
    yield "llama-spm", lambda: of("llama-spm", spm_bpe)
    yield "phi-3", lambda: of("phi-3", lambda v: spm_bpe(v, set(v.controls + v.users) - {"<unk>", "<s>", "<|endoftext|>"}))
    yield "baichuan", lambda: of("baichuan", spm_bpe)
    yield "bert-bge", lambda: of("bert-bge", word_piece)
    yield "unigram", lambda: unigram(tmp) + ([],)


def ours(program, path, texts):
    data = b"".join(struct.pack("<I", len(b)) + b for b in (t.encode("utf-8", "surrogatepass") for t in texts))
    out = subprocess.run([program, path], input=data, stdout=subprocess.PIPE, check=True).stdout
    at, all_ids = 0, []
    for _ in texts:
        n = struct.unpack_from("<I", out, at)[0]
        all_ids.append(list(struct.unpack_from(f"<{n}i", out, at + 4)))
        at += 4 + 4 * n
    return all_ids


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("names", nargs="*")
    p.add_argument("--texts", type=int, default=100000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--gemma", help="a GGUF file of Gemma 3, compared with its tokenizer.json")
    p.add_argument("--show", type=int, default=3)
    o = p.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as tmp:
        for name, make in cases(tmp, o.gemma):
            if o.names and name not in o.names:
                continue
            path, theirs, specials = make()
            source = Texts(o.seed, specials)
            differ = n_tokens = done = shown = 0
            began = time.time()
            while done < o.texts:
                texts = [source.text() for _ in range(min(10000, o.texts - done))]
                done += len(texts)
                for text, a, b in zip(texts, ours(o.program, path, texts), theirs(texts)):
                    n_tokens += len(b)
                    if a == b:
                        continue
                    differ += 1
                    if shown < o.show:
                        shown += 1
                        k = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                        print(f"  {name}: {text!r}\n    at {k}: ours {a[max(0, k - 2):k + 6]}, theirs {b[max(0, k - 2):k + 6]}")
            bad += differ
            print(f"{name}: {done} texts, {n_tokens} tokens, {differ} differ, {time.time() - began:.0f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
