#!/usr/bin/env python3
"""llama.cpp, as llama-cpp-python builds it, runs bench/race's tests on one file.

Usage: peer_llama.py -m FILE -t THREADS TEST ...

Prints a first line about the library. Then each line on stdin is one of the tests, and gets one line as its answer:
{"test": "tg64", "tok_s": ...}. The tests are those of paceline-bench-stage; they are run as llama-bench runs them, by the
library's C interface, without sampling: ppN is one batch of N tokens with the logits of the last, tgN is N batches of one token, tgN@M the
same behind M tokens, batchN is STEPS batches of N tokens of N sequences. Context settings are the library's defaults, but for sizes and threads.
"""
import argparse
import json
import os
import re
import sys
import time

import llama_cpp as llama

STEPS = 32  # as in stage.c
UBATCH = 512


class Test:
    """One test with a context of its own."""

    def __init__(self, model, name, n_threads):
        kind, n, behind = re.fullmatch(r"(pp|tg|batch)(\d+)(?:@(\d+))?", name).groups()
        self.name, self.kind, self.n, self.behind = name, kind, int(n), int(behind or 0)
        self.is_filled = False
        self.n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        n_seqs = self.n if kind == "batch" else 1
        per_seq = STEPS if kind == "batch" else self.n + self.behind
        params = llama.llama_context_default_params()
        params.n_ctx = n_seqs * ((per_seq + 255) // 256 * 256)
        params.n_batch = max(self.n, UBATCH) if kind != "tg" else UBATCH
        params.n_ubatch = UBATCH
        params.n_seq_max = n_seqs
        params.n_threads = params.n_threads_batch = n_threads
        self.context = llama.llama_init_from_model(model, params)
        if not self.context:
            sys.exit("peer: the context cannot be made")
        self.batch = llama.llama_batch_init(params.n_batch, 0, 1)

    def decode(self, rows, all_logits):
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, pos, seq) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token % self.n_vocab, pos, 1
            batch.seq_id[i][0] = seq
            batch.logits[i] = 1 if all_logits or i == len(rows) - 1 else 0
        if llama.llama_decode(self.context, batch) != 0:
            sys.exit("peer: llama_decode failed")
        llama.llama_synchronize(self.context)

    def run(self):
        """Tokens per second."""
        n, memory = self.n, llama.llama_get_memory(self.context)
        if self.is_filled:
            llama.llama_memory_seq_rm(memory, 0, self.behind, -1)
        else:
            llama.llama_memory_clear(memory, False)
            for at in range(0, self.behind, UBATCH):
                self.decode([(i * 7919 + 11, i, 0) for i in range(at, min(at + UBATCH, self.behind))], False)
            self.is_filled = self.behind > 0
        if self.kind == "pp":
            steps = [([(i * 7919 + 11, i, 0) for i in range(n)], False)]
        elif self.kind == "tg":
            steps = [([(i * 7919 + 11, self.behind + i, 0)], True) for i in range(n)]
        else:
            steps = [([(i * n + s, i, s) for s in range(n)], True) for i in range(STEPS)]
        start = time.perf_counter()
        for rows, all_logits in steps:
            self.decode(rows, all_logits)
        return sum(len(rows) for rows, _ in steps) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", required=True)
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("tests", nargs="+")
    options = parser.parse_args()
    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, None)
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(options.m.encode(), params)
    if not model:
        sys.exit("peer: the model cannot be loaded")
    tests = {name: Test(model, name, options.t) for name in options.tests}
    print(json.dumps({"peer": "llama-cpp-python " + llama.__version__, "system": llama.llama_print_system_info().decode()}), flush=True)
    for line in sys.stdin:
        name = line.strip()
        print(json.dumps({"test": name, "tok_s": tests[name].run()}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the library's own end is not measured, and has crashed where its log callback was gone already


if __name__ == "__main__":
    main()
