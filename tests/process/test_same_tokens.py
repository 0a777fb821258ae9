"""The promise: the same tokens in one process, over any split, thread count, batch, chunk, layout, and with a node killed."""
import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
from harness import Cluster, PACELINE, FULL

PROMPTS = ["Once upon a time", "The quick brown fox", "In the year 1969, people", "def main():", "A list of fruits:", "Hello", "The sea was calm and the", "Zebras are"]
JOBS = [(p, None) for p in PROMPTS] + [(p, 1000 + i) for i, p in enumerate(PROMPTS)]
# Samplers that look back, one whose state travels with the tokens, and grammars, which are read again from the tokens.
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}, "tags": {"type": "array", "items": {"type": "string"}}},
          "required": ["name", "n", "tags"]}
JOBS += [
    ("The weather today", 2001, {"mirostat": 2}),
    ("The weather today", 2002, {"mirostat": 1, "mirostat_tau": 3}),
    ("one two three one two three one", 2003, {"dry_multiplier": 0.8, "frequency_penalty": 0.3, "presence_penalty": 0.2, "xtc_probability": 0.5, "logit_bias": {"40": 2, "41": False}}),
    ("It was late", 2004, {"typical_p": 0.8, "dynatemp_range": 0.5, "samplers": ["temperature", "typ_p", "min_p"]}),
    ("As JSON:", 2005, {"json_schema": SCHEMA}),
    ("As JSON:", None, {"json_schema": SCHEMA}),
]

AXES = {
    "nodes": [1, 2, 3, 5],
    "threads": [1, 2],
    "at_once": [1, 4, 8],
    "chunk": [512, 1, 7],
    "layout": ["packed", "plain"],
    "guess": ["none", "ngram", "draft"],
    "kill": [False, True],
}
FIRST = {axis: values[0] for axis, values in AXES.items()}


def models():
    """Name and path of every real model at hand."""
    found = []
    if harness.DEMO:
        found.append(("SmolLM2-135M-Q4_1", harness.DEMO))
    else:
        harness.skip_line("same tokens of the demo model (PACELINE_DEMO_MODEL is not set)")
    if harness.DATA:
        found += [(p.stem, str(p)) for p in sorted((pathlib.Path(harness.DATA) / "models/llama2c").glob("*.gguf"))]
    else:
        harness.skip_line("same tokens of the llama2c models (PACELINE_TEST_DATA is not set)")
    return found


class SameTokens(unittest.TestCase):
    reference = {}

    @classmethod
    def setUpClass(cls):
        cls.caches = tempfile.TemporaryDirectory(prefix="paceline-caches-")
        cls.models = models()

    @classmethod
    def tearDownClass(cls):
        cls.caches.cleanup()

    def cluster(self, name, path, nodes, threads=1, chunk=512, layout="packed", guess="none"):
        node = ["--no-pack"] if layout == "plain" else []
        # The model guesses for itself: for greedy requests all is right, for sampled ones much is wrong.
        guesses = {"none": [], "ngram": ["--spec-type", "ngram"], "draft": ["--model-draft", path, "--draft-p-min", "0", "--draft-max", "3"]}[guess]
        return Cluster(path, nodes=nodes, threads=threads, serve=["-np", "8", "-c", "512", "-ub", str(chunk), "--stages", str(nodes), "--grace", "20000"] + guesses, node=node, give_model=layout == "plain",
                       caches=os.path.join(self.caches.name, name), wait=False)

    def wanted(self, name, path):
        if name not in self.reference:
            with self.cluster(name, path, 1) as c:
                c.wait_ready()
                self.reference[name] = c.complete_many(JOBS, 1)
            for answer in self.reference[name]:
                self.assertIsInstance(answer, tuple, answer)
        return self.reference[name]

    def check(self, name, path, nodes, threads, at_once, chunk, layout, guess, kill, seed=0):
        wanted = self.wanted(name, path)
        with self.cluster(name, path, nodes, threads, chunk, layout, guess) as c:
            c.wait_ready()
            self.assertEqual(len(c.stages()), nodes)
            if kill:
                victim = "n%d" % random.Random(seed).randrange(nodes)

                def strike():
                    time.sleep(0.1 + random.Random(seed + 1).random())
                    c.nodes[victim].kill(signal.SIGKILL)
                    c.nodes[victim].end()
                    c.start_node(victim)

                striker = threading.Thread(target=strike)
                striker.start()
            got = c.complete_many(JOBS, at_once)
            if kill:
                striker.join()
            for job, want, have in zip(JOBS, wanted, got):
                self.assertEqual(have, want, "%s %r differs with nodes=%d threads=%d at_once=%d chunk=%d %s guess=%s kill=%s seed=%d\n%s" %
                                 (name, job, nodes, threads, at_once, chunk, layout, guess, kill, seed, c.logs() if isinstance(have, Exception) else ""))

    def each(self, settings):
        for name, path in self.models:
            for seed, s in enumerate(settings):
                with self.subTest(model=name, **s):
                    self.check(name, path, seed=seed, **s)

    def test_each_axis_alone(self):
        self.each([dict(FIRST, **{axis: v}) for axis, values in AXES.items() for v in values[1:]])

    def test_twenty_seeded_combinations(self):
        r = random.Random(2026)
        self.each([{axis: r.choice(values) for axis, values in AXES.items()} for _ in range(20)])

    @unittest.skipUnless(FULL, "the whole product is for scripts/test --full")
    def test_the_whole_product(self):
        self.each([dict(zip(AXES, values)) for values in itertools.product(*AXES.values())])

    def test_run_prints_what_serve_answers(self):
        for name, path in self.models:
            with self.subTest(model=name):
                out = subprocess.run([PACELINE, "run", "-m", path, "-c", "512", "--no-conversation", "--no-display-prompt", "--temp", "0", "-n", "64", "-t", "2", "-p", PROMPTS[0],
                                      "--cache-dir", os.path.join(self.caches.name, "run")], capture_output=True, timeout=120)
                self.assertEqual(out.returncode, 0, out.stderr)
                self.assertEqual(out.stdout.decode()[:-1], self.wanted(name, path)[0][0])


if __name__ == "__main__":
    harness.main()
