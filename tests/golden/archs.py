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
        self.arch, self.keys, self.tensors, self.made, self.model, self.params, self.encoder = arch, {}, [], {}, None, {}, False
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


def llama_like(c, permuted=unpermute, bias=(), tied=False, pre_norm=True, qk_norm=None, post_attn=None, post_ffn=None, plus_one=False, mlp=None, ffn_norm="ffn_norm"):
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
            c.p(hf + name + ".weight", norm(c.g(gg + ffn_norm + ".weight", (c.embd,))))
        if mlp:
            mlp(c, hf, gg)
        else:
            gated_mlp(c, hf, gg)
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


def plain_mlp(c, hf, gg, up, down):
    c.p(hf + up + ".weight", c.g(gg + "ffn_up.weight", (c.ff, c.embd)))
    c.p(hf + up + ".bias", c.g(gg + "ffn_up.bias", (c.ff,)))
    c.p(hf + down + ".weight", c.g(gg + "ffn_down.weight", (c.embd, c.ff)))
    c.p(hf + down + ".bias", c.g(gg + "ffn_down.bias", (c.embd,)))


def gated_mlp(c, hf, gg):
    for m in ("gate", "up"):
        c.p(hf + f"mlp.{m}_proj.weight", c.g(gg + f"ffn_{m}.weight", (c.ff, c.embd)))
    c.p(hf + "mlp.down_proj.weight", c.g(gg + "ffn_down.weight", (c.embd, c.ff)))


def layer_norm(c, hf, gg):
    c.p(hf + ".weight", c.g(gg + ".weight", (c.embd,)))
    c.p(hf + ".bias", c.g(gg + ".bias", (c.embd,)))


def separate_qkv(c, hf, gg, out, bias):
    rows = {"q": c.d * c.head, "k": c.d * c.head_kv, "v": c.d * c.head_kv}
    for m in "qkv":
        c.p(hf + f"self_attn.{m}_proj.weight", c.g(gg + f"attn_{m}.weight", (rows[m], c.embd)))
        if m in bias:
            c.p(hf + f"self_attn.{m}_proj.bias", c.g(gg + f"attn_{m}.bias", (rows[m],)))
    c.p(hf + f"self_attn.{out}.weight", c.g(gg + "attn_output.weight", (c.embd, rows["q"])))
    if "o" in bias:
        c.p(hf + f"self_attn.{out}.bias", c.g(gg + "attn_output.bias", (c.embd,)))


def layer_norm_eps(c, eps=1e-5):
    c.set(attention__layer_norm_epsilon=eps)
    return eps


@case
def gpt2():
    c = Case("gpt2")
    sizes(c, head_kv=4)
    c.model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=N_VOCAB, n_positions=c.ctx, n_embd=c.embd, n_layer=c.layer, n_head=c.head, n_inner=c.ff,
                                layer_norm_epsilon=layer_norm_eps(c))
    )
    c.p("transformer.wte.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    c.p("lm_head.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    c.p("transformer.wpe.weight", c.g("position_embd.weight", (c.ctx, c.embd)))
    for i in range(c.layer):
        hf, gg = f"transformer.h.{i}.", f"blk.{i}."
        layer_norm(c, hf + "ln_1", gg + "attn_norm")
        layer_norm(c, hf + "ln_2", gg + "ffn_norm")
        for name, other, m, n in (("attn.c_attn", "attn_qkv", 3 * c.embd, c.embd), ("attn.c_proj", "attn_output", c.embd, c.embd),
                                  ("mlp.c_fc", "ffn_up", c.ff, c.embd), ("mlp.c_proj", "ffn_down", c.embd, c.ff)):
            c.p(hf + name + ".weight", c.g(gg + other + ".weight", (m, n)).T)
            c.p(hf + name + ".bias", c.g(gg + other + ".bias", (m,)))
    layer_norm(c, "transformer.ln_f", "output_norm")
    return c


def neox(parallel):
    c = Case("gptneox")
    sizes(c, embd=64, d=16, head_kv=4)
    c.set(use_parallel_residual=parallel, rope__dimension_count=4)
    c.model = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**{k: v for k, v in c.base.items() if k != "num_key_value_heads"}, use_parallel_residual=parallel,
                                   layer_norm_eps=layer_norm_eps(c), hidden_act="gelu",
                                   rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25))
    )
    # q, k and v of one head are neighbours there, all q come first here.
    heads = lambda w: w.reshape(3, c.head, c.d, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)
    c.p("gpt_neox.embed_in.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    for i in range(c.layer):
        hf, gg = f"gpt_neox.layers.{i}.", f"blk.{i}."
        layer_norm(c, hf + "input_layernorm", gg + "attn_norm")
        layer_norm(c, hf + "post_attention_layernorm", gg + "ffn_norm")
        c.p(hf + "attention.query_key_value.weight", heads(c.g(gg + "attn_qkv.weight", (3 * c.embd, c.embd))))
        c.p(hf + "attention.query_key_value.bias", heads(c.g(gg + "attn_qkv.bias", (3 * c.embd,))))
        c.p(hf + "attention.dense.weight", c.g(gg + "attn_output.weight", (c.embd, c.embd)))
        c.p(hf + "attention.dense.bias", c.g(gg + "attn_output.bias", (c.embd,)))
        plain_mlp(c, hf, gg, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    layer_norm(c, "gpt_neox.final_layer_norm", "output_norm")
    c.p("embed_out.weight" if hasattr(c.model, "embed_out") else "lm_head.weight", c.g("output.weight", (N_VOCAB, c.embd)))
    return c


@case
def gptneox():
    return neox(True)


@case
def gptneox_serial():
    return neox(False)


def phi(fused):
    c = Case("phi2")
    sizes(c, embd=64, d=16, head_kv=4 if fused else 2)
    c.set(rope__dimension_count=6)
    c.model = transformers.PhiForCausalLM(
        transformers.PhiConfig(**c.base, layer_norm_eps=layer_norm_eps(c), hidden_act="gelu_new",
                               rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.4))
    )
    c.p("model.embed_tokens.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    for i in range(c.layer):
        hf, gg = f"model.layers.{i}.", f"blk.{i}."
        layer_norm(c, hf + "input_layernorm", gg + "attn_norm")
        if fused:
            w, bias = c.g(gg + "attn_qkv.weight", (3 * c.embd, c.embd)), c.g(gg + "attn_qkv.bias", (3 * c.embd,))
            for k, m in enumerate("qkv"):
                c.p(hf + f"self_attn.{m}_proj.weight", w[k * c.embd : (k + 1) * c.embd])
                c.p(hf + f"self_attn.{m}_proj.bias", bias[k * c.embd : (k + 1) * c.embd])
            c.p(hf + "self_attn.dense.weight", c.g(gg + "attn_output.weight", (c.embd, c.embd)))
            c.p(hf + "self_attn.dense.bias", c.g(gg + "attn_output.bias", (c.embd,)))
        else:
            separate_qkv(c, hf, gg, "dense", "qkvo")
        plain_mlp(c, hf, gg, "mlp.fc1", "mlp.fc2")
    layer_norm(c, "model.final_layernorm", "output_norm")
    c.p("lm_head.weight", c.g("output.weight", (N_VOCAB, c.embd)))
    c.p("lm_head.bias", c.g("output.bias", (N_VOCAB,)))
    return c


@case
def phi2():
    return phi(False)


@case
def phi2_fused():
    return phi(True)


def phi3_like(c):
    c.p("model.embed_tokens.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    for i in range(c.layer):
        hf, gg = f"model.layers.{i}.", f"blk.{i}."
        c.p(hf + "input_layernorm.weight", c.g(gg + "attn_norm.weight", (c.embd,)))
        c.p(hf + "post_attention_layernorm.weight", c.g(gg + "ffn_norm.weight", (c.embd,)))
        c.p(hf + "self_attn.qkv_proj.weight", c.g(gg + "attn_qkv.weight", (c.d * (c.head + 2 * c.head_kv), c.embd)))
        c.p(hf + "self_attn.o_proj.weight", c.g(gg + "attn_output.weight", (c.embd, c.d * c.head)))
        c.p(hf + "mlp.gate_up_proj.weight", c.g(gg + "ffn_up.weight", (2 * c.ff, c.embd)))
        c.p(hf + "mlp.down_proj.weight", c.g(gg + "ffn_down.weight", (c.embd, c.ff)))
    c.p("model.norm.weight", c.g("output_norm.weight", (c.embd,)))
    c.p("lm_head.weight", c.g("output.weight", (N_VOCAB, c.embd)))


@case
def phi3():
    c = Case("phi3")
    sizes(c)
    c.model = transformers.Phi3ForCausalLM(transformers.Phi3Config(**c.base, **rms(c), **rope(c), pad_token_id=None))
    phi3_like(c)
    return c


def longrope(long):
    """The factors follow from the length of the sequence there, and from that of the context here."""
    c = Case("phi3")
    orig = 32 if long else 512
    sizes(c, embd=64, d=16, ctx=orig * 4)
    c.set(rope__scaling__original_context_length=orig, rope__dimension_count=8)
    factors = {m: c.g(f"rope_factors_{m}.weight", (4,), 3.0, 4.0) for m in ("long", "short")}
    # The attention factor is sqrt(1 + ln(4) / ln(original)) unless the file gives it.
    attn = round(float(np.sqrt(1 + np.log(4) / np.log(orig))), 6)
    c.set(rope__scaling__attn_factor=attn)
    c.model = transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**c.base, **rms(c), pad_token_id=None, original_max_position_embeddings=orig,
                                rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5,
                                                     long_factor=factors["long"].tolist(), short_factor=factors["short"].tolist(),
                                                     original_max_position_embeddings=orig, attention_factor=attn))
    )
    c.set(rope__freq_base=10000.0)
    phi3_like(c)
    return c


@case
def phi3_long():
    return longrope(True)


@case
def phi3_short():
    return longrope(False)


@case
def starcoder2():
    c = Case("starcoder2")
    sizes(c)
    c.model = transformers.Starcoder2ForCausalLM(
        transformers.Starcoder2Config(**c.base, **rope(c, 100000.0), norm_epsilon=layer_norm_eps(c), hidden_act="gelu_pytorch_tanh",
                                      sliding_window=None, use_bias=True)
    )
    c.p("model.embed_tokens.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    for i in range(c.layer):
        hf, gg = f"model.layers.{i}.", f"blk.{i}."
        layer_norm(c, hf + "input_layernorm", gg + "attn_norm")
        layer_norm(c, hf + "post_attention_layernorm", gg + "ffn_norm")
        separate_qkv(c, hf, gg, "o_proj", "qkvo")
        plain_mlp(c, hf, gg, "mlp.c_fc", "mlp.c_proj")
    layer_norm(c, "model.norm", "output_norm")
    c.p("lm_head.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    return c


def stable(parallel):
    c = Case("stablelm")
    sizes(c, embd=64, d=16)
    c.set(rope__dimension_count=4, use_parallel_residual=parallel)
    c.model = transformers.StableLmForCausalLM(
        transformers.StableLmConfig(**c.base, layer_norm_eps=layer_norm_eps(c), use_qkv_bias=not parallel, qk_layernorm=parallel,
                                    use_parallel_residual=parallel,
                                    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25))
    )
    c.p("model.embed_tokens.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    for i in range(c.layer):
        hf, gg = f"model.layers.{i}.", f"blk.{i}."
        layer_norm(c, hf + "input_layernorm", gg + "attn_norm")
        if parallel:
            for m, n in (("q", c.head), ("k", c.head_kv)):
                w = c.g(gg + f"attn_{m}_norm.weight", (n, c.d), 1.0, 0.5)
                for k in range(n):
                    c.p(hf + f"self_attn.{m}_layernorm.norms.{k}.weight", w[k])
        else:
            layer_norm(c, hf + "post_attention_layernorm", gg + "ffn_norm")
        separate_qkv(c, hf, gg, "o_proj", "" if parallel else "qkv")
        gated_mlp(c, hf, gg)
    layer_norm(c, "model.norm", "output_norm")
    c.p("lm_head.weight", c.g("output.weight", (N_VOCAB, c.embd)))
    return c


@case
def stablelm():
    return stable(False)


@case
def stablelm_parallel():
    return stable(True)


def cohere(c, norms):
    c.p("model.embed_tokens.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    for i in range(c.layer):
        hf, gg = f"model.layers.{i}.", f"blk.{i}."
        c.p(hf + "input_layernorm.weight", c.g(gg + "attn_norm.weight", (c.embd,)))
        separate_qkv(c, hf, gg, "o_proj", "")
        for m, n in (("q", c.head), ("k", c.head_kv)) if norms else ():
            c.p(hf + f"self_attn.{m}_norm.weight", c.g(gg + f"attn_{m}_norm.weight", (n, c.d), 1.0, 0.5))
        gated_mlp(c, hf, gg)
    c.p("model.norm.weight", c.g("output_norm.weight", (c.embd,)))
    c.p("lm_head.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))


def command(plus):
    c = Case("command-r")
    sizes(c)
    c.set(logit_scale=0.0625)
    c.model = transformers.CohereForCausalLM(
        transformers.CohereConfig(**c.base, **rope(c, 8000000.0), layer_norm_eps=layer_norm_eps(c), logit_scale=0.0625, use_qk_norm=plus,
                                  pad_token_id=None)
    )
    cohere(c, plus)
    return c


@case
def command_r():
    return command(False)


@case
def command_r_plus():
    return command(True)


@case
def gemma():
    c = Case("gemma")
    sizes(c, d=20)
    c.set(rope__freq_base=10000.0)
    c.model = transformers.GemmaForCausalLM(transformers.GemmaConfig(**c.base, **rms(c, 1e-6), **rope(c), head_dim=20))
    llama_like(c, same, tied=True, plus_one=True)
    return c


@case
def glm4():
    c = Case("glm4")
    sizes(c, embd=64, d=16)
    c.set(rope__dimension_count=8)
    c.model = transformers.Glm4ForCausalLM(
        transformers.Glm4Config(**c.base, **rms(c), head_dim=16, attention_bias=True, pad_token_id=None,
                                rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))
    )
    c.p("model.embed_tokens.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    for i in range(c.layer):
        hf, gg = f"model.layers.{i}.", f"blk.{i}."
        for name, other in (("input_layernorm", "attn_norm"), ("post_self_attn_layernorm", "post_attention_norm"),
                            ("post_attention_layernorm", "ffn_norm"), ("post_mlp_layernorm", "post_ffw_norm")):
            c.p(hf + name + ".weight", c.g(gg + other + ".weight", (c.embd,)))
        separate_qkv(c, hf, gg, "o_proj", "qkv")
        c.p(hf + "mlp.gate_up_proj.weight", c.g(gg + "ffn_up.weight", (2 * c.ff, c.embd)))
        c.p(hf + "mlp.down_proj.weight", c.g(gg + "ffn_down.weight", (c.embd, c.ff)))
    c.p("model.norm.weight", c.g("output_norm.weight", (c.embd,)))
    c.p("lm_head.weight", c.g("output.weight", (N_VOCAB, c.embd)))
    return c


@case
def mistral():
    """The first Mistral: a llama with a window."""
    c = Case("llama")
    sizes(c)
    c.set(attention__sliding_window=7)
    c.model = transformers.MistralForCausalLM(transformers.MistralConfig(**c.base, **rms(c), **rope(c), sliding_window=7, head_dim=12))
    llama_like(c)
    return c


@case
def ministral3():
    """Ministral 3: YaRN without its temperature, and queries that grow with their position."""
    c = Case("mistral3")
    sizes(c, embd=64, d=32, ctx=128)
    c.set(rope__scaling__type="yarn", rope__scaling__factor=8.0, rope__scaling__original_context_length=16, rope__scaling__yarn_beta_fast=4.0,
          rope__scaling__yarn_beta_slow=1.0, rope__scaling__yarn_log_multiplier=1.0, attention__temperature_scale=0.3)
    c.model = transformers.Ministral3ForCausalLM(
        transformers.Ministral3Config(**c.base, **rms(c), head_dim=32,
                                      **rope(c, 10000.0, rope_type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=1.0,
                                             mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3))
    )
    llama_like(c)
    return c


@case
def phi3_window():
    c = Case("phi3")
    sizes(c)
    c.set(attention__sliding_window=7)
    c.model = transformers.Phi3ForCausalLM(transformers.Phi3Config(**c.base, **rms(c), **rope(c), sliding_window=7, pad_token_id=None))
    phi3_like(c)
    return c


@case
def gemma2():
    c = Case("gemma2")
    sizes(c, d=20, layer=4)
    c.set(attention__sliding_window=8, attn_logit_softcapping=20.0, final_logit_softcapping=5.0, rope__freq_base=10000.0)
    c.model = transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**c.base, **rms(c, 1e-6), **rope(c), head_dim=20, query_pre_attn_scalar=20, sliding_window=8,
                                  attn_logit_softcapping=20.0, final_logit_softcapping=5.0, attn_implementation="eager")
    )
    llama_like(c, same, tied=True, plus_one=True, post_attn="post_attention_layernorm", post_ffn="post_feedforward_layernorm")
    return c


@case
def gemma3():
    c = Case("gemma3")
    sizes(c, d=20, layer=7)
    c.set(attention__sliding_window=8, rope__freq_base=1000000.0, rope__scaling__type="linear", rope__scaling__factor=8.0)
    c.model = transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**c.base, **rms(c, 1e-6), head_dim=20, query_pre_attn_scalar=20, sliding_window=8,
                                      layer_types=["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
                                      rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
                                                           sliding_attention=dict(rope_type="default", rope_theta=10000.0)))
    )
    llama_like(c, same, tied=True, plus_one=True, qk_norm="head", post_attn="post_attention_layernorm", post_ffn="post_feedforward_layernorm")
    return c


@case
def cohere2():
    c = Case("cohere2")
    sizes(c, layer=5)
    c.set(logit_scale=0.0625, attention__sliding_window=8, rope__dimension_count=12)
    c.model = transformers.Cohere2ForCausalLM(
        transformers.Cohere2Config(**c.base, **rope(c, 50000.0), layer_norm_eps=layer_norm_eps(c), logit_scale=0.0625, sliding_window=8,
                                   layer_types=["sliding_attention"] * 3 + ["full_attention", "sliding_attention"], pad_token_id=None)
    )
    cohere(c, False)
    return c


def exaone(window):
    c = Case("exaone4")
    sizes(c, layer=5)
    if window:
        c.set(attention__sliding_window=8)
    types = ["sliding_attention"] * 3 + ["full_attention", "sliding_attention"] if window else ["full_attention"] * 5
    c.model = transformers.Exaone4ForCausalLM(
        transformers.Exaone4Config(**c.base, **rms(c), **rope(c, 1000000.0), head_dim=12, layer_types=types,
                                   sliding_window=8 if window else None, sliding_window_pattern=4 if window else None, pad_token_id=None)
    )
    llama_like(c, same, pre_norm=False, qk_norm="head", post_attn="post_attention_layernorm", post_ffn="post_feedforward_layernorm")
    return c


@case
def exaone4():
    return exaone(False)


@case
def exaone4_window():
    return exaone(True)


# --- Mixtures of experts ---

N_EXPERT, N_USED, FF_EXPERT, FF_SHARED = 6, 2, 40, 56


def moe(c, ff=None, shared=None):
    """The keys of experts, and transformers' names for them that most configs share."""
    c.ff_expert, c.ff_shared = ff or c.ff, shared
    c.set(expert_count=N_EXPERT, expert_used_count=N_USED)
    if ff:
        c.set(expert_feed_forward_length=ff)
    if shared:
        c.set(expert_shared_feed_forward_length=shared)
    return dict(num_experts_per_tok=N_USED)


def experts(router="mlp.gate", at="mlp.experts", choice_bias=None, shared=None, shared_router=None, dense=0):
    """A layer's experts, for llama_like's mlp: gate and up are one tensor there."""

    def mlp(c, hf, gg):
        if int(gg.split(".")[1]) < dense:
            return gated_mlp(c, hf, gg)
        c.p(hf + router + ".weight", c.g(gg + "ffn_gate_inp.weight", (N_EXPERT, c.embd)))
        gate, up = (c.g(gg + f"ffn_{m}_exps.weight", (N_EXPERT, c.ff_expert, c.embd)) for m in ("gate", "up"))
        c.p(hf + at + ".gate_up_proj", torch.cat([gate, up], 1))
        c.p(hf + at + ".down_proj", c.g(gg + "ffn_down_exps.weight", (N_EXPERT, c.embd, c.ff_expert)))
        if choice_bias:
            c.p(hf + choice_bias, c.g(gg + "exp_probs_b.bias", (N_EXPERT,)))
        if shared:
            for m in ("gate", "up"):
                c.p(hf + shared + f".{m}_proj.weight", c.g(gg + f"ffn_{m}_shexp.weight", (c.ff_shared, c.embd)))
            c.p(hf + shared + ".down_proj.weight", c.g(gg + "ffn_down_shexp.weight", (c.embd, c.ff_shared)))
        if shared_router:
            c.p(hf + shared_router + ".weight", c.g(gg + "ffn_gate_inp_shexp.weight", (c.embd,), 0.0, 0.5)[None])

    return mlp


@case
def mixtral():
    c = Case("llama")
    sizes(c)
    c.model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**c.base, **rms(c), **rope(c), **moe(c), num_local_experts=N_EXPERT))
    llama_like(c, mlp=experts())
    return c


@case
def qwen2moe():
    c = Case("qwen2moe")
    sizes(c)
    c.model = transformers.Qwen2MoeForCausalLM(
        transformers.Qwen2MoeConfig(**c.base, **rms(c), **rope(c), **moe(c, FF_EXPERT, FF_SHARED), num_experts=N_EXPERT,
                                    moe_intermediate_size=FF_EXPERT, shared_expert_intermediate_size=FF_SHARED)
    )
    llama_like(c, same, bias="qkv", mlp=experts(shared="mlp.shared_expert", shared_router="mlp.shared_expert_gate"))
    return c


@case
def qwen3moe():
    c = Case("qwen3moe")
    sizes(c, d=20)
    c.model = transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**c.base, **rms(c), **rope(c), **moe(c, FF_EXPERT), head_dim=20, num_experts=N_EXPERT,
                                    moe_intermediate_size=FF_EXPERT, norm_topk_prob=True)
    )
    llama_like(c, same, qk_norm="head", mlp=experts())
    return c


@case
def olmoe():
    c = Case("olmoe")
    sizes(c)
    c.model = transformers.OlmoeForCausalLM(transformers.OlmoeConfig(**c.base, **rms(c), **rope(c), **moe(c), num_experts=N_EXPERT, eos_token_id=0))
    llama_like(c, same, qk_norm="row", mlp=experts())
    return c


@case
def granitemoe():
    c = Case("granitemoe")
    sizes(c)
    c.set(embedding_scale=6.0, residual_scale=0.22, attention__scale=0.125, logit_scale=5.0)
    c.model = transformers.GraniteMoeForCausalLM(
        transformers.GraniteMoeConfig(**c.base, **rms(c), **rope(c), **moe(c), num_local_experts=N_EXPERT, embedding_multiplier=6.0,
                                      residual_multiplier=0.22, attention_multiplier=0.125, logits_scaling=5.0)
    )
    llama_like(c, tied=True, mlp=experts("block_sparse_moe.router", "block_sparse_moe.experts"))
    return c


@case
def glm4moe():
    c = Case("glm4moe")
    sizes(c, d=16, embd=64)
    c.set(leading_dense_block_count=1, expert_shared_count=1, expert_weights_scale=1.5, expert_weights_norm=True, expert_gating_func=2,
          rope__dimension_count=8)
    c.model = transformers.Glm4MoeForCausalLM(
        transformers.Glm4MoeConfig(**c.base, **rms(c), **rope(c, partial_rotary_factor=0.5), **moe(c, FF_EXPERT), head_dim=16, use_qk_norm=True,
                                   attention_bias=True, n_routed_experts=N_EXPERT, moe_intermediate_size=FF_EXPERT, n_shared_experts=1,
                                   first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5, n_group=1, topk_group=1)
    )
    c.ff_shared = FF_EXPERT
    llama_like(c, same, bias="qkv", qk_norm="head", ffn_norm="post_attention_norm",
               mlp=experts(choice_bias="mlp.gate.e_score_correction_bias", shared="mlp.shared_experts", dense=1))
    return c


@case
def gpt_oss():
    """A window in layers 0 and 2; YaRN without rounded ends of its ramp."""
    c = Case("gpt-oss")
    sizes(c, d=16, embd=64, ctx=512)
    c.set(attention__sliding_window=9, rope__scaling__type="yarn", rope__scaling__factor=8.0, rope__scaling__original_context_length=64)
    yarn = dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=64)
    c.model = transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**c.base | dict(intermediate_size=FF_EXPERT), **rms(c), **rope(c, 150000.0, **yarn), **moe(c, FF_EXPERT),
                                  head_dim=16, num_local_experts=N_EXPERT, sliding_window=9,
                                  layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    )

    def mlp(c, hf, gg):
        c.p(hf + "self_attn.sinks", c.g(gg + "attn_sinks.weight", (c.head,), 0.0, 4.0))
        c.p(hf + "mlp.router.weight", c.g(gg + "ffn_gate_inp.weight", (N_EXPERT, c.embd)))
        c.p(hf + "mlp.router.bias", c.g(gg + "ffn_gate_inp.bias", (N_EXPERT,)))
        gate, up = (c.g(gg + f"ffn_{m}_exps.weight", (N_EXPERT, c.ff_expert, c.embd), 0.0, 3.0) for m in ("gate", "up"))
        gate_b, up_b = (c.g(gg + f"ffn_{m}_exps.bias", (N_EXPERT, c.ff_expert), 0.0, 0.5) for m in ("gate", "up"))
        # gate and up take turns there, and matrices stand the other way round
        c.p(hf + "mlp.experts.gate_up_proj", torch.stack([gate, up], 2).reshape(N_EXPERT, 2 * c.ff_expert, c.embd).transpose(1, 2))
        c.p(hf + "mlp.experts.gate_up_proj_bias", torch.stack([gate_b, up_b], 2).reshape(N_EXPERT, 2 * c.ff_expert))
        c.p(hf + "mlp.experts.down_proj", c.g(gg + "ffn_down_exps.weight", (N_EXPERT, c.embd, c.ff_expert)).transpose(1, 2))
        c.p(hf + "mlp.experts.down_proj_bias", c.g(gg + "ffn_down_exps.bias", (N_EXPERT, c.embd), 0.0, 0.5))

    llama_like(c, same, bias="qkvo", ffn_norm="post_attention_norm", mlp=mlp)
    return c


def encoder_layers(c, hf, gg, names, bias):
    """names: what the encoder calls q, k, v, o and the two norms."""
    for m, name in zip(("attn_q", "attn_k", "attn_v", "attn_output"), names):
        c.p(hf + name + ".weight", c.g(gg + m + ".weight", (c.embd, c.embd)))
        if bias:
            c.p(hf + name + ".bias", c.g(gg + m + ".bias", (c.embd,)))
    layer_norm(c, hf + names[4], gg + "attn_output_norm")
    layer_norm(c, hf + names[5], gg + "layer_output_norm")


def encoder_embeddings(c):
    c.encoder = True
    c.set(attention__causal=False, pooling_type=1)
    c.p("embeddings.word_embeddings.weight", c.g("token_embd.weight", (N_VOCAB, c.embd)))
    c.p("embeddings.token_type_embeddings.weight", c.g("token_types.weight", (2, c.embd)))
    layer_norm(c, "embeddings.LayerNorm", "token_embd_norm")


@case
def bert():
    c = Case("bert")
    sizes(c, head_kv=4)
    del c.base["num_key_value_heads"]
    c.model = transformers.BertModel(transformers.BertConfig(**c.base, layer_norm_eps=layer_norm_eps(c, 1e-12)), add_pooling_layer=False)
    encoder_embeddings(c)
    c.p("embeddings.position_embeddings.weight", c.g("position_embd.weight", (c.ctx, c.embd)))
    for i in range(c.layer):
        hf, gg = f"encoder.layer.{i}.", f"blk.{i}."
        encoder_layers(c, hf, gg, ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
                                   "attention.output.LayerNorm", "output.LayerNorm"), True)
        plain_mlp(c, hf, gg, "intermediate.dense", "output.dense")
    return c


@case
def nomic_bert():
    c = Case("nomic-bert")
    sizes(c, head_kv=4)
    del c.base["num_key_value_heads"]
    c.model = transformers.NomicBertModel(
        transformers.NomicBertConfig(**c.base, **rope(c, 1000.0), layer_norm_eps=layer_norm_eps(c, 1e-12), head_dim=12), add_pooling_layer=False
    )
    encoder_embeddings(c)
    for i in range(c.layer):
        hf, gg = f"layers.{i}.", f"blk.{i}."
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm", "post_mlp_layernorm")
        w = c.g(gg + "attn_qkv.weight", (3 * c.embd, c.embd))
        for k in range(3):
            c.p(hf + names[k] + ".weight", w[k * c.embd : (k + 1) * c.embd])
        c.p(hf + names[3] + ".weight", c.g(gg + "attn_output.weight", (c.embd, c.embd)))
        layer_norm(c, hf + names[4], gg + "attn_output_norm")
        layer_norm(c, hf + names[5], gg + "layer_output_norm")
        gated_mlp(c, hf, gg)
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
        out = c.model(torch.tensor([tokens()]))
        return (out.last_hidden_state if c.encoder else out.logits)[0].float().numpy()


def write(c, logits, path):
    out = {"keys": c.keys, "tensors": c.tensors, "tokens": tokens(), ("embeddings_f16" if c.encoder else "logits_f16"): logits.astype(">f2").tobytes().hex()}
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
    if c.encoder:
        w.add_uint32("tokenizer.ggml.token_type_count", 2)
    for name, _, _, _ in c.tensors:
        w.add_tensor(name, np.ascontiguousarray(c.made[name].numpy()))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_cpp_logits(path, width, encoder):
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
    p.embeddings, p.pooling_type = encoder, 0
    ctx = L.llama_init_from_model(model, p)
    assert ctx, "llama.cpp makes no context"
    batch = L.llama_batch_init(N_TOKENS, 0, 1)
    batch.n_tokens = N_TOKENS
    for i, t in enumerate(tokens()):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = t, i, 1, 1
        batch.seq_id[i][0] = 0
    assert L.llama_decode(ctx, batch) == 0
    row = L.llama_get_embeddings_ith if encoder else L.llama_get_logits_ith
    out = np.array([np.ctypeslib.as_array(row(ctx, i), (width,)).copy() for i in range(N_TOKENS)])
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
                    said = ", llama.cpp: cosine %.7f, difference %.6f" % distance(llama_cpp_logits(path, logits.shape[1], c.encoder), logits)
                except AssertionError as e:
                    said = f", llama.cpp: {e}"
        print(f"{name}: {sum(np.prod(t[1]) for t in c.tensors)} weights, deviation of logits {logits.std():.3f}{said}")


main()
