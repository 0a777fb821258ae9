#!/usr/bin/env python3
"""Golden logits of tiny models of every architecture, computed by transformers.

    archs.py [--llama-cpp] OUTDIR [CASE...]

Each case is a function below: it makes a tiny config and says for each parameter of the model in transformers from which GGUF tensors it
comes, so the conventions of the format (names, permuted rows, norms plus one, fused matrices) are written down as code. The weights are no
files: element i of a tensor is a function of the tensor's name and i (values()), which tests/contract/test_arch.c computes as well. Only
metadata, the list of tensors, the tokens and the logits at every position are written, to OUTDIR/CASE.json.

--llama-cpp: the same file through llama-cpp-python, whose logits must agree; this tells that the file is what others understand.

The committed files were written with Python 3.11.7, torch 2.15.0, transformers 5.24.0, numpy 2.4.6, gguf 0.19.0 (llama-cpp-python 0.3.36).
"""

import json
import os
import sys
import tempfile

import numpy as np
import torch
import transformers

N_TOKENS = 45  # more than one page of the cache, and more than a page behind the windows below
N_VOCAB = 49
CASES = {}


def case(f):
    CASES[f.__name__.replace("_", "-")] = f
    return f


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def values(name, n, mean, spread):
    """n numbers in mean - spread/2 .. mean + spread/2; each step is exact or rounded once in float32, so that C gives the same bits."""
    seed = 0xCBF29CE484222325
    for c in name.encode():
        seed = (seed ^ c) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = mix(np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    unit = (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24) - np.float32(0.5)
    return unit * np.float32(spread) + np.float32(mean)


class Case:
    """What a case function fills in. g(...) declares a GGUF tensor (shape as in torch) and gives its values."""

    def __init__(self, arch):
        self.arch, self.keys, self.tensors, self.made, self.model, self.params = arch, {}, [], {}, None, {}
        self.add("general.architecture", arch)

    def add(self, key, value):
        self.keys[key] = value

    def set(self, **keys):
        for k, v in keys.items():
            self.keys[self.arch + "." + k.replace("__", ".")] = v

    def g(self, name, shape, mean=None, spread=None):
        if name not in self.made:
            if len(shape) == 1:  # norms and biases
                mean = (0.0 if name.endswith("bias") else 1.0) if mean is None else mean
                spread = 0.5 if spread is None else spread
            elif spread is None:  # deviation 1 / sqrt(columns); 1 for embeddings
                spread = 3.4641 if "embd" in name else round(float(np.sqrt(12.0 / shape[-1])), 4)
            mean = mean or 0.0
            n = int(np.prod(shape))
            self.tensors.append([name, list(reversed(shape)), mean, spread])
            self.made[name] = torch.from_numpy(values(name, n, mean, spread).reshape(shape))
        return self.made[name]

    def p(self, name, value):
        self.params[name] = value


def unpermute(w, n_head):
    """Rows of q and k as transformers has them (couples half a head apart), from GGUF's order for couples of neighbours."""
    return w.reshape(n_head, w.shape[0] // n_head // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def same(w, n_head):
    return w


# --- The graph that most decoders share ---


def sizes(c, embd=48, head=4, head_kv=2, d=12, ff=80, layer=3, ctx=128):
    """Widths that are no multiples of a vector or a block, grouped queries, three layers for three stages."""
    c.embd, c.head, c.head_kv, c.d, c.ff, c.layer, c.ctx = embd, head, head_kv, d, ff, layer, ctx
    c.set(block_count=layer, context_length=ctx, embedding_length=embd, feed_forward_length=ff, attention__head_count=head)
    if head_kv != head:
        c.set(attention__head_count_kv=head_kv)
    if d * head != embd:
        c.set(attention__key_length=d, attention__value_length=d)
    c.base = dict(
        vocab_size=N_VOCAB,
        hidden_size=embd,
        intermediate_size=ff,
        num_hidden_layers=layer,
        num_attention_heads=head,
        num_key_value_heads=head_kv,
        max_position_embeddings=ctx,
    )


def rms(c, eps=1e-5):
    c.set(attention__layer_norm_rms_epsilon=eps)
    return dict(rms_norm_eps=eps)


def rope(c, base=10000.0, **more):
    c.set(rope__freq_base=base)
    return dict(rope_parameters=dict(rope_type="default", rope_theta=base) | more)


def llama_like(c, permuted=unpermute, bias=(), tied=False, pre_norm=True, qk_norm=None, post_attn=None, post_ffn=None, plus_one=False):
    """bias: of which of q, k, v, o. post_*: the parameter's name in a layer. qk_norm: "head" or "row"."""
    norm = (lambda w: w - 1) if plus_one else (lambda w: w)
    c.p("model.embed_tokens.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    for i in range(c.layer):
        hf, gg = f"model.layers.{i}.", f"blk.{i}."
        if pre_norm:
            c.p(hf + "input_layernorm.weight", norm(c.g(gg + "attn_norm.weight", (c.embd,))))
        rows = {"q": c.d * c.head, "k": c.d * c.head_kv, "v": c.d * c.head_kv}
        n_head = {"q": c.head, "k": c.head_kv}
        for m in "qkv":
            order = permuted if m != "v" else same
            c.p(hf + f"self_attn.{m}_proj.weight", order(c.g(gg + f"attn_{m}.weight", (rows[m], c.embd)), n_head.get(m)))
            if m in bias:
                c.p(hf + f"self_attn.{m}_proj.bias", order(c.g(gg + f"attn_{m}.bias", (rows[m],)), n_head.get(m)))
        c.p(hf + "self_attn.o_proj.weight", c.g(gg + "attn_output.weight", (c.embd, rows["q"])))
        if "o" in bias:
            c.p(hf + "self_attn.o_proj.bias", c.g(gg + "attn_output.bias", (c.embd,)))
        for m in "qk" if qk_norm else "":
            c.p(hf + f"self_attn.{m}_norm.weight", norm(c.g(gg + f"attn_{m}_norm.weight", (c.d if qk_norm == "head" else rows[m],))))
        if post_attn:
            c.p(hf + post_attn + ".weight", norm(c.g(gg + "post_attention_norm.weight", (c.embd,))))
        if pre_norm:
            name = "pre_feedforward_layernorm" if post_ffn else "post_attention_layernorm"
            c.p(hf + name + ".weight", norm(c.g(gg + "ffn_norm.weight", (c.embd,))))
        c.p(hf + "mlp.gate_proj.weight", c.g(gg + "ffn_gate.weight", (c.ff, c.embd)))
        c.p(hf + "mlp.up_proj.weight", c.g(gg + "ffn_up.weight", (c.ff, c.embd)))
        c.p(hf + "mlp.down_proj.weight", c.g(gg + "ffn_down.weight", (c.embd, c.ff)))
        if post_ffn:
            c.p(hf + post_ffn + ".weight", norm(c.g(gg + "post_ffw_norm.weight", (c.embd,))))
    c.p("model.norm.weight", norm(c.g("output_norm.weight", (c.embd,))))
    c.p("lm_head.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)) if tied else c.g("output.weight", (N_VOCAB, c.embd)))


# --- The cases ---


@case
def llama():
    c = Case("llama")
    sizes(c)
    c.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**c.base, **rms(c), **rope(c), attention_bias=True))
    llama_like(c, bias="qkvo")
    return c


@case
def llama3_rope():
    """Llama 3.1's scaling: each frequency has a factor, which the converter writes as a tensor. Here the factors come first and the
    model's frequencies follow from them."""
    c = Case("llama")
    sizes(c, embd=64, d=16)
    c.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**c.base, **rms(c), **rope(c, 500000.0), tie_word_embeddings=True))
    factors = c.g("rope_freqs.weight", (c.d // 2,), 4.5, 7.0)
    c.model.model.rotary_emb.inv_freq /= factors
    llama_like(c, tied=True)
    return c


@case
def qwen2():
    c = Case("qwen2")
    sizes(c)
    c.model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**c.base, **rms(c, 1e-6), **rope(c, 1000000.0)))
    llama_like(c, same, bias="qkv")
    return c


@case
def qwen3():
    c = Case("qwen3")
    sizes(c, d=20)
    c.model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**c.base, **rms(c, 1e-6), **rope(c, 1000000.0), head_dim=20))
    llama_like(c, same, qk_norm="head")
    return c


@case
def smollm3():
    c = Case("smollm3")
    sizes(c, layer=5)
    c.model = transformers.SmolLM3ForCausalLM(
        transformers.SmolLM3Config(**c.base, **rms(c, 1e-6), **rope(c, 2000000.0), no_rope_layers=[1, 1, 1, 0, 1], pad_token_id=None)
    )
    llama_like(c, tied=True)
    return c


@case
def olmo2():
    c = Case("olmo2")
    sizes(c)
    c.model = transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**c.base, **rms(c, 1e-6), **rope(c, 500000.0)))
    llama_like(c, same, pre_norm=False, qk_norm="row", post_attn="post_attention_layernorm", post_ffn="post_feedforward_layernorm")
    return c


@case
def granite():
    c = Case("granite")
    sizes(c)
    c.set(embedding_scale=6.0, residual_scale=0.22, attention__scale=0.125, logit_scale=5.0)
    c.model = transformers.GraniteForCausalLM(
        transformers.GraniteConfig(
            **c.base, **rms(c), **rope(c), embedding_multiplier=6.0, residual_multiplier=0.22, attention_multiplier=0.125, logits_scaling=5.0
        )
    )
    llama_like(c, tied=True)
    return c


@case
def mistral3():
    c = Case("mistral3")
    sizes(c)
    c.model = transformers.MistralForCausalLM(transformers.MistralConfig(**c.base, **rms(c), **rope(c), sliding_window=None, head_dim=12))
    llama_like(c)
    return c


# --- Running them ---


def tokens():
    return [(i * 31 + 7 + i * i) % N_VOCAB for i in range(N_TOKENS)]


def logits_of(c):
    state = c.model.state_dict()
    missing, unknown = sorted(set(state) - set(c.params)), sorted(set(c.params) - set(state))
    assert not missing and not unknown, (missing, unknown)
    for name, value in c.params.items():
        assert state[name].shape == value.shape, (name, state[name].shape, value.shape)
    c.model.load_state_dict({name: value.clone().contiguous() for name, value in c.params.items()})
    c.model.eval()
    with torch.no_grad():
        return c.model(torch.tensor([tokens()])).logits[0].float().numpy()


def write(c, logits, path):
    out = {"keys": c.keys, "tensors": c.tensors, "tokens": tokens(), "logits_f16": logits.astype(">f2").tobytes().hex()}
    with open(path, "w") as f:
        f.write("{" + ",\n".join(f'"{k}": ' + (json.dumps(v) if k != "tensors" else "[\n" + ",\n".join(map(json.dumps, v)) + "]") for k, v in out.items()))
        f.write("}\n")


def write_gguf(c, path):
    import gguf

    w = gguf.GGUFWriter(path, c.arch)
    for key, v in c.keys.items():
        if key == "general.architecture":
            continue
        if isinstance(v, bool):
            w.add_bool(key, v)
        elif isinstance(v, int):
            w.add_uint32(key, v)
        elif isinstance(v, float):
            w.add_float32(key, v)
        elif isinstance(v, str):
            w.add_string(key, v)
        else:
            w.add_array(key, v)
    w.add_string("tokenizer.ggml.model", "none")
    w.add_uint32(c.arch + ".vocab_size", N_VOCAB)
    for name, _, _, _ in c.tensors:
        w.add_tensor(name, np.ascontiguousarray(c.made[name].numpy()))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_cpp_logits(path):
    import llama_cpp as L

    quiet = L.llama_log_callback(lambda level, text, user: sys.stderr.write(text.decode()) if level >= 4 and level < 5 else None)
    L.llama_log_set(quiet, None)
    L.llama_backend_init()
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    assert model, "llama.cpp does not load it"
    p = L.llama_context_default_params()
    p.n_ctx = p.n_batch = p.n_ubatch = 64
    p.n_threads = p.n_threads_batch = 1
    p.type_k = p.type_v = 0  # F32
    p.flash_attn_type = 0
    ctx = L.llama_init_from_model(model, p)
    assert ctx, "llama.cpp makes no context"
    batch = L.llama_batch_init(N_TOKENS, 0, 1)
    batch.n_tokens = N_TOKENS
    for i, t in enumerate(tokens()):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = t, i, 1, 1
        batch.seq_id[i][0] = 0
    assert L.llama_decode(ctx, batch) == 0
    out = np.array([np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, i), (N_VOCAB,)).copy() for i in range(N_TOKENS)])
    L.llama_batch_free(batch)
    L.llama_free(ctx)
    L.llama_model_free(model)
    return out


def distance(a, b):
    """The least cosine of any position, and the largest difference by the norm of its row."""
    cosine = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return cosine.min(), (np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max()


def main():
    args = sys.argv[1:]
    peer = "--llama-cpp" in args
    args = [a for a in args if a != "--llama-cpp"]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in args[1:] or CASES:
        c = CASES[name]()
        logits = logits_of(c)
        assert np.isfinite(logits).all()
        write(c, logits, os.path.join(args[0], name + ".json"))
        said = ""
        if peer:
            with tempfile.TemporaryDirectory() as d:
                path = os.path.join(d, "model.gguf")
                write_gguf(c, path)
                try:
                    said = ", llama.cpp: cosine %.7f, difference %.6f" % distance(llama_cpp_logits(path), logits)
                except AssertionError as e:
                    said = f", llama.cpp: {e}"
        print(f"{name}: {sum(np.prod(t[1]) for t in c.tensors)} weights, deviation of logits {logits.std():.3f}{said}")


main()
