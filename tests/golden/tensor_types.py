#!/usr/bin/env python3
"""Writes tensor_types.txt: random blocks of every tensor type, and what the `gguf` package makes of them.

Made with gguf 0.19.0 and numpy 2.4.6; Q1_0, Q2_0 and Q8_K, which that package does not decode, with the libggml-base of
llama-cpp-python 0.3.36 (ggml 0.25.3). Q8_1 has no decoder anywhere: its values are d * q, here in numpy.
Run: python3 tensor_types.py > tensor_types.txt

A line is: type, blocks (hexadecimal), BLAKE2b-256 of the decoded float32 values (little-endian), the first value's bits.
Scales are finite and of moderate size, including subnormal halves and zero; all other bits are random.
"""
import ctypes
import hashlib
import os
import sys

import numpy as np
import gguf
from gguf.constants import GGMLQuantizationType as T, GGML_QUANT_SIZES

BLOCKS = 8
HALVES = {  # byte offsets of the f16 fields of a block
    T.F16: (0,), T.Q8_0: (0,), T.Q4_0: (0,), T.Q4_1: (0, 2), T.Q5_0: (0,), T.Q5_1: (0, 2),
    T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,), T.BF16: (), T.F32: (), T.F64: (), T.I8: (), T.I16: (), T.I32: (), T.I64: (),
    T.IQ2_XXS: (0,), T.IQ2_XS: (0,), T.IQ2_S: (0,), T.IQ3_XXS: (0,), T.IQ3_S: (0,), T.IQ1_S: (0,), T.IQ1_M: (),
    T.Q2_K: (80, 82), T.Q3_K: (108,), T.IQ4_NL: (0,), T.IQ4_XS: (0,), T.TQ1_0: (52,), T.TQ2_0: (64,), T.MXFP4: (), T.NVFP4: (),
}
# Not in gguf.quants: name, elements per block, bytes per block, offsets of f16 fields.
GGML = {"Q1_0": (128, 18, (0,)), "Q2_0": (64, 18, (0,)), "Q8_K": (256, 292, ()), "Q8_1": (32, 36, (0, 2))}
PLAIN = {T.F32: np.float32, T.F64: np.float64, T.I8: np.int8, T.I16: np.int16, T.I32: np.int32, T.I64: np.int64}


def random_blocks(rng, count, size, halves):
    b = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in halves:
        h = (rng.standard_normal(count) * 10.0 ** rng.integers(-7, 2, count)).astype(np.float16)
        h[0] = 0
        b[:, at:at + 2] = h.view(np.uint8).reshape(-1, 2)
    return b


def blocks_of(rng, kind):
    count = BLOCKS * (32 if GGML_QUANT_SIZES[kind][0] == 1 else 1)
    b = random_blocks(rng, count, GGML_QUANT_SIZES[kind][1], HALVES[kind])
    if kind == T.IQ1_M:  # the half is spread over the upper four bits of the block's last four words
        h = (rng.standard_normal(count) * 10.0 ** rng.integers(-7, 2, count)).astype(np.float16).view(np.uint16)
        for i in range(4):
            b[:, 49 + 2 * i] = b[:, 49 + 2 * i] & 15 | ((h >> 4 * i & 15) << 4).astype(np.uint8)
    if kind in (T.F32, T.F64):
        b = rng.standard_normal(count).astype(PLAIN[kind]).view(np.uint8).reshape(count, -1)
    if kind == T.BF16:
        b[:, 1] &= 0xBF  # no infinity, no NaN
    if kind == T.MXFP4:
        b[:, 0] = rng.integers(0, 252, count)  # 2^124 * 12 and more is infinite
        b[:4, 0] = (0, 1, 2, 251)
    if kind == T.NVFP4:
        b[0, :4] = (0, 0x7F, 0xFF, 0x81)
    return b


def decode_ggml(name, b, n):
    import llama_cpp
    if name == "Q8_1":
        d = b[:, :2].copy().view(np.float16).astype(np.float32)
        return (d * b[:, 4:].view(np.int8).astype(np.float32)).reshape(-1)
    lib = ctypes.CDLL(os.path.join(os.path.dirname(llama_cpp.__file__), "lib", "libggml-base.so"))
    x = np.zeros(n, np.float32)
    decode = getattr(lib, "dequantize_row_" + (name if name.endswith("K") else name.lower()).replace("Q", "q"))
    decode(b.ctypes.data_as(ctypes.c_void_p), x.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(n))
    return x


def show(name, b, x):
    assert np.isfinite(x).all()
    raw = x.astype("<f4").tobytes()
    print(name, b.tobytes().hex(), hashlib.blake2b(raw, digest_size=32).hexdigest(), raw[:4][::-1].hex())


def main():
    for number, kind in enumerate(HALVES):
        b = blocks_of(np.random.default_rng(1000 + number), kind)
        if kind in PLAIN:
            x = b.reshape(-1).view(PLAIN[kind]).astype(np.float32)
        else:
            x = gguf.quants.dequantize(b, kind).astype(np.float32).reshape(-1)
        show(kind.name, b, x)
    for number, (name, (block, size, halves)) in enumerate(GGML.items()):
        rng = np.random.default_rng(2000 + number)
        b = random_blocks(rng, BLOCKS, size, halves)
        if name == "Q8_K":
            b[:, :4] = rng.standard_normal(BLOCKS).astype("<f4").view(np.uint8).reshape(-1, 4)
        show(name, b, decode_ggml(name, b, BLOCKS * block))


if __name__ == "__main__":
    sys.exit(main())
