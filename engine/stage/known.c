/* The known graph: a tiny model with weights of every type, made from a seed, run once through the same path as any
 * model, packed as this machine packs. Its logits' checksum tells whether two builds and machines compute the same
 * bits. */
#include "engine/base/alloc.h"
#include "engine/base/rng.h"
#include "engine/gguf/write.h"
#include "engine/stage/stage.h"

/* Multiples of 256 wherever a K-quant's row lies; a head count that groups; enough tokens for a second page and a full
 * tile of rows. */
enum { N_EMBD = 256, N_FF = 512, N_HEAD = 8, N_HEAD_KV = 2, N_LAYER = 4, N_VOCAB = 320, N_TOKENS = 40 };

static const pl_type types[] = {PL_TYPE_Q4_0,  PL_TYPE_Q4_1,    PL_TYPE_Q5_0,  PL_TYPE_Q5_1,    PL_TYPE_Q8_0,
                                PL_TYPE_Q4_K,  PL_TYPE_Q5_K,    PL_TYPE_Q6_K,  PL_TYPE_F32,     PL_TYPE_F16,
                                PL_TYPE_BF16,  PL_TYPE_Q2_K,    PL_TYPE_Q3_K,  PL_TYPE_IQ4_NL,  PL_TYPE_IQ4_XS,
                                PL_TYPE_MXFP4, PL_TYPE_NVFP4,   PL_TYPE_TQ1_0, PL_TYPE_TQ2_0,   PL_TYPE_Q1_0,
                                PL_TYPE_Q2_0,  PL_TYPE_Q8_1,    PL_TYPE_Q8_K,  PL_TYPE_IQ2_XXS, PL_TYPE_IQ2_XS,
                                PL_TYPE_IQ2_S, PL_TYPE_IQ3_XXS, PL_TYPE_IQ3_S, PL_TYPE_IQ1_S,   PL_TYPE_IQ1_M};

typedef struct maker {
    pl_gguf_writer *w;
    pl_rng rng;
    pl_arena *arena;
    size_t n; /* matrices made, which choose the next one's type */
    bool ok;
} maker;

/* A row of an IQ type: any bytes are one, and to search for the best would take longer than all the rest. The scale is
 * 2^-11, which makes weights of ordinary size. */
static void iq_row(maker *m, pl_type type, uint8_t *row, size_t size)
{
    for (size_t i = 0; i < size; i++) row[i] = (uint8_t)pl_rng_u64(&m->rng);
    const size_t block = pl_type_get(type)->bytes;
    for (uint8_t *b = row; b < row + size; b += block) {
        const uint16_t d = 0x1000;
        if (type != PL_TYPE_IQ1_M) {
            pl_put_u16(b, d);
            continue;
        }
        for (int i = 0; i < 4; i++) b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | (d >> 4 * i & 15) << 4);
    }
}

static bool is_iq(pl_type type)
{
    return (type >= PL_TYPE_IQ2_XXS && type <= PL_TYPE_IQ1_S) || type == PL_TYPE_IQ3_S || type == PL_TYPE_IQ2_S ||
           type == PL_TYPE_IQ1_M;
}

static void matrix(maker *m, const char *name, int64_t ne0, int64_t ne1)
{
    pl_type type = types[m->n++ % (sizeof types / sizeof types[0])];
    size_t row_size = pl_type_row_size(type, ne0);
    uint8_t *data = pl_arena_alloc(m->arena, row_size * (size_t)ne1);
    float *row = pl_arena_alloc(m->arena, (size_t)ne0 * sizeof *row);
    if (data == NULL || row == NULL) {
        m->ok = false;
        return;
    }
    for (int64_t i = 0; i < ne1; i++) {
        if (is_iq(type)) {
            iq_row(m, type, data + (size_t)i * row_size, row_size);
            continue;
        }
        for (int64_t j = 0; j < ne0; j++) row[j] = (float)((pl_rng_f64(&m->rng) - 0.5) * 0.25);
        pl_type_get(type)->from_float(row, data + (size_t)i * row_size, ne0);
    }
    m->ok = m->ok && pl_gguf_add_tensor(m->w, name, type, 2, (int64_t[]){ne0, ne1}, data);
}

static void vector(maker *m, const char *name, int64_t n)
{
    float *data = pl_arena_alloc(m->arena, (size_t)n * sizeof *data);
    if (data == NULL) {
        m->ok = false;
        return;
    }
    for (int64_t i = 0; i < n; i++) data[i] = (float)(0.75 + 0.5 * pl_rng_f64(&m->rng));
    m->ok = m->ok && pl_gguf_add_tensor(m->w, name, PL_TYPE_F32, 1, &n, data);
}

static pl_status make_model(pl_buf *out, pl_arena *arena, pl_error *err)
{
    maker m = {.arena = arena, .ok = true};
    pl_rng_seed(&m.rng, 20240229);
    PL_TRY(pl_gguf_writer_new(&m.w, err));
    m.ok = pl_gguf_add_str(m.w, "general.architecture", PL_STR("llama")) &&
           pl_gguf_add_u32(m.w, "llama.block_count", N_LAYER) &&
           pl_gguf_add_u32(m.w, "llama.embedding_length", N_EMBD) &&
           pl_gguf_add_u32(m.w, "llama.feed_forward_length", N_FF) &&
           pl_gguf_add_u32(m.w, "llama.attention.head_count", N_HEAD) &&
           pl_gguf_add_u32(m.w, "llama.attention.head_count_kv", N_HEAD_KV) &&
           pl_gguf_add_u32(m.w, "llama.context_length", 64) &&
           pl_gguf_add_f32(m.w, "llama.attention.layer_norm_rms_epsilon", 1e-5f) &&
           pl_gguf_add_str(m.w, "llama.rope.scaling.type", PL_STR("yarn")) &&
           pl_gguf_add_f32(m.w, "llama.rope.scaling.factor", 4.0f);
    const int64_t n_kv = N_EMBD / N_HEAD * N_HEAD_KV;
    matrix(&m, "token_embd.weight", N_EMBD, N_VOCAB);
    for (int l = 0; l < N_LAYER; l++) {
        const struct {
            const char *name;
            int64_t ne0, ne1; /* ne1 0: a vector */
        } tensors[] = {{"attn_norm.weight", N_EMBD, 0},        {"attn_q.weight", N_EMBD, N_EMBD},
                       {"attn_k.weight", N_EMBD, n_kv},        {"attn_v.weight", N_EMBD, n_kv},
                       {"attn_output.weight", N_EMBD, N_EMBD}, {"ffn_norm.weight", N_EMBD, 0},
                       {"ffn_gate.weight", N_EMBD, N_FF},      {"ffn_up.weight", N_EMBD, N_FF},
                       {"ffn_down.weight", N_FF, N_EMBD}};
        for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
            char *name = pl_arena_printf(arena, "blk.%d.%s", l, tensors[i].name);
            if (name == NULL)
                m.ok = false;
            else if (tensors[i].ne1 == 0)
                vector(&m, name, tensors[i].ne0);
            else
                matrix(&m, name, tensors[i].ne0, tensors[i].ne1);
        }
    }
    vector(&m, "output_norm.weight", N_EMBD);
    matrix(&m, "output.weight", N_EMBD, N_VOCAB);
    pl_status s = m.ok ? pl_gguf_write(m.w, out, err) : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the known model");
    pl_gguf_writer_free(m.w);
    return s;
}

/* All weights in the layout that the backend likes best. */
static pl_status pack_all(pl_weight *weights, const pl_gguf *g, const pl_model_profile *p, pl_arena *arena,
                          pl_error *err)
{
    pl_pool *pool = NULL;
    pl_backend *b = NULL;
    pl_status s = pl_pool_new(&pool, (pl_pool_options){.n_threads = 1}, err);
    if (s == PL_OK) s = pl_cpu_backend_new(&b, pool, err);
    size_t n = pl_model_stage_tensors(p, 0, N_LAYER, NULL);
    size_t *tensors = pl_arena_alloc(arena, n * sizeof *tensors);
    if (s == PL_OK && tensors == NULL) s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the known model");
    if (s == PL_OK) pl_model_stage_tensors(p, 0, N_LAYER, tensors);
    for (size_t i = 0; s == PL_OK && i < n; i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(g, tensors[i]);
        pl_layout layout = b->vt->best_layout(b, t->type, t->ne);
        void *data = pl_arena_alloc(arena, t->size);
        if (data == NULL) {
            s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the known model");
            break;
        }
        b->vt->pack(b, layout, t->type, t->ne, t->data, data, 0, t->ne[1] * t->ne[2] * t->ne[3]);
        weights[i] = (pl_weight){layout, data};
    }
    if (b) b->vt->free(b);
    pl_pool_free(pool);
    return s;
}

static pl_status run_model(const pl_gguf *g, const pl_model_profile *p, const pl_weight *weights, pl_type kv_type,
                           pl_arena *arena, uint64_t *sum, pl_error *err)
{
    const size_t size = (size_t)N_TOKENS * N_VOCAB * sizeof(float);
    float *logits = pl_arena_alloc(arena, size);
    if (logits == NULL) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the known model");
    pl_stage_options options = {.shape = {.layer_end = N_LAYER,
                                          .n_blocks = 2,
                                          .n_ctx = 64,
                                          .n_seqs = 1,
                                          .n_rows = N_TOKENS,
                                          .n_threads = 1,
                                          .cache = PL_CACHE_BOTH(kv_type)},
                                .poll = -1};
    pl_stage *stage;
    PL_TRY(pl_stage_open(&stage, g, p, weights, &options, err));
    pl_sample_params params = pl_sample_defaults();
    const pl_kv_op ops[] = {{.kind = PL_KV_OPEN, .params = &params},
                            {.kind = PL_KV_EXTEND, .blocks = (const int32_t[]){1, 0}, .n_blocks = 2}};
    pl_row rows[N_TOKENS];
    for (int32_t i = 0; i < N_TOKENS; i++) rows[i] = (pl_row){.pos = i, .token = i * 37 % N_VOCAB, .logits = true};
    pl_micro_batch mb = {.ops = ops, .n_ops = 2, .rows = rows, .n_rows = N_TOKENS, .logits_out = logits};
    pl_status s = pl_stage_run(stage, &mb, err);
    if (s == PL_OK) *sum = pl_checksum((pl_bytes){(const uint8_t *)logits, size}, *sum);
    pl_stage_close(stage);
    return s;
}

pl_status pl_stage_known_checksum(uint64_t *out, pl_error *err)
{
    pl_arena arena;
    pl_arena_init(&arena, 1 << 20);
    pl_buf file = {0};
    pl_gguf *g = NULL;
    pl_model_profile *p = NULL;
    pl_weight *weights = NULL;
    *out = 0;
    pl_status s = make_model(&file, &arena, err);
    if (s == PL_OK) s = pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, err);
    if (s == PL_OK) s = pl_model_profile_open(&p, g, err);
    if (s == PL_OK) {
        weights = pl_arena_alloc(&arena, pl_gguf_n_tensors(g) * sizeof *weights);
        s = weights ? pack_all(weights, g, p, &arena, err)
                    : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the known model");
    }
    if (s == PL_OK) s = run_model(g, p, weights, PL_TYPE_F16, &arena, out, err);
    if (s == PL_OK) s = run_model(g, p, weights, PL_TYPE_F32, &arena, out, err);
    if (s == PL_OK) s = run_model(g, p, weights, PL_TYPE_Q8_0, &arena, out, err);
    if (s == PL_OK) s = run_model(g, p, weights, PL_TYPE_Q4_0, &arena, out, err);
    pl_model_profile_close(p);
    pl_gguf_close(g);
    pl_buf_fini(&file);
    pl_arena_fini(&arena);
    return s == PL_OK ? PL_OK : pl_note(err, s, "known graph");
}
