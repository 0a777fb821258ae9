"""A model that says what it is told: each token of a reply has one token that follows it.

One layer whose products are all zero, so that a token's embedding comes through to the head, and a head whose row for the token that follows is
that embedding. Standard library only.
"""
import random
import struct

N_EMBD = 64
U32, I32, F32, STRING, ARRAY = 4, 5, 6, 8, 9
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def text(s):
    data = s.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def value(kind, v):
    if kind == ARRAY:
        elem, items = v
        body = b"".join(map(text, items)) if elem == STRING else struct.pack("<%di" % len(items), *items)
        return struct.pack("<IIQ", ARRAY, elem, len(items)) + body
    return struct.pack("<I", kind) + (text(v) if kind == STRING else struct.pack({U32: "<I", F32: "<f"}[kind], v))


def visible(byte):
    """GPT-2's character for a byte."""
    shown = [b for b in range(256) if 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or b >= 0xae]
    return chr(byte) if byte in shown else chr(0x100 + [b for b in range(256) if b not in shown].index(byte))


def write(path, replies, template, control=()):
    """replies: lists of pieces. Behind the token <|goN|> the model says the N-th and ends. control: pieces that are control tokens."""
    tokens = [visible(b) for b in range(256)] + ["<s>", "</s>"]
    types = [NORMAL] * 256 + [CONTROL] * 2
    follows = {}
    for i, pieces in enumerate(replies):
        last = len(tokens)
        for piece in ["<|go%d|>" % i] + pieces:
            if piece != "<|go%d|>" % i:
                follows[last] = len(tokens)
            last = len(tokens)
            tokens.append(piece)
            types.append(CONTROL if piece in control else USER_DEFINED)
        follows[last] = 257
    n = len(tokens)
    draw = random.Random(7)
    embedding = [[draw.gauss(0, 1) for _ in range(N_EMBD)] for _ in range(n)]
    head = [[0.0] * N_EMBD for _ in range(n)]
    for token, then in follows.items():
        head[then] = [a + b for a, b in zip(head[then], embedding[token])]
    keys = [
        ("general.architecture", STRING, "llama"), ("general.name", STRING, "parrot"),
        ("llama.block_count", U32, 1), ("llama.context_length", U32, 4096), ("llama.embedding_length", U32, N_EMBD),
        ("llama.feed_forward_length", U32, 64), ("llama.attention.head_count", U32, 2), ("llama.attention.head_count_kv", U32, 2),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), ("llama.rope.dimension_count", U32, 32), ("llama.rope.freq_base", F32, 10000.0),
        ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "gpt-2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)), ("tokenizer.ggml.token_type", ARRAY, (I32, types)),
        ("tokenizer.ggml.merges", ARRAY, (STRING, ["t h"])),
        ("tokenizer.ggml.bos_token_id", U32, 256), ("tokenizer.ggml.eos_token_id", U32, 257), ("tokenizer.chat_template", STRING, template),
    ]
    zeros = [0.0] * (64 * 64)
    ones = [1.0] * 64
    tensors = [("token_embd.weight", (N_EMBD, n), sum(embedding, [])), ("output.weight", (N_EMBD, n), sum(head, [])), ("output_norm.weight", (64,), ones),
               ("blk.0.attn_norm.weight", (64,), ones), ("blk.0.ffn_norm.weight", (64,), ones)]
    tensors += [("blk.0.%s.weight" % name, (64, 64), zeros) for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")]
    out = [b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))]
    out += [text(key) + value(kind, v) for key, kind, v in keys]
    offset = 0
    for name, shape, data in tensors:
        out.append(text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, 0, offset))
        offset += (len(data) * 4 + 31) // 32 * 32
    head_bytes = b"".join(out)
    with open(path, "wb") as f:
        f.write(head_bytes + bytes(-len(head_bytes) % 32))
        for _, _, data in tensors:
            f.write(struct.pack("<%df" % len(data), *data))
            f.write(bytes(-len(data) * 4 % 32))
