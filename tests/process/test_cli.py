"""The command line: help, manual, completion and errors of every command."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
from harness import PACELINE


def paceline(*words, **kw):
    return subprocess.run([PACELINE] + list(words), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **kw)


class Cli(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.commands = re.findall(r"^  (\S+) +\S", paceline("--help").stdout, re.M)
        cls.commands = [c for c in cls.commands if paceline(c, "--help").returncode == 0]

    def options(self, text):
        return sorted(set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)))

    def test_every_command_has_help_and_a_page_with_the_same_options(self):
        self.assertGreaterEqual(len(self.commands), 10)
        for c in self.commands:
            text = paceline(c, "--help").stdout
            listed = [o for line in re.findall(r"^  (-\S.*?)(?:  |$)", text, re.M) for o in re.findall(r"(?<!\S)--?[a-z][a-z-]*", line)]
            page = paceline("man", c).stdout.replace("\\-", "-")
            bold = [o for line in re.findall(r"^\\fB(.*?)\\fR", page, re.M) for o in re.findall(r"(?<!\S)--?[a-z][a-z-]*", line)]
            self.assertEqual(sorted(listed), sorted(bold), c)
            self.assertIn("--help", listed)
            self.assertIn("Examples:", text)

    def test_the_pages_are_well_formed(self):
        try:
            subprocess.run(["mandoc", "-h"], capture_output=True)
        except FileNotFoundError:
            harness.skip_line("lint of the manual pages (mandoc is not installed)")
            return
        for c in [None] + self.commands:
            page = paceline("man", *([c] if c else [])).stdout
            lint = subprocess.run(["mandoc", "-T", "lint", "-W", "error"], input=page, capture_output=True, text=True)
            self.assertEqual(lint.stdout, "", c)

    def test_completion_is_accepted_by_its_shell(self):
        script = paceline("completion", "bash").stdout
        self.assertEqual(subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr, "")
        words = subprocess.run(["bash", "-c", script + "\nCOMP_WORDS=(paceline serve --mod); COMP_CWORD=2; _paceline; echo ${COMPREPLY[@]}"], text=True, capture_output=True).stdout
        self.assertEqual(words.split(), ["--model", "--model-draft"])
        self.assertIn("serve", paceline("completion", "zsh").stdout)
        self.assertIn("complete -c paceline", paceline("completion", "fish").stdout)

    def test_errors_name_what_was_wrong(self):
        for words, code, text in (
            (["serv"], 64, "did you mean serve?"),
            (["run", "-m", "x", "-p", "hi", "--no-local"], 64, "--node"),
            (["run", "--temprature", "1"], 64, "did you mean --temperature?"),
            (["run", "-n", "many", "-m", "x"], 64, "not an integer"),
            (["run", "-m"], 64, "needs a value"),
            (["run"], 64, "-m FILE"),
            (["run", "-m", "/nonexistent/model.gguf", "-p", "x"], 66, "/nonexistent/model.gguf"),
            (["gguf", "dump", "/etc/passwd"], 65, "/etc/passwd"),
            (["node", "--mem", "lots", "--join", "x"], 64, "--mem"),
            (["node", "--join", "10.0.0.1:99999#00"], 64, "port"),
            (["serve", "-m", "x", "--plain", "--listen", "0.0.0.0:1"], 77, "--plain"),
            (["completion", "tcsh"], 64, "tcsh"),
            (["status", "--url", "http://127.0.0.1:1"], 76, "127.0.0.1"),
        ):
            r = paceline(*words)
            self.assertEqual((r.returncode, text in r.stderr), (code, True), "%s: %d %s" % (words, r.returncode, r.stderr))
            self.assertTrue(r.stderr.startswith("paceline: "), r.stderr)

    def test_keygen_writes_a_private_key_and_does_not_overwrite(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "key")
            first = paceline("keygen", "--out", path)
            self.assertRegex(first.stdout, r"^[0-9a-f]{64}\n$")
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            self.assertNotEqual(paceline("keygen", "--out", path).returncode, 0)
            self.assertEqual(paceline("keygen", "--out", path, "--force").returncode, 0)

    def test_a_model_can_be_looked_at_and_tokenized(self):
        with tempfile.TemporaryDirectory() as d:
            model = harness.fixture_model(d)
            self.assertIn("general.architecture", paceline("gguf", "dump", model).stdout)
            self.assertIn("llama", paceline("gguf", "dump", "--json", model).stdout)
            self.assertTrue({"llama", "gemma3", "qwen3"} <= set(paceline("gguf", "archs").stdout.split()))
            ids = paceline("tokenize", "-m", model, "-p", "hello", "--ids").stdout.split()
            self.assertTrue(ids and all(i.isdigit() for i in ids))
            self.assertEqual(len(paceline("tokenize", "-m", model, "-p", "hello").stdout.splitlines()), len(ids))

    def test_tokens_go_back_to_the_same_bytes(self):
        with tempfile.TemporaryDirectory() as d:
            for kind in ([], ["vocab=spm"]):
                model = harness.fixture_model(d, *kind)
                for text in (b"hello world", b" <|im_start|>user\n  \xc3\xa9 \xff\x00\n<|im_end|> x ", b"", b" ", b"\n"):
                    def call(*words, given=b""):
                        r = subprocess.run([PACELINE, "tokenize", "-m", model, *words], input=given, capture_output=True, timeout=60)
                        self.assertEqual(r.returncode, 0, r.stderr)
                        return r.stdout
                    ids = call("--ids", given=text)
                    self.assertEqual(call("--detokenize", given=ids), text)
                    plain = call("--ids", "--no-special", given=text)
                    self.assertEqual(call("--detokenize", given=plain.replace(b" ", b", ")), text)
                    self.assertEqual(len(call(given=text).splitlines()), len(ids.split()))
                    self.assertLessEqual(len(call("--ids", "--no-bos", given=text).split()), len(ids.split()))
            for wrong, words in (("x", "not the id"), ("-1", "no token -1"), ("99999999", "no token"), ("1.5", "not the id")):
                r = subprocess.run([PACELINE, "tokenize", "-m", model, "--detokenize"], input=wrong, capture_output=True, text=True, timeout=60)
                self.assertNotEqual(r.returncode, 0)
                self.assertIn(words, r.stderr)

    def test_a_template_is_rendered(self):
        with tempfile.TemporaryDirectory() as d:
            def file(name, content):
                with open(os.path.join(d, name), "w") as f:
                    f.write(content)
                return f.name
            jinja = file("t.jinja", "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{ tools | tojson if tools }}{{ x }}"
                                    "{% if add_generation_prompt %}>{% endif %}")
            messages = file("m.json", json.dumps([{"role": "user", "content": "h\u00e9"}]))
            tools = file("tools.json", "[1]")

            def render(*words, ok=True, given=""):
                r = subprocess.run([PACELINE, "template", *words], input=given, capture_output=True, text=True, timeout=60)
                self.assertEqual(r.returncode == 0, ok, r.stderr)
                return r.stdout if ok else r.stderr
            self.assertEqual(render("--template", jinja, "--messages", messages), "[user] h\u00e9>")
            self.assertEqual(render("--template", jinja, "--messages", messages, "--no-generation-prompt", "--tools", tools, "--set", "x=\"y\"",
                                    "--set", "bos_token=\"<s>\""), "<s>[user] h\u00e9[1]y")
            self.assertEqual(render("--template", jinja, given="{\"messages\": [], \"x\": 7}"), "7>")
            model = harness.fixture_model(d)
            self.assertEqual(render("-m", model, "--messages", messages), "<|im_start|>user\nh\u00e9<|im_end|>\n<|im_start|>assistant\n")
            self.assertIn("NAME=JSON", render("--template", jinja, "--messages", messages, "--set", "x", ok=False))
            self.assertIn("line 1", render("--template", file("bad", "{{"), "--messages", messages, ok=False))
            self.assertIn("--template", render(ok=False))
            self.assertIn("not an array", render("--template", jinja, given="{}", ok=False))
            self.assertIn("absent", render("--template", jinja, "--messages", os.path.join(d, "absent"), ok=False))

    def test_run_answers_a_chat_and_a_raw_prompt(self):
        with tempfile.TemporaryDirectory() as d:
            model = harness.fixture_model(d)
            env = dict(os.environ, XDG_CONFIG_HOME=d, XDG_CACHE_HOME=d)
            for words in (["-p", "hello"], ["-p", "hello", "--no-conversation"], ["--temp", "0", "-sys", "be brief", "-p", "hello"], ["-p", "hello", "--no-pack"]):
                r = paceline("run", "-m", model, "-n", "8", "-c", "256", *words, env=env)
                self.assertEqual(r.returncode, 0, r.stderr)
                self.assertIn("tokens/s", r.stderr)
            r = subprocess.run([PACELINE, "run", "-m", model, "-n", "8", "-c", "256", "--no-conversation"], input="hello", capture_output=True, text=True, timeout=60, env=env)
            self.assertEqual(r.returncode, 0, r.stderr)
            r = paceline("run", "-m", model, "-p", "hello", "--mem", "64KiB", env=env)
            self.assertEqual(r.returncode, 73, r.stderr)

    def test_a_full_context_ends_the_answer_or_is_shifted(self):
        with tempfile.TemporaryDirectory() as d:
            model = harness.fixture_model(d)
            env = dict(os.environ, XDG_CONFIG_HOME=d, XDG_CACHE_HOME=d)
            words = ["run", "-m", model, "-c", "64", "-n", "200", "--ignore-eos", "--no-conversation", "--temp", "1", "--seed", "5", "-p", "hello"]
            plain = paceline(*words, env=env)
            shifted = [paceline(*words, "--context-shift", "--keep", "-1", *more, env=env) for more in ([], ["-ub", "3"], ["--spec-type", "ngram"])]
            n = [int(re.search(r"generated: (\d+)", r.stderr)[1]) for r in [plain] + shifted]
            self.assertLess(n[0], 64)
            self.assertEqual(n[1:], [200, 200, 200])
            self.assertTrue(shifted[0].stdout.startswith(plain.stdout[:-1]))
            self.assertEqual(shifted[1].stdout, shifted[0].stdout)
            self.assertEqual(shifted[2].stdout, shifted[0].stdout)

    def test_memory_is_what_was_planned_and_overcommit_runs_what_does_not_fit(self):
        with tempfile.TemporaryDirectory() as d:
            model = os.path.join(d, "wide.gguf")
            subprocess.run([os.environ["PACELINE_MAKE_MODEL"], model, "embd=256", "ff=1536", "layers=8", "type=F32"], check=True)
            env = dict(os.environ, XDG_CONFIG_HOME=d, XDG_CACHE_HOME=d)
            words = ["run", "-m", model, "-n", "4", "-c", "256", "-p", "hello", "--temp", "0", "--no-conversation"]
            first = paceline(*words, env=env)
            self.assertEqual(first.returncode, 0, first.stderr)
            for way in ([], ["--no-mmap"], ["--mlock"], ["--no-pack"]):
                p = subprocess.Popen([PACELINE, *words, *way], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
                out = p.stdout.read().decode()
                _, status, usage = os.wait4(p.pid, 0)
                p.returncode = os.waitstatus_to_exitcode(status)
                p.stdout.close()
                self.assertEqual((p.returncode, out), (0, first.stdout), way)
                # The file's pages and their copy may be there at once; and a sanitizer's shadow is memory too.
                if way != ["--no-mmap"] and os.environ.get("PACELINE_TEST_SANITIZED") != "1":
                    # weights, 8 MiB for a KV cache and buffers of this size, and what is allowed beside them
                    self.assertLess(usage.ru_maxrss * 1024, os.path.getsize(model) + (8 << 20) + (32 << 20), way)
            r = paceline(*words, "--mem", "36MiB", env=env)
            self.assertEqual(r.returncode, 73, r.stderr)
            r = paceline(*words, "--mem", "36MiB", "--overcommit", env=env)
            self.assertEqual((r.returncode, r.stdout), (0, first.stdout), r.stderr)
            self.assertIn("larger than memory", r.stderr)

    def test_a_graph_is_printed_and_a_run_is_profiled(self):
        with tempfile.TemporaryDirectory() as d:
            model = harness.fixture_model(d)
            env = dict(os.environ, XDG_CONFIG_HOME=d, XDG_CACHE_HOME=d)
            text = paceline("run", "-m", model, "--dump-graph").stdout
            self.assertRegex(text, r"swiglu F32 \[\d+, 1, 1, 1\] <- .* \| group \d+, results")
            self.assertNotIn("group", paceline("run", "-m", model, "--dump-graph", "--no-fuse").stdout)
            self.assertRegex(paceline("serve", "-m", model, "--dump-graph=text", "-ub", "7").stdout, r"mul_mat F32 \[\d+, 7, 1, 1\]")
            dot = paceline("run", "-m", model, "--dump-graph=dot").stdout
            self.assertTrue(dot.startswith("digraph") and dot.count("{") == dot.count("}") and dot.count("subgraph") > 3)
            r = paceline("run", "-m", model, "--dump-graph=svg")
            self.assertEqual((r.returncode, r.stdout), (64, ""))
            answers = set()
            for words in ([], ["--no-fuse"], ["--profile=" + d + "/trace.json"]):
                r = paceline("run", "-m", model, "-n", "8", "-c", "256", "--temp", "0", "-p", "hello", *words, env=env)
                self.assertEqual(r.returncode, 0, r.stderr)
                answers.add(r.stdout)
            self.assertEqual(len(answers), 1)
            self.assertRegex(r.stderr, r"profile: \d+ runs of graphs")
            self.assertRegex(r.stderr, r"(?m)^mul_mat x2 .* \+ swiglu +\d+")
            events = json.loads(pathlib.Path(d, "trace.json").read_text())
            self.assertEqual({e["ph"] for e in events}, {"M", "X"})
            self.assertTrue(all({"name", "ts", "dur", "pid", "tid"} <= e.keys() for e in events if e["ph"] == "X"))


if __name__ == "__main__":
    harness.main()
