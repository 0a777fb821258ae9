#!/usr/bin/env python3
"""llama.cpp, as llama-cpp-python builds it, on one file: pp512, tg64 and batch8, measured the way llama-bench does.

Prints one JSON object per test: {"test": ..., "tok_s": ...}. The models' files are read by the library alone.
"""
import argparse
import ctypes
import json
import os
import time

import llama_cpp as L


def main():
    p = argparse.ArgumentParser()
    p.add_argument("-m", required=True)
    p.add_argument("-t", type=int, default=2)
    p.add_argument("--tests", default="pp512,tg64,batch8")
    o = p.parse_args()
    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, None)
    L.llama_backend_init()
    mp = L.llama_model_default_params()
    mp.n_gpu_layers = 0
    model = L.llama_model_load_from_file(o.m.encode(), mp)
    if not model:
        raise SystemExit("peer: the model cannot be loaded")
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    for test in o.tests.split(","):
        n = int("".join(c for c in test if c.isdigit()))
        kind = test.rstrip("0123456789")
        cp = L.llama_context_default_params()
        cp.n_ctx = 64 * 40 if kind == "batch" else max(n, 128) + 64
        cp.n_batch = cp.n_ubatch = 512
        cp.n_seq_max = n if kind == "batch" else 1
        cp.n_threads = cp.n_threads_batch = o.t
        ctx = L.llama_init_from_model(model, cp)
        batch = L.llama_batch_init(512, 0, 1)

        def fill(rows, logits_last_only):
            batch.n_tokens = len(rows)
            for i, (token, pos, seq) in enumerate(rows):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, pos, 1
                batch.seq_id[i][0] = seq
                batch.logits[i] = 1 if not logits_last_only or i == len(rows) - 1 else 0

        def decode(rows, logits_last_only=True):
            fill(rows, logits_last_only)
            if L.llama_decode(ctx, batch) != 0:
                raise SystemExit("peer: llama_decode failed")
            L.llama_synchronize(ctx)

        def clear():
            L.llama_memory_clear(L.llama_get_memory(ctx), False)

        def token(i):
            return (i * 7919 + 11) % vocab

        def run():
            clear()
            if kind == "pp":
                start = time.perf_counter()
                decode([(token(i), i, 0) for i in range(n)])
                return n / (time.perf_counter() - start)
            if kind == "tg":
                start = time.perf_counter()
                for i in range(n):
                    decode([(token(i), i, 0)])
                return n / (time.perf_counter() - start)
            steps = 32
            decode([(token(s), 0, s) for s in range(n)], False)
            start = time.perf_counter()
            for i in range(1, steps + 1):
                decode([(token(i * n + s), i, s) for s in range(n)], False)
            return n * steps / (time.perf_counter() - start)

        run()  # warm
        print(json.dumps({"test": test, "tok_s": run()}), flush=True)
        L.llama_batch_free(batch)
        L.llama_free(ctx)
    os._exit(0)  # the library's teardown is not our business


if __name__ == "__main__":
    main()
