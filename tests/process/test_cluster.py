"""Nodes that come, go, die, do not fit, have the wrong key, or hold everything already; on a tiny generated model."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
from harness import ApiError, Cluster, PACELINE

PROMPT = "hello world"


class ClusterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="paceline-cluster-")
        cls.model = harness.fixture_model(cls.dir.name, "layers=8", "embd=512", "ff=1024", "heads=8", "kv-heads=4")
        with Cluster(cls.model, serve=["-c", "512", "-np", "8"]) as c:
            cls.weights = c.stages()[0]["weights_bytes"]
            cls.want = c.complete(PROMPT, n=300, ignore_eos=True)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def cluster(self, nodes, mem, **kw):
        kw.setdefault("serve", ["-c", "512", "-np", "8"])
        return Cluster(self.model, nodes=nodes, mem=mem, **kw)

    def split_in_two(self):
        """A budget that cannot hold all weights, but half of them with all that goes with them."""
        return int(self.weights * 0.95)

    def stream_until(self, c, n, then):
        """Streams the long answer, calls then() after n events, and gives the whole text."""
        import http.client
        h = http.client.HTTPConnection("127.0.0.1", c.http_port, timeout=60)
        h.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 300, "temperature": 0, "ignore_eos": True, "stream": True}))
        r = h.getresponse()
        text, events = "", 0
        for line in r:
            if not line.startswith(b"data: {"):
                continue
            e = json.loads(line[6:])
            if "error" in e:
                raise ApiError(e["error"]["code"], e["error"]["message"])
            text += e["choices"][0]["text"]
            events += 1
            if events == n:
                then()
        return text

    def test_a_budget_that_holds_half_splits_in_two_with_the_same_answer(self):
        with self.cluster(2, self.split_in_two()) as c:
            self.assertEqual(len(c.stages()), 2)
            self.assertEqual(c.complete(PROMPT, n=300, ignore_eos=True), self.want)
            for s in c.stages():
                self.assertLessEqual(s["memory_bytes"], self.split_in_two())

    def test_a_node_that_is_killed_costs_a_pause_and_no_token(self):
        for victim in ("n0", "n1", "n2"):
            with self.subTest(victim=victim), self.cluster(3, self.split_in_two(), serve=["-c", "512", "-np", "8", "--dead-after", "1000"]) as c:
                text = self.stream_until(c, 20, lambda: c.nodes[victim].kill())
                self.assertEqual(text, self.want[0])
                self.assertEqual(c.complete(PROMPT, n=300, ignore_eos=True), self.want)

    def test_a_stopped_node_is_noticed_by_its_silence(self):
        with self.cluster(3, self.split_in_two(), serve=["-c", "512", "-np", "8", "--dead-after", "1000"]) as c:
            first = c.stages()[0]["node"]
            try:
                text = self.stream_until(c, 20, lambda: c.nodes[first].kill(signal.SIGSTOP))
                self.assertEqual(text, self.want[0])
            finally:
                c.nodes[first].kill(signal.SIGCONT)

    def test_a_model_that_fits_nowhere_is_refused_with_a_table_and_the_service_recovers_when_a_node_joins(self):
        with self.cluster(2, self.split_in_two(), serve=["-c", "512", "-np", "8", "--dead-after", "1000", "--grace", "1500"]) as c:
            with self.assertRaises(ApiError) as caught:
                self.stream_until(c, 20, lambda: c.nodes["n1"].kill())
            self.assertIn("n0", str(caught.exception))
            start = time.monotonic()
            with self.assertRaises(ApiError) as caught:
                c.complete(PROMPT, n=4)
            self.assertEqual(caught.exception.status, 503)
            self.assertIn("n0", caught.exception.body)
            self.assertLess(time.monotonic() - start, 5)
            with self.assertRaises(ApiError):
                c.get("/health")
            c.make_key("n9")
            c.start_node("n9")
            c.wait_ready()
            self.assertEqual(c.complete(PROMPT, n=300, ignore_eos=True), self.want)

    def test_a_node_that_leaves_loses_nothing(self):
        with self.cluster(3, self.split_in_two()) as c:
            text = self.stream_until(c, 20, lambda: c.nodes["n0"].kill(signal.SIGTERM))
            self.assertEqual(text, self.want[0])
            self.assertEqual(c.nodes["n0"].popen.wait(20), 0)

    def test_a_second_start_transfers_nothing(self):
        with tempfile.TemporaryDirectory() as caches:
            for fetched in (True, False):
                with self.cluster(2, self.split_in_two(), caches=caches) as c:
                    self.assertEqual(sum(s["fetched_bytes"] for s in c.stages()) > 0, fetched, c.stages())
            out = subprocess.run([PACELINE, "cache", "verify", "--cache-dir", os.path.join(caches, "n0")], capture_output=True, text=True, timeout=60)
            self.assertEqual(out.returncode, 0, out.stderr)
            files = [p for p in pathlib.Path(caches, "n0").rglob("*") if p.is_file() and p.stat().st_size > 8192]
            with open(files[0], "r+b") as f:
                f.seek(5000)
                byte = f.read(1)
                f.seek(5000)
                f.write(bytes([byte[0] ^ 1]))
            out = subprocess.run([PACELINE, "cache", "verify", "--cache-dir", os.path.join(caches, "n0")], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(out.returncode, 0)
            self.assertIn("1 damaged", out.stdout)
            with self.cluster(2, self.split_in_two(), caches=caches) as c:  # what is missing is fetched again
                self.assertEqual(c.complete(PROMPT, n=300, ignore_eos=True), self.want)

    def test_the_coordinator_may_dial_the_nodes(self):
        with self.cluster(2, self.split_in_two(), reverse=True) as c:
            self.assertEqual(len(c.stages()), 2)
            self.assertEqual(c.complete(PROMPT, n=300, ignore_eos=True), self.want)
            dial = sum((["--node", c.node_address(n)] for n in c.nodes), [])
            with Cluster(self.model, nodes=2, mem=self.split_in_two(), reverse=True, wait=False) as laptop:
                laptop.serve.end()
                dial = sum((["--node", laptop.node_address(n)] for n in laptop.nodes), [])
                out = subprocess.run([PACELINE, "run", "-m", self.model, "-c", "512", "--no-local", "--no-conversation", "--no-display-prompt", "--temp", "0", "-n", "300", "--ignore-eos",
                                      "-p", PROMPT, "--key", laptop.path("coordinator.key"), "--peers", laptop.peers, "--cache-dir", laptop.path("cache-run")] + dial,
                                     capture_output=True, timeout=90)
                self.assertEqual(out.returncode, 0, out.stderr.decode())
                self.assertEqual(out.stdout.decode(errors="replace")[:-1], self.want[0], out.stderr.decode())

    def test_a_peer_with_a_wrong_key_gets_nowhere(self):
        with self.cluster(1, None) as c:
            c.make_key("stranger", listed=False)
            with tempfile.TemporaryDirectory() as d:
                peers = os.path.join(d, "peers")  # the stranger knows the coordinator, but not the other way round
                with open(peers, "w") as f:
                    f.write("%s coordinator\n" % c.keys["coordinator"])
                p = harness.Process(["node", "--join", "%s#%s" % (c.listen, c.keys["coordinator"]), "--key", c.path("stranger.key"), "--peers", peers, "--name", "stranger",
                                     "--cache-dir", os.path.join(d, "cache")], os.path.join(d, "log"))
                wrong = harness.Process(["node", "--join", "%s#%s" % (c.listen, c.keys["stranger"]), "--key", c.path("n0.key"), "--peers", peers, "--name", "misled",
                                         "--cache-dir", os.path.join(d, "cache2")], os.path.join(d, "log2"))
                time.sleep(4)
                names = [n["name"] for n in c.get("/v1/cluster")["nodes"]]
                logs = p.text(), wrong.text()
                p.end()
                wrong.end()
            self.assertEqual(names, ["n0"])
            self.assertIn("does not admit this key", logs[0])
            self.assertIn("the keys do not fit", logs[1])
            self.assertEqual(c.complete(PROMPT, n=300, ignore_eos=True), self.want)

    def test_with_several_requests_both_nodes_are_busy_together(self):
        """Read from the nodes' own timelines, which share this machine's monotonic clock."""
        with self.cluster(2, self.split_in_two()) as c:
            c.complete_many([(PROMPT, i) for i in range(16)], 8)
            spans = []
            for n in ("n0", "n1"):
                c.nodes[n].end()  # the file is whole when its writer has ended
                with open(c.path(n + ".trace")) as f:
                    spans.append([json.loads(line) for line in f])
        self.assertTrue(all(spans))
        busy = [sum(s["end_ns"] - s["start_ns"] for s in side) for side in spans]
        both = 0
        for a in spans[0]:
            for b in spans[1]:
                both += max(0, min(a["end_ns"], b["end_ns"]) - max(a["start_ns"], b["start_ns"]))
        self.assertGreater(both, 0.1 * min(busy), "busy %s ns, together %d ns" % (busy, both))

    def test_serve_computes_too(self):
        """One machine, one command: the coordinator's own node holds the model."""
        with tempfile.TemporaryDirectory() as d:
            log = os.path.join(d, "log")
            key = os.path.join(d, "key")
            subprocess.run([PACELINE, "keygen", "--out", key], check=True, capture_output=True)
            p = harness.Process(["serve", "-m", self.model, "--port", "0", "--listen", "127.0.0.1:0", "--key", key, "-c", "512", "--cache-dir", os.path.join(d, "cache")], log)
            try:
                deadline = time.monotonic() + 60
                while "READY" not in p.text() and time.monotonic() < deadline and p.popen.poll() is None:
                    time.sleep(0.05)
                self.assertIn("READY", p.text())
            finally:
                self.assertEqual(p.end(), 0, p.text())


if __name__ == "__main__":
    harness.main()
