"""Real processes over loopback: a coordinator and nodes with their own keys, budgets and caches, and a small client.

Everything started here is ended here, by its process id. Standard library only.
"""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PACELINE = os.environ["PACELINE"]
FIXTURE = os.environ.get("PACELINE_MAKE_MODEL")
DATA = os.environ.get("PACELINE_TEST_DATA")
DEMO = os.environ.get("PACELINE_DEMO_MODEL")
FULL = os.environ.get("PACELINE_TEST_FULL") == "1"
START_S = 60


def skip_line(what):
    """The line that scripts/summary.py counts and shows."""
    print("SKIPPED: " + what, file=sys.stderr)


class ApiError(Exception):
    def __init__(self, status, body):
        super().__init__("HTTP %d: %s" % (status, body))
        self.status = status
        self.body = body


class Process:
    def __init__(self, args, log, stdout=None):
        self.log = pathlib.Path(log)
        self.handle = open(log, "wb")
        self.popen = subprocess.Popen([PACELINE] + args, stdin=subprocess.DEVNULL, stdout=stdout or self.handle, stderr=self.handle)

    def kill(self, how=signal.SIGKILL):
        self.popen.send_signal(how)

    def end(self):
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        self.handle.close()
        return self.popen.returncode

    def text(self):
        return self.log.read_text(errors="replace")


class Cluster:
    """One coordinator without a node of its own, and nodes that join it."""

    def __init__(self, model, nodes=1, mem=None, threads=1, serve=(), node=(), names=None, caches=None, wait=True, give_model=False, reverse=False):
        self.dir = tempfile.mkdtemp(prefix="paceline-test-")
        self.model, self.mem, self.threads, self.node_args, self.caches = model, mem, threads, list(node), caches
        self.give_model = give_model
        self.nodes = {}
        self.keys = {}
        self.reverse = reverse
        self.peers = os.path.join(self.dir, "peers")
        open(self.peers, "w").close()
        names = names or ["n%d" % i for i in range(nodes)]
        for name in ["coordinator"] + names:
            self.make_key(name)
        dial = []
        try:
            if reverse:
                for name in names:
                    self.start_node(name)
                    dial += ["--node", self.node_address(name)]
            self.serve = Process(["serve", "-m", model, "--no-local", "--listen", "127.0.0.1:0", "--port", "0", "--key", self.path("coordinator.key"), "--peers", self.peers,
                                  "--cache-dir", self.path("cache-coordinator"), "--min-nodes", str(len(names) or 1)] + dial + list(serve), self.path("serve.log"))
            self.http_port = int(self.wait_line(r"^API:\s+\w+://[^:]+:(\d+)/v1"))
            self.listen = self.wait_line(r"^Nodes:\s+tcp://(\S+)")
            if not reverse:
                for name in names:
                    self.start_node(name)
            if wait and names:
                self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def path(self, name):
        return os.path.join(self.dir, name)

    def make_key(self, name, listed=True):
        out = subprocess.run([PACELINE, "keygen", "--out", self.path(name + ".key")], check=True, capture_output=True, text=True)
        self.keys[name] = out.stdout.strip()
        if listed:
            with open(self.peers, "a") as f:
                f.write("%s %s\n" % (self.keys[name], name))

    def start_node(self, name, mem=None, extra=()):
        mem = mem or (self.mem[name] if isinstance(self.mem, dict) else self.mem)
        cache = (self.caches or self.path)("cache-" + name) if callable(self.caches) or not self.caches else os.path.join(self.caches, name)
        args = ["node", "--key", self.path(name + ".key"), "--peers", self.peers, "--name", name, "-t", str(self.threads), "--cache-dir", cache,
                "--trace", self.path(name + ".trace")] + self.node_args + list(extra)
        args += ["--listen", "127.0.0.1:0"] if self.reverse else ["--join", "%s#%s" % (self.listen, self.keys["coordinator"])]
        if mem:
            args += ["--mem", str(mem)]
        if self.give_model:
            args += ["-m", self.model]
        self.nodes[name] = Process(args, self.path(name + ".log"))

    def node_address(self, name):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            hit = re.search(r"listening.*address=tcp://(\S+)", self.nodes[name].text())
            if hit:
                return "%s#%s" % (hit.group(1), self.keys[name])
            time.sleep(0.02)
        raise AssertionError("node %s does not listen:\n%s" % (name, self.nodes[name].text()))

    def wait_line(self, pattern):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            hit = re.search(pattern, self.serve.text(), re.M)
            if hit:
                return hit.group(1)
            if self.serve.popen.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("the coordinator did not print %s:\n%s" % (pattern, self.logs()))

    def logs(self):
        return "\n".join("--- %s\n%s" % (p.log.name, p.text()[-3000:]) for p in [self.serve] + list(self.nodes.values()))

    def wait_ready(self, timeout=START_S):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                self.get("/health")
                return
            except ApiError:
                time.sleep(0.05)
        raise AssertionError("no pipeline after %d s:\n%s" % (timeout, self.logs()))

    def request(self, method, path, body=None, timeout=120, headers=()):
        c = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout)
        try:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            c.request(method, path, data, dict(headers, **({"Content-Type": "application/json"} if data else {})))
            r = c.getresponse()
            text = r.read()
            if r.status != 200:
                raise ApiError(r.status, text.decode(errors="replace"))
            return text
        finally:
            c.close()

    def get(self, path):
        return json.loads(self.request("GET", path))

    def complete(self, prompt, n=64, seed=None, timeout=120, **extra):
        """The text and the token pieces of /v1/completions: greedy without a seed, sampled with one."""
        body = dict(prompt=prompt, max_tokens=n, temperature=0 if seed is None else 1.0, logprobs=0, **extra)
        if seed is not None:
            body.update(seed=seed, top_k=50)
        choice = json.loads(self.request("POST", "/v1/completions", body, timeout))["choices"][0]
        return choice["text"], tuple(choice["logprobs"]["tokens"] if choice["logprobs"] else ()), choice["finish_reason"]

    def complete_many(self, jobs, at_once, timeout=120):
        """jobs: list of (prompt, seed) or (prompt, seed, fields); answers in their order, at_once of them in flight together."""
        answers = [None] * len(jobs)
        left = list(enumerate(jobs))
        lock = threading.Lock()

        def work():
            while True:
                with lock:
                    if not left:
                        return
                    i, (prompt, seed, *fields) = left.pop(0)
                try:
                    answers[i] = self.complete(prompt, seed=seed, timeout=timeout, **(fields[0] if fields else {}))
                except Exception as e:  # shown by the comparison
                    answers[i] = e

        threads = [threading.Thread(target=work) for _ in range(at_once)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return answers

    def stages(self):
        """The pipeline's stages; memory_bytes is what the plan counted for each."""
        stages = self.get("/v1/cluster")["pipeline"]["stages"]
        for s in stages:
            s["memory_bytes"] = sum(s[k] for k in ("weights_bytes", "kv_bytes", "compute_bytes", "link_bytes"))
        return stages

    def stop(self):
        for p in list(self.nodes.values()) + ([self.serve] if hasattr(self, "serve") else []):
            p.end()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.stop()


def fixture_model(folder, *words):
    """A tiny seeded model, written by tests/fixtures' own program."""
    path = os.path.join(folder, "model-%s.gguf" % ("-".join(words) or "default").replace("=", ""))
    subprocess.run([FIXTURE, path] + list(words), check=True, stdout=subprocess.DEVNULL)
    return path


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the run, and the clusters with it
    unittest.main(verbosity=1)
