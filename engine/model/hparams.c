#include "engine/model/hparams.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "engine/base/fmath.h"
#include "engine/graph/op.h"

/* Bounds far above any model that exists, and low enough that products of any three of them fit 64 bits and each fits
 * the graph's int32 parameters. */
#define N_EMBD_MAX  (1 << 20)
#define N_HEAD_MAX  (1 << 14)
#define D_HEAD_MAX  1024 /* the CPU's attention keeps rows of a head on its scratch */
#define N_FF_MAX    (1 << 24)
#define N_VOCAB_MAX (1 << 24)
#define N_CTX_MAX   (1 << 28)
#define N_EXPERT_MAX 4096

/* The whole key, which is noted as one that this build knows. */
static void full_key(char *out, size_t size, const char *arch, const char *key, pl_problems *problems)
{
    snprintf(out, size, "%s.%s", arch, key);
    pl_buf_add(&problems->keys, out, strlen(out) + 1);
}

bool pl_hparam_u32(const pl_gguf *g, const char *arch, const char *key, bool required, uint32_t *out,
                   pl_problems *problems)
{
    char name[128];
    full_key(name, sizeof name, arch, key, problems);
    pl_gguf_value v;
    pl_error err;
    bool found = false;
    /* Some files give a number per layer. One that is the same in all layers is that number. */
    if (pl_gguf_find(g, name, &v) && v.kind == PL_GGUF_ARRAY) {
        if (v.n == 0 || v.elem == PL_GGUF_STRING || v.elem == PL_GGUF_ARRAY || v.elem == PL_GGUF_BOOL ||
            v.elem == PL_GGUF_F32 || v.elem == PL_GGUF_F64) {
            pl_problem(problems, "key %s: not an integer", name);
            return false;
        }
        int64_t first = pl_gguf_elem_i64(&v, 0);
        for (uint64_t i = 1; i < v.n; i++)
            if (pl_gguf_elem_i64(&v, i) != first) {
                pl_problem_unsupported(problems, "key %s: differs between layers", name);
                return false;
            }
        if (first < 0 || first > UINT32_MAX) {
            pl_problem(problems, "key %s: %" PRId64 " is out of range", name, first);
            return false;
        }
        *out = (uint32_t)first;
        return true;
    }
    if (pl_gguf_get_u32(g, name, out, &found, &err) != PL_OK) {
        pl_problem(problems, "%s", err.text);
        return false;
    }
    if (!found && required) pl_problem(problems, "key %s is missing", name);
    return found;
}

bool pl_hparam_f32(const pl_gguf *g, const char *arch, const char *key, bool required, float *out,
                   pl_problems *problems)
{
    char name[128];
    full_key(name, sizeof name, arch, key, problems);
    pl_error err;
    bool found = false;
    float v = 0;
    if (pl_gguf_get_f32(g, name, &v, &found, &err) != PL_OK) {
        pl_problem(problems, "%s", err.text);
        return false;
    }
    if (!found) {
        if (required) pl_problem(problems, "key %s is missing", name);
        return false;
    }
    if (!isfinite(v)) {
        pl_problem(problems, "key %s is not finite", name);
        return false;
    }
    *out = v;
    return true;
}

bool pl_hparam_scale(const pl_gguf *g, const char *arch, const char *key, float *out, pl_problems *problems)
{
    float v = 0;
    if (!pl_hparam_f32(g, arch, key, false, &v, problems) || v == 0.0f) return false;
    if (v < 0.0f) {
        pl_problem(problems, "key %s.%s: %g is negative", arch, key, (double)v);
        return false;
    }
    *out = v;
    return true;
}

bool pl_hparam_bool(const pl_gguf *g, const char *arch, const char *key, bool required, bool *out,
                    pl_problems *problems)
{
    char name[128];
    full_key(name, sizeof name, arch, key, problems);
    pl_error err;
    bool found = false;
    if (pl_gguf_get_bool(g, name, out, &found, &err) != PL_OK) {
        pl_problem(problems, "%s", err.text);
        return false;
    }
    if (!found && required) pl_problem(problems, "key %s is missing", name);
    return found;
}

/* A count from 1 to max; def when the key is absent, which 0 forbids. */
static int32_t count(const pl_gguf *g, const char *arch, const char *key, int32_t def, int32_t max,
                     pl_problems *problems)
{
    uint32_t v = 0;
    if (!pl_hparam_u32(g, arch, key, def == 0, &v, problems)) return def;
    if (v < 1 || v > (uint32_t)max) {
        pl_problem(problems, "key %s.%s: %" PRIu32 " is not in 1..%" PRId32, arch, key, v, max);
        return def;
    }
    return (int32_t)v;
}

static void read_rope(pl_rope_params *r, int32_t d_head, int32_t n_ctx_train, const pl_gguf *g, const char *arch,
                      pl_problems *problems)
{
    r->n_rot = count(g, arch, "rope.dimension_count", d_head > 0 ? d_head : 2, D_HEAD_MAX, problems);
    if (d_head > 0 && (r->n_rot > d_head || r->n_rot % 2 != 0))
        pl_problem(problems, "key %s.rope.dimension_count: %" PRId32 " is odd or more than a head's %" PRId32, arch,
                   r->n_rot, d_head);

    r->freq_base = 10000.0f;
    pl_hparam_f32(g, arch, "rope.freq_base", false, &r->freq_base, problems);
    if (!(r->freq_base >= 1.0f))
        pl_problem(problems, "key %s.rope.freq_base: %g is below 1", arch, (double)r->freq_base);

    /* rope.scale_linear is the older name. A factor without a type means linear; 0 means that there is none. */
    r->factor = 1.0f;
    if (!pl_hparam_f32(g, arch, "rope.scaling.factor", false, &r->factor, problems))
        pl_hparam_f32(g, arch, "rope.scale_linear", false, &r->factor, problems);
    if (r->factor == 0.0f) r->factor = 1.0f;
    if (!(r->factor > 1e-3f && r->factor < 1e6f))
        pl_problem(problems, "key %s.rope.scaling.factor: %g is out of range", arch, (double)r->factor);

    r->scaling = PL_ROPE_SCALING_LINEAR;
    char name[128];
    full_key(name, sizeof name, arch, "rope.scaling.type", problems);
    pl_str type;
    pl_error err;
    bool found = false;
    if (pl_gguf_get_str(g, name, &type, &found, &err) != PL_OK) {
        pl_problem(problems, "%s", err.text);
    } else if (found) {
        if (pl_str_is(type, "none"))
            r->scaling = PL_ROPE_SCALING_NONE;
        else if (pl_str_is(type, "linear"))
            r->scaling = PL_ROPE_SCALING_LINEAR;
        else if (pl_str_is(type, "yarn"))
            r->scaling = PL_ROPE_SCALING_YARN;
        else
            pl_problem_unsupported(problems, "key %s: \"%.*s\" is not known", name,
                                   (int)(type.size > 32 ? 32 : type.size), type.data);
    }
    if (r->scaling == PL_ROPE_SCALING_NONE) r->factor = 1.0f;

    r->n_ctx_orig = count(g, arch, "rope.scaling.original_context_length", n_ctx_train, N_CTX_MAX, problems);
    r->ext_factor = r->attn_factor = r->beta_slow = 1.0f;
    r->beta_fast = 32.0f;
    pl_hparam_f32(g, arch, "rope.scaling.yarn_ext_factor", false, &r->ext_factor, problems);
    /* The same factor under its two names. */
    if (!pl_hparam_f32(g, arch, "rope.scaling.yarn_attn_factor", false, &r->attn_factor, problems))
        pl_hparam_f32(g, arch, "rope.scaling.attn_factor", false, &r->attn_factor, problems);
    pl_hparam_f32(g, arch, "rope.scaling.yarn_log_multiplier", false, &r->log_multiplier, problems);
    if (!(r->log_multiplier >= 0.0f))
        pl_problem(problems, "key %s.rope.scaling.yarn_log_multiplier: %g is negative", arch,
                   (double)r->log_multiplier);
    pl_hparam_f32(g, arch, "rope.scaling.yarn_beta_fast", false, &r->beta_fast, problems);
    pl_hparam_f32(g, arch, "rope.scaling.yarn_beta_slow", false, &r->beta_slow, problems);
    if (r->scaling == PL_ROPE_SCALING_YARN && (!(r->beta_fast > 0) || !(r->beta_slow > 0) || !(r->freq_base > 1)))
        pl_problem(
            problems,
            "keys %s.rope.scaling.yarn_beta_fast, yarn_beta_slow and rope.freq_base must be positive, the last above 1",
            arch);
}

void pl_hparams_read(pl_hparams *hp, const pl_gguf *g, const char *arch, const char *eps_key, pl_problems *problems)
{
    memset(hp, 0, sizeof *hp);
    hp->n_layer = count(g, arch, "block_count", 0, PL_N_LAYER_MAX, problems);
    hp->n_embd = count(g, arch, "embedding_length", 0, N_EMBD_MAX, problems);
    hp->n_head = count(g, arch, "attention.head_count", 0, N_HEAD_MAX, problems);
    hp->n_ff = count(g, arch, "feed_forward_length", 0, N_FF_MAX, problems);
    hp->n_ctx_train = count(g, arch, "context_length", 0, N_CTX_MAX, problems);
    if (hp->n_head > 0) {
        hp->n_head_kv = count(g, arch, "attention.head_count_kv", hp->n_head, N_HEAD_MAX, problems);
        if (hp->n_head % hp->n_head_kv != 0)
            pl_problem(problems, "%" PRId32 " heads are not a multiple of %" PRId32 " key and value heads", hp->n_head,
                       hp->n_head_kv);
    }

    bool divides = hp->n_head > 0 && hp->n_embd % hp->n_head == 0 && hp->n_embd / hp->n_head <= D_HEAD_MAX;
    hp->d_head = count(g, arch, "attention.key_length", divides ? hp->n_embd / hp->n_head : 0, D_HEAD_MAX, problems);
    if (hp->d_head > 0) {
        int32_t d_value = count(g, arch, "attention.value_length", hp->d_head, D_HEAD_MAX, problems);
        if (d_value != hp->d_head)
            pl_problem_unsupported(problems, "keys of %" PRId32 " and values of %" PRId32 " elements per head",
                                   hp->d_head, d_value);
    }

    if (pl_hparam_f32(g, arch, eps_key, true, &hp->norm_eps, problems) && !(hp->norm_eps >= 0 && hp->norm_eps < 1))
        pl_problem(problems, "key %s.%s: %g is not in 0..1", arch, eps_key, (double)hp->norm_eps);
    hp->attn_scale = hp->d_head > 0 ? 1.0f / sqrtf((float)hp->d_head) : 1.0f;
    hp->embd_scale = hp->residual_scale = hp->logit_scale = 1.0f;
    read_rope(&hp->rope, hp->d_head, hp->n_ctx_train > 0 ? hp->n_ctx_train : 1, g, arch, problems);

    /* The vocabulary is as large as the embedding has rows: vocab_size is absent from many files and wrong in some. */
    const pl_gguf_tensor *embd = pl_gguf_find_tensor(g, PL_STR("token_embd.weight"));
    if (embd == NULL) return; /* named with the other tensors that are missing */
    if (embd->n_dims != 2 || embd->ne[1] < 1 || embd->ne[1] > N_VOCAB_MAX) {
        pl_problem(problems, "tensor token_embd.weight has %" PRId64 " rows in %" PRId32 " dimensions", embd->ne[1],
                   embd->n_dims);
        return;
    }
    hp->n_vocab = (int32_t)embd->ne[1];
    pl_gguf_value tokens;
    if (pl_gguf_find(g, "tokenizer.ggml.tokens", &tokens) && tokens.kind == PL_GGUF_ARRAY &&
        tokens.n != (uint64_t)hp->n_vocab)
        pl_problem(problems, "%" PRIu64 " tokens in the vocabulary and %" PRId32 " rows in token_embd.weight", tokens.n,
                   hp->n_vocab);
}

void pl_hparams_read_granite(pl_hparams *hp, const pl_gguf *g, const char *arch, pl_problems *problems)
{
    float divisor = 1.0f;
    pl_hparam_scale(g, arch, "embedding_scale", &hp->embd_scale, problems);
    pl_hparam_scale(g, arch, "residual_scale", &hp->residual_scale, problems);
    pl_hparam_scale(g, arch, "attention.scale", &hp->attn_scale, problems);
    if (pl_hparam_scale(g, arch, "logit_scale", &divisor, problems)) hp->logit_scale = 1.0f / divisor;
}

void pl_hparams_read_experts(pl_hparams *hp, const pl_gguf *g, const char *arch, bool required, pl_problems *problems)
{
    uint32_t n = 0, used = 0, dense = 0, gating = 0, groups = 0, groups_used = 0;
    pl_hparam_u32(g, arch, "expert_count", required, &n, problems);
    if (!pl_hparam_u32(g, arch, "expert_used_count", n > 0, &used, problems) || n == 0) return;
    if (n > N_EXPERT_MAX || used < 1 || used > n) {
        pl_problem(problems, "keys %s.expert_count and expert_used_count: %" PRIu32 " of %" PRIu32 " experts, of at most %d", arch, used,
                   n, N_EXPERT_MAX);
        return;
    }
    hp->experts.n = (int32_t)n;
    hp->experts.n_used = (int32_t)used;
    hp->experts.n_ff = count(g, arch, "expert_feed_forward_length", hp->n_ff > 0 ? hp->n_ff : 1, N_FF_MAX, problems);
    uint32_t n_shared = 0;
    pl_hparam_u32(g, arch, "expert_shared_count", false, &n_shared, problems);
    if (n_shared > 256) pl_problem(problems, "key %s.expert_shared_count: %" PRIu32 " is more than 256", arch, n_shared);
    int64_t shared = hp->experts.n_ff * (int64_t)(n_shared > 0 && n_shared <= 256 ? n_shared : 1);
    hp->experts.n_ff_shared =
        count(g, arch, "expert_shared_feed_forward_length", shared < N_FF_MAX ? (int32_t)shared : N_FF_MAX, N_FF_MAX, problems);
    hp->experts.scale = 1.0f;
    pl_hparam_scale(g, arch, "expert_weights_scale", &hp->experts.scale, problems);
    pl_hparam_bool(g, arch, "expert_weights_norm", false, &hp->experts.norm, problems);
    if (pl_hparam_u32(g, arch, "expert_gating_func", false, &gating, problems) && gating != 0) {
        if (gating > PL_GATING_SOFTMAX_OF_CHOSEN)
            pl_problem_unsupported(problems, "key %s.expert_gating_func: %" PRIu32 " is not known", arch, gating);
        hp->experts.gating = (pl_gating)gating;
    }
    pl_hparam_u32(g, arch, "expert_group_count", false, &groups, problems);
    pl_hparam_u32(g, arch, "expert_group_used_count", false, &groups_used, problems);
    if (groups < 1) groups = 1;
    if (groups_used < 1) groups_used = groups;
    if (groups > PL_TOP_K_GROUPS_MAX || groups > n || n % groups != 0 || groups_used > groups || used > n / groups * groups_used) {
        pl_problem(problems, "keys %s.expert_group_count and expert_group_used_count: %" PRIu32 " of %" PRIu32 " groups for %" PRIu32
                   " of %" PRIu32 " experts", arch, groups_used, groups, used, n);
        groups = groups_used = 1;
    }
    hp->experts.n_groups = (int32_t)groups;
    hp->experts.n_groups_used = (int32_t)groups_used;
    if (hp->experts.n_best < 1 || hp->experts.n_best > (int32_t)(n / groups)) hp->experts.n_best = 1;
    pl_hparam_u32(g, arch, "leading_dense_block_count", false, &dense, problems);
    for (int32_t l = 0; l < hp->n_layer; l++)
        if ((uint32_t)l >= dense) hp->layers[l] |= PL_LAYER_EXPERTS;
}

float pl_hparams_temperature(const pl_hparams *hp, int32_t pos)
{
    int32_t n_times = hp->temperature.n_ctx > 0 ? pos / hp->temperature.n_ctx : 0;
    return (float)(1.0 + (double)hp->temperature.scale * pl_ln(1.0 + n_times));
}

/* Whether layer l has the window, by attention.sliding_window_pattern: a flag for each layer, or a period. */
static bool has_window(const pl_gguf_value *pattern, int32_t l)
{
    if (pattern->kind == PL_GGUF_ARRAY) return pl_gguf_elem_i64(pattern, (uint64_t)l) != 0;
    int64_t period = pl_gguf_elem_i64(pattern, 0);
    return period <= 0 || l % period < period - 1;
}

void pl_hparams_read_window(pl_hparams *hp, const pl_gguf *g, const char *arch, int32_t def, int32_t period,
                            pl_problems *problems)
{
    uint32_t window = (uint32_t)def;
    pl_hparam_u32(g, arch, "attention.sliding_window", false, &window, problems);
    char name[128];
    full_key(name, sizeof name, arch, "attention.sliding_window_pattern", problems);
    pl_gguf_value pattern;
    bool found = pl_gguf_find(g, name, &pattern);
    pl_gguf_kind kind = !found ? PL_GGUF_U32 : pattern.kind == PL_GGUF_ARRAY ? pattern.elem : pattern.kind;
    if (found && (kind == PL_GGUF_STRING || kind == PL_GGUF_ARRAY || kind == PL_GGUF_F32 || kind == PL_GGUF_F64 ||
                  (pattern.kind == PL_GGUF_ARRAY && pattern.n != (uint64_t)hp->n_layer))) {
        pl_problem(problems, "key %s: neither a number nor a flag for each of %" PRId32 " layers", name, hp->n_layer);
        return;
    }
    /* A window as long as the context hides nothing. */
    if (window == 0 || window >= N_CTX_MAX) return;
    hp->window = (int32_t)window;
    for (int32_t l = 0; l < hp->n_layer; l++)
        if (found ? has_window(&pattern, l) : period == 0 || l % period < period - 1) hp->layers[l] |= PL_LAYER_WINDOW;
}

/* Keys that say nothing of the function: what tensors' shapes say again, and how the model was made. */
static const char *const harmless[] = {"vocab_size",        "tensor_data_layout", "rope.scaling.finetuned",
                                       "rope.scale_linear", "pooling_type",       "rope.scaling.orig_ctx_len"};

static bool is_neutral(const pl_gguf_value *v)
{
    switch (v->kind) {
    case PL_GGUF_STRING: return v->raw.size == 0;
    case PL_GGUF_ARRAY: return v->n == 0;
    default: return pl_gguf_elem_f64(v, 0) == 0;
    }
}

void pl_hparams_check_keys(const pl_gguf *g, const char *arch, pl_problems *problems)
{
    if (problems->keys.failed) return; /* not all that were asked for are in it */
    size_t prefix = strlen(arch) + 1;
    for (size_t i = 0; i < pl_gguf_n_keys(g); i++) {
        pl_gguf_value v;
        pl_str key = pl_gguf_key_at(g, i, &v);
        if (key.size < prefix || memcmp(key.data, arch, prefix - 1) != 0 || key.data[prefix - 1] != '.') continue;
        pl_nearest nearest = {.to = key};
        bool known = is_neutral(&v); /* 0 and false say that there is none of it */
        for (size_t k = 0; k < sizeof harmless / sizeof harmless[0]; k++)
            known = known || pl_str_is((pl_str){key.data + prefix, key.size - prefix}, harmless[k]);
        for (size_t at = 0; !known && at < problems->keys.size;) {
            pl_str asked = pl_str_from((const char *)problems->keys.data + at);
            known = pl_str_eq(asked, key);
            at += asked.size + 1;
        }
        if (known) continue;
        for (size_t at = 0; pl_problems_has_room(problems) && at < problems->keys.size;) {
            pl_str asked = pl_str_from((const char *)problems->keys.data + at);
            pl_nearest_try(&nearest, asked);
            at += asked.size + 1;
        }
        pl_problem_unsupported(problems, "key %.*s is not known%s%.*s", (int)(key.size > 96 ? 96 : key.size), key.data,
                               nearest.name.size > 0 ? "; the nearest that is: " : "", (int)nearest.name.size,
                               nearest.name.size > 0 ? nearest.name.data : "");
    }
}
