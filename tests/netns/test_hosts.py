"""Three hosts as network namespaces, driven as README's walk-through says: nodes fetch, neighbours dial each other across the network, a host is lost.

Needs the right to make namespaces; without it the suite is skipped.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "process"))
import harness
from harness import PACELINE

HOSTS = {"desk1": "10.213.7.1", "desk2": "10.213.7.2", "desk3": "10.213.7.3"}
BRIDGE = "plbr%d" % (os.getpid() % 10000)


def ip(*words):
    subprocess.run(["ip"] + list(words), check=True, capture_output=True)


def ns(host):
    return "pl%d%s" % (os.getpid() % 10000, host)


def can_make_namespaces():
    try:
        ip("netns", "add", ns("try"))
        ip("netns", "del", ns("try"))
        return True
    except (OSError, subprocess.CalledProcessError):
        return False


class Network:
    """A bridge in a namespace of its own, and a namespace with one address per host."""

    def __enter__(self):
        ip("netns", "add", ns("sw"))
        ip("-n", ns("sw"), "link", "add", BRIDGE, "type", "bridge")
        ip("-n", ns("sw"), "link", "set", BRIDGE, "up")
        for host, address in HOSTS.items():
            ip("netns", "add", ns(host))
            ip("-n", ns(host), "link", "set", "lo", "up")
            ip("-n", ns("sw"), "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", ns(host))
            ip("-n", ns("sw"), "link", "set", host, "master", BRIDGE, "up")
            ip("-n", ns(host), "addr", "add", address + "/24", "dev", "eth0")
            ip("-n", ns(host), "link", "set", "eth0", "up")
        return self

    def __exit__(self, *what):
        for host in list(HOSTS) + ["sw"]:
            subprocess.run(["ip", "netns", "del", ns(host)], capture_output=True)

    def cut(self, host):
        ip("-n", ns("sw"), "link", "set", host, "down")


@unittest.skipUnless(can_make_namespaces(), "network namespaces cannot be made here")
class Hosts(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="paceline-netns-")
        self.model = harness.fixture_model(self.dir.name, "layers=8", "embd=512", "ff=1024", "heads=8", "kv-heads=4")
        self.processes = []
        self.keys = {}
        for host in HOSTS:
            out = subprocess.run([PACELINE, "keygen"], env=self.env(host), check=True, capture_output=True, text=True)
            self.keys[host] = out.stdout.strip()

    def tearDown(self):
        for p in reversed(self.processes):
            if p.poll() is None:
                p.terminate()
                try:
                    p.wait(10)
                except subprocess.TimeoutExpired:
                    p.kill()
                    p.wait()
        self.dir.cleanup()

    def env(self, host):
        home = pathlib.Path(self.dir.name, host)
        home.mkdir(exist_ok=True)
        return dict(os.environ, HOME=str(home), XDG_CONFIG_HOME=str(home / "config"), XDG_CACHE_HOME=str(home / "cache"))

    def peers(self, host, lines):
        path = pathlib.Path(self.dir.name, host, "config/paceline/peers")
        path.write_text("".join("%s %s\n" % line for line in lines))

    def start(self, host, *words):
        log = open(os.path.join(self.dir.name, host + ".log"), "wb")
        p = subprocess.Popen(["ip", "netns", "exec", ns(host), PACELINE] + list(words), env=self.env(host), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        self.processes.append(p)
        return p

    def ask(self, host, path, body=None, timeout=60):
        words = ["curl", "-s", "-m", str(timeout), "http://127.0.0.1:8080" + path] + (["-d", json.dumps(body)] if body else [])
        out = subprocess.run(["ip", "netns", "exec", ns(host)] + words, capture_output=True, text=True)
        return json.loads(out.stdout) if out.stdout.strip() else {}

    def logs(self):
        return "\n".join("--- %s\n%s" % (p.name, p.read_text(errors="replace")[-2500:]) for p in sorted(pathlib.Path(self.dir.name).glob("*.log")))

    def wait_up(self, timeout=60):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.ask("desk1", "/health").get("status") == "ok":
                return
            time.sleep(0.1)
        self.fail("no pipeline:\n" + self.logs())

    BODY = {"prompt": "hello world", "max_tokens": 200, "temperature": 0, "ignore_eos": True}

    def test_three_machines(self):
        alone = subprocess.run([PACELINE, "run", "-m", self.model, "-c", "512", "--no-conversation", "--no-display-prompt", "--temp", "0", "-n", "200", "--ignore-eos", "-p", "hello world"],
                               env=self.env("desk1"), capture_output=True, timeout=120)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        want = alone.stdout.decode(errors="replace")[:-1]
        weights = os.path.getsize(self.model)
        mem = str(int(weights * 0.95))  # any two hold it; none alone
        with Network() as net:
            self.peers("desk1", [(self.keys["desk2"], "desk2"), (self.keys["desk3"], "desk3")])
            for host in ("desk2", "desk3"):
                self.peers(host, [(self.keys["desk1"], HOSTS["desk1"])])
            self.start("desk1", "serve", "-m", self.model, "-c", "512", "--listen", "0.0.0.0:7077", "--mem", mem, "--name", "desk1", "--min-nodes", "3", "--dead-after", "1500")
            nodes = {h: self.start(h, "node", "--join", HOSTS["desk1"], "--mem", mem, "--name", h) for h in ("desk2", "desk3")}
            self.wait_up()
            stages = self.ask("desk1", "/v1/cluster")["pipeline"]["stages"]
            self.assertGreaterEqual(len(stages), 2, stages)
            first = self.ask("desk1", "/v1/completions", self.BODY)
            self.assertEqual(first["choices"][0]["text"], want, self.logs())
            # A cable is pulled while it answers: silence alone tells.
            victim = [s["node"] for s in stages if s["node"] != "desk1"][0]
            client = subprocess.Popen(["ip", "netns", "exec", ns("desk1"), "curl", "-s", "-m", "60", "http://127.0.0.1:8080/v1/completions", "-d", json.dumps(self.BODY)], stdout=subprocess.PIPE)
            time.sleep(0.05)
            net.cut(victim)
            text = client.communicate(timeout=90)[0]
            self.assertIn("choices", json.loads(text), "%s\n%s" % (text, self.logs()))
            self.assertEqual(json.loads(text)["choices"][0]["text"], want, self.logs())
            del nodes


if __name__ == "__main__":
    harness.main()
