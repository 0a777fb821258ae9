"""Tool calls and reasoning over the HTTP API, by models that say what the test tells them."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
import parrot
from harness import ApiError, Cluster

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
SAY = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% for c in m.tool_calls %}call {{ c.function.name }} {{ c.function.arguments | tojson }}\n{% endfor %}{% endfor %}"
GO = "{{ '<|go' ~ say ~ '|>' }}"
QWEN = SAY + "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}{% if say == 9 %}<think></think>{% endif %}" + GO
HARMONY = SAY + "{{ tools | tojson if tools }}{% if say == 9 %}<|channel|><|message|>{% endif %}" + GO
CALL = ["<tool_call>", "\n{\"name\": \"wea", "ther\", \"arguments\": {\"city\": ", "\"Oslo\"}}", "\n</tool_call>"]
HARMONY_MARKS = ("<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>")


class Tools(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="paceline-tools-")
        self.addCleanup(self.dir.cleanup)

    def serve(self, replies, template, control=()):
        model = os.path.join(self.dir.name, "parrot.gguf")
        parrot.write(model, replies, template, control)
        c = Cluster(model, serve=["-c", "2048"])
        self.addCleanup(c.stop)
        return c

    def ask(self, c, say, **extra):
        """The message and why it ended; the same of a stream is asserted to be equal."""
        body = dict({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 64, "chat_template_kwargs": {"say": say}}, **extra)
        choice = json.loads(c.request("POST", "/v1/chat/completions", body))["choices"][0]
        text = c.request("POST", "/v1/chat/completions", dict(body, stream=True)).decode()
        events = [json.loads(p[6:]) for p in text.split("\n\n") if p and p != "data: [DONE]"]
        deltas = [e["choices"][0] for e in events]
        message = choice["message"]
        for key in ("content", "reasoning_content"):
            self.assertEqual("".join(d["delta"].get(key) or "" for d in deltas), message.get(key) or "", key)
        calls = [call for d in deltas for call in d["delta"].get("tool_calls", [])]
        self.assertEqual([call["index"] for call in calls], list(range(len(calls))))
        self.assertEqual([call["function"] for call in calls], [call["function"] for call in message.get("tool_calls", [])])
        self.assertEqual(deltas[-1]["finish_reason"], choice["finish_reason"])
        return message, choice["finish_reason"]

    def test_a_call_in_tags_and_reasoning_come_apart(self):
        c = self.serve([["<think>", "\nHm", "m.\n", "</think>", "\n\nLet me", " see. "] + CALL, ["No", " call: ", "<tool_call>", "x", "</tool_call>"],
                        CALL + [" and"] + [p + " " if p.startswith("\"") else p for p in CALL]], QWEN)
        message, why = self.ask(c, 0, tools=TOOLS)
        self.assertEqual(message["reasoning_content"], "Hmm.")
        self.assertEqual(message["content"], "Let me see.")
        self.assertEqual(len(message["tool_calls"]), 1)
        call = message["tool_calls"][0]
        self.assertEqual((call["type"], call["function"]["name"]), ("function", "weather"))
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Oslo"})
        self.assertTrue(call["id"].startswith("call_"))
        self.assertEqual(why, "tool_calls")
        message, why = self.ask(c, 0)
        self.assertNotIn("tool_calls", message)
        self.assertIn("<tool_call>", message["content"])
        self.assertEqual((message["reasoning_content"], why), ("Hmm.", "stop"))
        message, _ = self.ask(c, 0, tools=TOOLS, tool_choice="none")
        self.assertNotIn("tool_calls", message)
        message, _ = self.ask(c, 0, reasoning_format="none")
        self.assertIn("<think>", message["content"])
        message, why = self.ask(c, 1, tools=TOOLS)
        self.assertEqual((message["content"], why), ("No call: <tool_call>x</tool_call>", "stop"))
        message, _ = self.ask(c, 2, tools=TOOLS)
        self.assertEqual(len(message["tool_calls"]), 2)
        self.assertEqual(message["content"], "and")
        message, _ = self.ask(c, 2, tools=TOOLS, parallel_tool_calls=False)
        self.assertEqual(len(message["tool_calls"]), 1)

    def test_results_go_back_to_the_model(self):
        c = self.serve([["ok"]], QWEN)
        turns = [{"role": "user", "content": "hi"},
                 {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}}]},
                 {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
        message, _ = self.ask(c, 0, tools=TOOLS, messages=turns)
        self.assertEqual(message["content"], "ok")
        turns[1]["tool_calls"][0]["function"]["arguments"] = "{"
        with self.assertRaises(ApiError) as caught:
            self.ask(c, 0, tools=TOOLS, messages=turns)
        self.assertEqual(caught.exception.status, 400)
        for wrong in ({"tools": {}}, {"tools": [{"type": "web"}]}, {"tools": [{"type": "function"}]}, {"tool_choice": "required"}, {"parallel_tool_calls": 1},
                      {"documents": 1}, {"chat_template_kwargs": []}):
            with self.assertRaises(ApiError) as caught:
                self.ask(c, 0, **wrong)
            self.assertEqual(caught.exception.status, 400, wrong)

    def test_harmony_marks_are_control_tokens(self):
        c = self.serve([["<|channel|>", "analysis", "<|message|>", "Think.", "<|end|>", "<|start|>", "assistant", "<|channel|>", "commentary to=functions.weather ",
                         "<|constrain|>", "json", "<|message|>", "{\"city\": \"Oslo\"}", "<|call|>"],
                        ["<|channel|>", "final", "<|message|>", "Hello", " <b>", "<|return|>"]], HARMONY, HARMONY_MARKS)
        message, why = self.ask(c, 0, tools=TOOLS)
        self.assertEqual((message["reasoning_content"], message["content"], why), ("Think.", None, "tool_calls"))
        self.assertEqual(message["tool_calls"][0]["function"], {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"})
        message, why = self.ask(c, 1)
        self.assertEqual((message["content"], why), ("Hello <b>", "stop"))

    def test_a_template_without_tools_gets_them_in_the_system_message(self):
        c = self.serve([["{\"name\": \"weather\", ", "\"arguments\": {\"city\": \"Oslo\"}}"], ["{\"name\": ", "\"x\"}"]],
                       "{% if say == 0 and (messages[0].role != 'system' or 'weather' not in messages[0].content or 'Be kind' not in messages[0].content) %}"
                       "{{ raise_exception('not told') }}{% endif %}" + GO)
        kind = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "hi"}]
        message, why = self.ask(c, 0, tools=TOOLS, messages=kind)
        self.assertEqual(message["tool_calls"][0]["function"]["name"], "weather")
        self.assertEqual((message["content"], why), (None, "tool_calls"))
        message, _ = self.ask(c, 1, tools=TOOLS)
        self.assertEqual(message["content"], "{\"name\": \"x\"}")


if __name__ == "__main__":
    harness.main()
