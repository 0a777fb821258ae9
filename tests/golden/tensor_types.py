#!/usr/bin/env python3
"""Writes tensor_types.txt: random blocks of every tensor type, and what the `gguf` package makes of them.

Made with gguf 0.19.0 and numpy 2.4.6. Run: python3 tensor_types.py > tensor_types.txt

A line is: type, blocks (hexadecimal), BLAKE2b-256 of the decoded float32 values (little-endian), the first value's bits.
Scales are finite and of moderate size, including subnormal halves and zero; all other bits are random.
"""
import hashlib
import sys

import numpy as np
import gguf
from gguf.constants import GGMLQuantizationType as T, GGML_QUANT_SIZES

BLOCKS = 8
HALVES = {  # byte offsets of the f16 fields of a block
    T.F16: (0,), T.Q8_0: (0,), T.Q4_0: (0,), T.Q4_1: (0, 2), T.Q5_0: (0,), T.Q5_1: (0, 2),
    T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,), T.BF16: (), T.F32: (), T.F64: (), T.I8: (), T.I16: (), T.I32: (), T.I64: (),
    T.IQ2_XXS: (0,), T.IQ2_XS: (0,), T.IQ2_S: (0,), T.IQ3_XXS: (0,), T.IQ3_S: (0,), T.IQ1_S: (0,), T.IQ1_M: (),
}
PLAIN = {T.F32: np.float32, T.F64: np.float64, T.I8: np.int8, T.I16: np.int16, T.I32: np.int32, T.I64: np.int64}


def blocks_of(rng, kind):
    size = GGML_QUANT_SIZES[kind][1]
    count = BLOCKS * (32 if GGML_QUANT_SIZES[kind][0] == 1 else 1)
    b = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES[kind]:
        h = (rng.standard_normal(count) * 10.0 ** rng.integers(-7, 2, count)).astype(np.float16)
        h[0] = 0
        b[:, at:at + 2] = h.view(np.uint8).reshape(-1, 2)
    if kind == T.IQ1_M:  # the half is spread over the upper four bits of the block's last four words
        h = (rng.standard_normal(count) * 10.0 ** rng.integers(-7, 2, count)).astype(np.float16).view(np.uint16)
        for i in range(4):
            b[:, 49 + 2 * i] = b[:, 49 + 2 * i] & 15 | ((h >> 4 * i & 15) << 4).astype(np.uint8)
    if kind in (T.F32, T.F64):
        b = rng.standard_normal(count).astype(PLAIN[kind]).view(np.uint8).reshape(count, size)
    if kind == T.BF16:
        b[:, 1] &= 0xBF  # no infinity, no NaN
    return b


def main():
    for number, kind in enumerate(HALVES):
        b = blocks_of(np.random.default_rng(1000 + number), kind)
        if kind in PLAIN:
            x = b.reshape(-1).view(PLAIN[kind]).astype(np.float32)
        else:
            x = gguf.quants.dequantize(b, kind).astype(np.float32).reshape(-1)
        assert np.isfinite(x).all()
        raw = x.astype("<f4").tobytes()
        print(kind.name, b.tobytes().hex(), hashlib.blake2b(raw, digest_size=32).hexdigest(), raw[:4][::-1].hex())


if __name__ == "__main__":
    sys.exit(main())
