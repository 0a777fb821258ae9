"""The HTTP front, asked as real clients ask it; on a tiny generated model."""
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
from harness import ApiError, Cluster

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="paceline-api-")
        cls.model = harness.fixture_model(cls.dir.name)
        cls.c = Cluster(cls.model, serve=["-c", "256", "-np", "2", "--alias", "tiny"])

    @classmethod
    def tearDownClass(cls):
        cls.c.stop()
        cls.dir.cleanup()

    def post(self, path, body, **kw):
        return json.loads(self.c.request("POST", path, body, **kw))

    def refused(self, path, body, status, *words):
        with self.assertRaises(ApiError) as caught:
            self.c.request("POST", path, body)
        self.assertEqual(caught.exception.status, status, caught.exception.body)
        error = json.loads(caught.exception.body)["error"]
        for word in words:
            self.assertIn(word, error["message"])
        return error

    def events(self, path, body):
        text = self.c.request("POST", path, dict(body, stream=True)).decode()
        parts = [p for p in text.split("\n\n") if p]
        self.assertTrue(all(p.startswith("data: ") for p in parts), text)
        self.assertEqual(parts[-1], "data: [DONE]")
        return [json.loads(p[6:]) for p in parts[:-1]]

    def test_a_chat_answer_has_the_shape_of_the_openai_api(self):
        v = self.post("/v1/chat/completions", CHAT)
        self.assertEqual(v["object"], "chat.completion")
        self.assertEqual(v["model"], "tiny")
        self.assertEqual(v["choices"][0]["message"]["role"], "assistant")
        self.assertIn(v["choices"][0]["finish_reason"], ("stop", "length"))
        self.assertEqual(v["usage"]["total_tokens"], v["usage"]["prompt_tokens"] + v["usage"]["completion_tokens"])
        self.assertLessEqual(v["usage"]["completion_tokens"], 8)

    def test_a_stream_gives_the_same_text_as_the_whole_answer(self):
        whole = self.post("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]
        events = self.events("/v1/chat/completions", dict(CHAT, stream_options={"include_usage": True}))
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
        text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
        self.assertEqual(text, whole)
        self.assertIn(events[-2]["choices"][0]["finish_reason"], ("stop", "length"))
        self.assertEqual(events[-1]["choices"], [])
        self.assertGreater(events[-1]["usage"]["prompt_tokens"], 0)

    def test_a_prompt_that_was_seen_is_not_computed_again(self):
        ask = {"prompt": [(i * 7) % 50 + 3 for i in range(90)], "max_tokens": 8, "temperature": 0}
        first = self.post("/v1/completions", ask)
        again = self.post("/v1/completions", ask)
        self.assertEqual(again["choices"][0]["text"], first["choices"][0]["text"])
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 89)
        self.assertEqual(again["timings"]["cache_n"] + again["timings"]["prompt_n"], 90)

    def test_a_completion_may_be_given_as_tokens(self):
        by_text = self.post("/v1/completions", {"prompt": "hello", "max_tokens": 6, "temperature": 0, "logprobs": 2})
        choice = by_text["choices"][0]
        self.assertEqual(by_text["object"], "text_completion")
        self.assertEqual(len(choice["logprobs"]["tokens"]), len(choice["logprobs"]["token_logprobs"]))
        self.assertTrue(all(p <= 0 for p in choice["logprobs"]["token_logprobs"]))
        self.assertTrue(all(len(t) <= 2 for t in choice["logprobs"]["top_logprobs"]))
        self.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2})
        self.refused("/v1/completions", {"prompt": [1, 10 ** 9]}, 400, "token id")

    def test_logprobs_of_the_chat_api(self):
        v = self.post("/v1/chat/completions", dict(CHAT, logprobs=True, top_logprobs=3))
        content = v["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), v["usage"]["completion_tokens"])
        self.assertEqual(len(content[0]["top_logprobs"]), 3)
        self.assertAlmostEqual(content[0]["logprob"], content[0]["top_logprobs"][0]["logprob"], places=5)

    def test_the_same_seed_gives_the_same_text(self):
        body = dict(CHAT, temperature=1.5, seed=42, max_tokens=16)
        texts = {self.post("/v1/chat/completions", body)["choices"][0]["message"]["content"] for _ in range(3)}
        self.assertEqual(len(texts), 1)
        other = {self.post("/v1/chat/completions", dict(body, seed=s))["choices"][0]["message"]["content"] for s in range(8)}
        self.assertGreater(len(other), 1)

    def test_several_choices_differ_and_each_is_reproducible(self):
        body = dict(CHAT, temperature=1.5, seed=42, max_tokens=12, n=3)
        v = self.post("/v1/chat/completions", body)
        texts = [c["message"]["content"] for c in v["choices"]]
        self.assertEqual([c["index"] for c in v["choices"]], [0, 1, 2])
        self.assertEqual(len(set(texts)), 3)
        self.assertGreater(v["usage"]["completion_tokens"], 12)
        self.assertEqual(texts[0], self.post("/v1/chat/completions", dict(body, n=1))["choices"][0]["message"]["content"])
        streamed = ["", "", ""]
        for e in self.events("/v1/chat/completions", body):
            for c in e["choices"]:
                streamed[c["index"]] += c["delta"].get("content") or ""
        self.assertEqual(streamed, texts)
        self.assertEqual(len({c["text"] for c in self.post("/v1/completions", {"prompt": "hello", "max_tokens": 12, "n": 4})["choices"]}), 4)

    def test_a_bias_bans_and_forces_tokens(self):
        ask = {"prompt": "hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True, "logprobs": 0}
        tokens = self.post("/v1/completions", ask)["choices"][0]["logprobs"]["tokens"]
        forced = self.post("/v1/completions", dict(ask, logit_bias={"40": 1000}))["choices"][0]["logprobs"]["tokens"]
        self.assertEqual(len(set(forced)), 1)
        banned = self.post("/v1/completions", dict(ask, logit_bias=[[40, 1000], [40, False]]))["choices"][0]["logprobs"]["tokens"]
        self.assertEqual(banned, tokens)
        self.assertNotEqual(self.post("/v1/completions", dict(ask, presence_penalty=1000))["choices"][0]["logprobs"]["tokens"], forced)

    def test_an_answer_keeps_to_its_schema(self):
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 3, "maximum": 5}}, "required": ["ok", "n"]}
        for form in ({"json_schema": schema}, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}):
            for seed in range(3):
                v = self.post("/v1/chat/completions", dict(CHAT, max_tokens=100, temperature=1.5, seed=seed, **form))
                answer = json.loads(v["choices"][0]["message"]["content"])
                self.assertIn(answer["n"], (3, 4, 5))
                self.assertIsInstance(answer["ok"], bool)
                self.assertEqual(v["choices"][0]["finish_reason"], "stop")
        v = self.post("/v1/completions", {"prompt": "hello", "grammar": 'root ::= "yes" | "no"', "n": 4})
        self.assertTrue(all(c["text"] in ("yes", "no") for c in v["choices"]), v)

    def test_a_stop_string_ends_the_answer_and_is_not_in_it(self):
        body = {"prompt": "hello", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        text = self.post("/v1/completions", body)["choices"][0]["text"]
        self.assertGreater(len(text), 6)
        stop = text[3:5]
        cut = self.post("/v1/completions", dict(body, stop=[stop]))["choices"][0]
        self.assertEqual(cut["text"], text[: text.index(stop)])
        self.assertEqual(cut["finish_reason"], "stop")
        streamed = "".join(e["choices"][0]["text"] for e in self.events("/v1/completions", dict(body, stop=stop)))
        self.assertEqual(streamed, cut["text"])

    def test_wrong_requests_are_told_what_is_wrong(self):
        self.refused("/v1/chat/completions", b"{", 400, "line 1")
        self.refused("/v1/chat/completions", b"[]", 400, "object")
        self.refused("/v1/chat/completions", {}, 400, "messages")
        self.refused("/v1/chat/completions", {"messages": []}, 400, "messages")
        self.refused("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "role")
        self.assertEqual(self.refused("/v1/chat/completions", dict(CHAT, temperature="hot"), 400, "temperature")["param"], "temperature")
        self.refused("/v1/chat/completions", dict(CHAT, temperature=-1), 400, "temperature")
        self.refused("/v1/chat/completions", dict(CHAT, top_p=2), 400, "top_p")
        self.refused("/v1/chat/completions", dict(CHAT, max_tokens=1.5), 400, "max_tokens")
        self.refused("/v1/chat/completions", dict(CHAT, stop=[""]), 400, "stop")
        self.refused("/v1/chat/completions", dict(CHAT, n=0), 400, "n")
        self.refused("/v1/chat/completions", dict(CHAT, n=33), 400, "n: must be an integer from 1 to 32")
        for field, value in (("xtc_probability", 2), ("typical_p", -1), ("mirostat", 3), ("dry_multiplier", -0.5), ("presence_penalty", "x"),
                             ("logit_bias", {"9999999": 1}), ("logit_bias", [[1, "x"]]), ("samplers", ["top_k", "tpo_p"]), ("banned_tokens", ["x"]),
                             ("dry_sequence_breakers", [""]), ("grammar", "root ::= ("), ("json_schema", {"not": {}}),
                             ("response_format", {"type": "xml"}), ("response_format", {"type": "json_schema", "json_schema": {}})):
            with self.subTest(field=field):
                self.assertEqual(self.refused("/v1/chat/completions", dict(CHAT, **{field: value}), 400, field)["param"], field)
        self.refused("/v1/chat/completions", dict(CHAT, json_schema={"properties": {"a": {"not": {}}}}), 400, "#/properties/a/not")
        self.refused("/v1/chat/completions", dict(CHAT, grammar="root ::= foo"), 400, "line 1, column 10")
        self.refused("/v1/chat/completions", dict(CHAT, grammar="root ::= \"a\"", json_schema={}), 400, "only one of")
        self.refused("/v1/chat/completions", dict(CHAT, tools=[{"type": "function"}]), 400, "tools", "name")
        self.refused("/v1/completions", {"prompt": ""}, 400, "prompt")
        self.refused("/v1/completions", {"prompt": "hello " * 2000}, 400, "256")
        self.refused("/v1/completions", {"prompt": "hello", "echo": True}, 400, "echo")

    def test_a_text_far_beyond_the_context_is_refused_before_it_is_tokenized(self):
        start = time.monotonic()
        self.refused("/v1/completions", {"prompt": "a" * 8000000}, 400, "8000000 bytes")
        self.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 8000000}]}, 400, "bytes are more")
        self.assertLess(time.monotonic() - start, 5)

    def test_content_may_come_in_parts(self):
        a = self.post("/v1/chat/completions", CHAT)
        b = self.post("/v1/chat/completions", dict(CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]))
        self.assertEqual(a["choices"], b["choices"])
        self.refused("/v1/chat/completions", dict(CHAT, messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "text")

    def test_paths_and_methods(self):
        self.assertEqual(self.c.get("/health"), {"status": "ok"})
        self.assertEqual([m["id"] for m in self.c.get("/v1/models")["data"]], ["tiny"])
        self.assertEqual(self.c.get("/v1/models/tiny")["id"], "tiny")
        with self.assertRaises(ApiError) as caught:
            self.c.get("/v1/models/other")
        self.assertEqual(caught.exception.status, 404)
        for method, path, status in (("GET", "/nothing", 404), ("GET", "/v1/completions", 405), ("DELETE", "/health", 405)):
            with self.assertRaises(ApiError) as caught:
                self.c.request(method, path)
            self.assertEqual(caught.exception.status, status)
        self.assertIn(b"paceline_up 1", self.c.request("GET", "/metrics"))

    def test_the_paths_of_llama_cpp(self):
        ids = self.post("/tokenize", {"content": "hello world", "with_pieces": True})["tokens"]
        self.assertEqual("".join(t["piece"] for t in ids).strip(), "hello world")
        tokens = [t["id"] for t in ids]
        self.assertEqual(self.post("/tokenize", {"content": "hello world"})["tokens"], tokens)
        self.assertEqual(self.post("/detokenize", {"tokens": tokens})["content"].strip(), "hello world")
        self.refused("/tokenize", {"content": 3}, 400, "content")
        self.refused("/tokenize", {"content": "a" * 2000000}, 400, "1048576")
        self.refused("/detokenize", {"tokens": [10 ** 9]}, 400, "token id")
        self.refused("/detokenize", [], 400, "object")
        props = self.c.get("/props")
        self.assertEqual(props["default_generation_settings"]["n_ctx"], 256)
        self.assertEqual(props["default_generation_settings"]["params"]["samplers"][0], "penalties")
        self.assertEqual((props["total_slots"], props["model_alias"]), (2, "tiny"))
        self.assertIn("hello", self.post("/apply-template", CHAT)["prompt"])
        self.refused("/v1/embeddings", {"input": "x"}, 501, "embeddings")

    def test_the_native_completion_of_llama_cpp(self):
        ask = {"prompt": "hello", "n_predict": 6, "temperature": 0, "n_probs": 2, "return_tokens": True, "ignore_eos": True}
        v = self.post("/completion", ask)
        self.assertEqual((v["stop"], v["stop_type"], v["tokens_predicted"], len(v["tokens"])), (True, "limit", 6, 6))
        self.assertEqual(len(v["completion_probabilities"][0]["top_logprobs"]), 2)
        self.assertEqual(v["generation_settings"]["temperature"], 0)
        self.assertEqual(v["prompt"], "hello")
        text = self.c.request("POST", "/completion", dict(ask, stream=True)).decode()
        events = [json.loads(p[6:]) for p in text.split("\n\n") if p]
        self.assertEqual("".join(e["content"] for e in events), v["content"])
        self.assertEqual([t for e in events for t in e["tokens"]], v["tokens"])
        self.assertEqual([e["stop"] for e in events], [False] * (len(events) - 1) + [True])
        stop = v["content"][2:4]
        cut = self.post("/completion", dict(ask, stop=[stop]))
        self.assertEqual((cut["stop_type"], cut["stopping_word"]), ("word", stop))
        self.assertEqual(cut["content"], v["content"][: v["content"].index(stop)])

    def headers(self, method, path, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.c.http_port, timeout=10)
        c.request(method, path, headers=headers)
        r = c.getresponse()
        r.read()
        c.close()
        return r

    def test_pages_of_this_machine_may_ask_and_others_may_not(self):
        for origin, allowed in (("http://localhost:3000", True), ("https://127.0.0.1", True), ("https://example.org", False), ("null", False),
                                ("http://localhost.example.org", False)):
            r = self.headers("GET", "/v1/models", Origin=origin)
            self.assertEqual(r.getheader("Access-Control-Allow-Origin"), origin if allowed else None)
            r = self.headers("OPTIONS", "/v1/chat/completions", Origin=origin, **{"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"})
            self.assertEqual((r.status, r.getheader("Access-Control-Allow-Headers")), (200, "authorization,x-stainless-os" if allowed else None))
        self.assertIsNone(self.headers("GET", "/v1/models").getheader("Access-Control-Allow-Origin"))

    def raw(self, data, wait=2):
        with socket.create_connection(("127.0.0.1", self.c.http_port)) as s:
            s.settimeout(wait)
            s.sendall(data)
            got = b""
            try:
                while True:
                    piece = s.recv(65536)
                    if not piece:
                        break
                    got += piece
            except socket.timeout:
                pass
            return got

    def test_rubbish_gets_an_answer_and_harms_nobody(self):
        self.assertTrue(self.raw(b"\x16\x03\x01 not http at all\r\n\r\n").startswith(b"HTTP/1.1 400"))
        self.assertTrue(self.raw(b"GET /health HTTP/1.1\r\nX: " + b"a" * 100000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431"))
        self.assertTrue(self.raw(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n").startswith(b"HTTP/1.1 413"))
        self.assertTrue(self.raw(b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nzz").startswith(b"HTTP/1.1 400"))
        self.assertEqual(self.c.get("/health"), {"status": "ok"})

    def test_pipelined_requests_are_answered_in_order(self):
        one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        body = json.dumps({"prompt": "hello", "max_tokens": 2}).encode()
        long = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        got = self.raw(one + long + b"GET /nothing HTTP/1.1\r\n\r\n" + one)
        codes = re.findall(rb"HTTP/1\.1 (\d+)", got)
        self.assertEqual(codes, [b"200", b"200", b"404", b"200"])

    def test_a_client_that_goes_away_frees_its_slot(self):
        body = json.dumps({"prompt": "hello", "max_tokens": 200, "stream": True, "ignore_eos": True}).encode()
        for _ in range(6):  # more than there are slots
            s = socket.create_connection(("127.0.0.1", self.c.http_port))
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            s.recv(100)
            s.close()
        deadline = time.monotonic() + 10
        while self.c.get("/v1/cluster")["requests"]["open"] > 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.c.get("/v1/cluster")["requests"]["open"], 0)

    def test_many_clients_at_once(self):
        answers = self.c.complete_many([("hello", i) for i in range(24)], 12)
        self.assertEqual([a for a in answers if isinstance(a, Exception)], [])


class Keys(unittest.TestCase):
    def test_api_keys_and_tls(self):
        with tempfile.TemporaryDirectory() as d:
            model = harness.fixture_model(d)
            keys = os.path.join(d, "keys")
            with open(keys, "w") as f:
                f.write("first\nsecond\n")
            with Cluster(model, serve=["--api-key-file", keys]) as c:
                for headers, good in (((), False), ((("Authorization", "Bearer wrong"),), False), ((("Authorization", "Bearer second"),), True)):
                    if good:
                        c.request("GET", "/v1/models", headers=headers)
                        continue
                    with self.assertRaises(ApiError) as caught:
                        c.request("GET", "/v1/models", headers=headers)
                    self.assertEqual(caught.exception.status, 401)
                out = subprocess.run([harness.PACELINE, "status", "--url", "http://127.0.0.1:%d" % c.http_port, "--api-key", "first"], capture_output=True, text=True, timeout=30)
                self.assertEqual(out.returncode, 0, out.stderr)
                self.assertIn("n0", out.stdout)
            cert, key = os.path.join(d, "cert.pem"), os.path.join(d, "key.pem")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj",
                            "/CN=localhost"], check=True, capture_output=True)
            import ssl
            with Cluster(model, serve=["--ssl-cert-file", cert, "--ssl-key-file", key], wait=False) as c:
                context = ssl.create_default_context(cafile=cert)
                context.check_hostname = False
                deadline = time.monotonic() + 30
                while True:
                    h = http.client.HTTPSConnection("127.0.0.1", c.http_port, context=context, timeout=10)
                    h.request("GET", "/health")
                    r = h.getresponse()
                    r.read()
                    if r.status != 200:
                        h.close()
                    if r.status == 200 or time.monotonic() > deadline:
                        break
                    time.sleep(0.1)
                self.assertEqual(r.status, 200)
                body = json.dumps({"prompt": "hello " * 20, "max_tokens": 20, "stream": True})
                h.request("POST", "/v1/completions", body)
                self.assertTrue(h.getresponse().read().endswith(b"data: [DONE]\n\n"))
                h.close()


if __name__ == "__main__":
    harness.main()
