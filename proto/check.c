#include "proto/check.h"

#include "engine/base/bytes.h"
#include "proto/codec.h"
#include <inttypes.h>
#include <math.h>

#define NAME_MAX_BYTES   256
#define REASON_MAX_BYTES 4096
#define HASH_BYTES       32
/* Of sampling; engine/sample/sampler.h has the same numbers and the reasons. */
#define STEPS_MAX         16
#define BIAS_MAX          1024
#define BREAKERS_MAX      32
#define BREAKER_BYTES_MAX 64
#define GRAMMAR_BYTES_MAX 262144
/* Far above any machine, and 127 of them still add up without wrapping. */
#define SIZE_MAX_BYTES (UINT64_C(1) << 56)
#define MS             UINT64_C(1000000)
#define DAY            (UINT64_C(86400) * 1000 * MS)

typedef const pl_check_limits *limits_ref;

/* A number's place in a message, for the error: "Frame.pos[3]". */
static pl_status bad(pl_error *err, const char *field, uint64_t value, uint64_t low, uint64_t high)
{
    return pl_fail(err, PL_ERR_FORMAT, "%s: %" PRIu64 " is not in [%" PRIu64 ", %" PRIu64 "]", field, value, low, high);
}

static pl_status check_u64(const char *field, uint64_t value, uint64_t low, uint64_t high, pl_error *err)
{
    return value >= low && value <= high ? PL_OK : bad(err, field, value, low, high);
}

static pl_status check_i32(const char *field, int32_t value, int32_t low, int32_t high, pl_error *err)
{
    if (value >= low && value <= high) return PL_OK;
    return pl_fail(err, PL_ERR_FORMAT, "%s: %" PRId32 " is not in [%" PRId32 ", %" PRId32 "]", field, value, low, high);
}

static pl_status check_i32s(const char *field, const int32_t *values, size_t n, int32_t low, int32_t high,
                            pl_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (values[i] < low || values[i] > high)
            return pl_fail(err, PL_ERR_FORMAT, "%s[%zu]: %" PRId32 " is not in [%" PRId32 ", %" PRId32 "]", field, i,
                           values[i], low, high);
    return PL_OK;
}

static pl_status check_count(const char *field, size_t n, size_t low, size_t high, pl_error *err)
{
    if (n >= low && n <= high) return PL_OK;
    return pl_fail(err, PL_ERR_FORMAT, "%s: %zu entries, not %zu to %zu", field, n, low, high);
}

static pl_status check_double(const char *field, double value, double low, double high, pl_error *err)
{
    /* Written so that NaN fails. */
    if (value >= low && value <= high) return PL_OK;
    return pl_fail(err, PL_ERR_FORMAT, "%s: %g is not in [%g, %g]", field, value, low, high);
}

static pl_status check_bytes(const char *field, ProtobufCBinaryData b, size_t size, pl_error *err)
{
    if (b.len == size && b.data) return PL_OK;
    return pl_fail(err, PL_ERR_FORMAT, "%s: %zu bytes, not %zu", field, b.len, size);
}

static pl_status check_text(const char *field, const char *text, size_t size_max, bool lines, pl_error *err)
{
    pl_str s = pl_str_from(text ? text : "");
    if (s.size > size_max)
        return pl_fail(err, PL_ERR_FORMAT, "%s: %zu bytes of text, more than %zu", field, s.size, size_max);
    size_t valid = pl_utf8_valid_prefix(s);
    if (valid != s.size) return pl_fail(err, PL_ERR_FORMAT, "%s: not UTF-8 at byte %zu", field, valid);
    for (size_t i = 0; i < s.size; i++) {
        unsigned char c = (unsigned char)s.data[i];
        /* Terminals and logs obey control characters, C1 (in UTF-8 c2 80 to c2 9f) like C0. */
        bool c1 = c == 0xc2 && i + 1 < s.size && (unsigned char)s.data[i + 1] < 0xa0;
        if ((c < 0x20 && !(lines && (c == '\n' || c == '\t'))) || c == 0x7f || c1)
            return pl_fail(err, PL_ERR_FORMAT, "%s: control character at byte %zu", field, i);
    }
    return PL_OK;
}

static pl_status check_name(const char *field, const char *text, pl_error *err)
{
    return check_text(field, text, NAME_MAX_BYTES, false, err);
}

static pl_status check_failure(const Paceline__Failure *f, pl_error *err)
{
    PL_TRY(check_u64("Failure.status", f->status, PL_OK + 1, PL_STATUS_COUNT - 1, err));
    return check_text("Failure.text", f->text, REASON_MAX_BYTES, true, err);
}

static pl_status check_hello(const Paceline__Hello *m, pl_error *err)
{
    PL_TRY(check_i32("Hello.role", (int32_t)m->role, PACELINE__HELLO__ROLE__COORDINATOR,
                     PACELINE__HELLO__ROLE__DOWNSTREAM, err));
    PL_TRY(check_u64("Hello.protocol", m->protocol, 1, UINT32_MAX, err));
    PL_TRY(check_name("Hello.version", m->version, err));
    PL_TRY(check_name("Hello.name", m->name, err));
    PL_TRY(check_u64("Hello.budget_bytes", m->budget_bytes, 0, SIZE_MAX_BYTES, err));
    PL_TRY(check_u64("Hello.n_threads", m->n_threads, 0, 65536, err));
    PL_TRY(check_name("Hello.isa", m->isa, err));
    PL_TRY(check_name("Hello.profile", m->profile, err));
    PL_TRY(check_count("Hello.types", m->n_types, 0, 256, err));
    for (size_t i = 0; i < m->n_types; i++) PL_TRY(check_u64("Hello.types", m->types[i], 0, 1023, err));
    PL_TRY(check_count("Hello.archs", m->n_archs, 0, 256, err));
    for (size_t i = 0; i < m->n_archs; i++) PL_TRY(check_name("Hello.archs", m->archs[i], err));
    PL_TRY(check_count("Hello.devices", m->n_devices, 0, 64, err));
    for (size_t i = 0; i < m->n_devices; i++) {
        PL_TRY(check_name("Device.kind", m->devices[i]->kind, err));
        PL_TRY(check_name("Device.name", m->devices[i]->name, err));
        PL_TRY(check_u64("Device.memory_bytes", m->devices[i]->memory_bytes, 0, SIZE_MAX_BYTES, err));
    }
    PL_TRY(check_double("Hello.read_bytes_s", m->read_bytes_s, 0, 1e18, err));
    PL_TRY(check_double("Hello.macs_s", m->macs_s, 0, 1e24, err));
    return check_name("Hello.data_address", m->data_address, err);
}

static pl_status check_welcome(const Paceline__Welcome *m, pl_error *err)
{
    PL_TRY(check_u64("Welcome.heartbeat_ns", m->heartbeat_ns, MS, DAY - 1, err));
    PL_TRY(check_u64("Welcome.dead_after_ns", m->dead_after_ns, m->heartbeat_ns + 1, DAY, err));
    return check_u64("Welcome.lease_ns", m->lease_ns, 0, 30 * DAY, err);
}

static bool is_kv_type(uint32_t type)
{
    return type == 0 || type == 1 || type == 2 || type == 8 || type == 30;
}

/* The types of GGUF that activations travel in: elements and bytes of a block. */
static bool wire_block(uint32_t type, uint64_t *elements, uint64_t *bytes)
{
    switch (type) {
    case 0: *elements = 1, *bytes = 4; return true;   /* F32 */
    case 1: *elements = 1, *bytes = 2; return true;   /* F16 */
    case 8: *elements = 32, *bytes = 34; return true; /* Q8_0 */
    case 30: *elements = 1, *bytes = 2; return true;  /* BF16 */
    default: return false;
    }
}

bool pl_wire_bytes(uint32_t type, const uint64_t *ne, size_t n_ne, size_t *out)
{
    uint64_t elements, bytes;
    if (!wire_block(type, &elements, &bytes) || n_ne < 1 || n_ne > 4) return false;
    for (size_t i = 0; i < n_ne; i++)
        if (ne[i] > INT32_MAX) return false;
    if (ne[0] % elements != 0) return false;
    uint64_t n = ne[0] / elements;
    for (size_t i = 1; i < n_ne; i++)
        if (__builtin_mul_overflow(n, ne[i], &n)) return false;
    if (__builtin_mul_overflow(n, bytes, &n) || n > SIZE_MAX) return false;
    *out = (size_t)n;
    return true;
}

static pl_status check_neighbour(const char *field, const Paceline__Neighbour *m, pl_error *err)
{
    if (m->key.len != 0) PL_TRY(check_bytes("Neighbour.key", m->key, HASH_BYTES, err));
    PL_TRY(check_name("Neighbour.address", m->address, err));
    if (m->dial && m->address[0] == '\0')
        return pl_fail(err, PL_ERR_FORMAT, "%s: to be dialed, without an address", field);
    return PL_OK;
}

static pl_status check_load(const Paceline__Load *m, limits_ref l, pl_error *err)
{
    PL_TRY(check_bytes("Load.header_hash", m->header_hash, HASH_BYTES, err));
    PL_TRY(check_u64("Load.header_bytes", m->header_bytes, 1, SIZE_MAX_BYTES, err));
    PL_TRY(check_name("Load.model", m->model, err));
    PL_TRY(check_u64("Load.n_layer", m->n_layer, 1, (uint64_t)l->n_layer, err));
    PL_TRY(check_u64("Load.layer_end", m->layer_end, 1, m->n_layer, err));
    PL_TRY(check_u64("Load.layer_first", m->layer_first, 0, m->layer_end - 1, err));
    PL_TRY(check_u64("Load.n_stages", m->n_stages, 1, m->n_layer, err));
    PL_TRY(check_u64("Load.stage", m->stage, 0, m->n_stages - 1, err));
    bool first = m->stage == 0, last = m->stage == m->n_stages - 1;
    if (first != (m->layer_first == 0))
        return pl_fail(err, PL_ERR_FORMAT, "Load.layer_first: stage %" PRIu32 " begins at layer %" PRIu32, m->stage,
                       m->layer_first);
    if (last != (m->layer_end == m->n_layer))
        return pl_fail(err, PL_ERR_FORMAT,
                       "Load.layer_end: stage %" PRIu32 " of %" PRIu32 " ends at layer %" PRIu32 " of %" PRIu32,
                       m->stage, m->n_stages, m->layer_end, m->n_layer);
    if (first != !m->upstream)
        return pl_fail(err, PL_ERR_FORMAT, "Load.upstream: %s at stage %" PRIu32, m->upstream ? "present" : "absent",
                       m->stage);
    if (last != !m->downstream)
        return pl_fail(err, PL_ERR_FORMAT, "Load.downstream: %s at stage %" PRIu32 " of %" PRIu32,
                       m->downstream ? "present" : "absent", m->stage, m->n_stages);
    if (m->upstream) PL_TRY(check_neighbour("Load.upstream", m->upstream, err));
    if (m->downstream) PL_TRY(check_neighbour("Load.downstream", m->downstream, err));
    PL_TRY(check_u64("Load.n_blocks", m->n_blocks, 1, (uint64_t)l->n_blocks, err));
    PL_TRY(check_u64("Load.n_ctx", m->n_ctx, 1, (uint64_t)l->n_ctx, err));
    PL_TRY(check_u64("Load.n_seqs", m->n_seqs, 1, (uint64_t)l->n_seqs, err));
    PL_TRY(check_u64("Load.n_rows", m->n_rows, 1, (uint64_t)l->n_rows, err));
    PL_TRY(check_u64("Load.credits", m->credits, 1, (uint64_t)l->credits, err));
    uint64_t elements, bytes;
    if (!is_kv_type(m->kv_type))
        return pl_fail(err, PL_ERR_FORMAT, "Load.kv_type: %" PRIu32 " is no type for a KV cache", m->kv_type);
    if (!is_kv_type(m->kv_type_v))
        return pl_fail(err, PL_ERR_FORMAT, "Load.kv_type_v: %" PRIu32 " is no type for a KV cache", m->kv_type_v);
    if (!wire_block(m->wire_type, &elements, &bytes))
        return pl_fail(err, PL_ERR_FORMAT, "Load.wire_type: %" PRIu32 " is no type for activations", m->wire_type);
    PL_TRY(check_count("Load.tensors", m->n_tensors, 1, (size_t)l->n_tensors, err));
    for (size_t i = 0; i < m->n_tensors; i++) {
        const Paceline__TensorRef *t = m->tensors[i];
        PL_TRY(check_u64("TensorRef.index", t->index, i ? (uint64_t)m->tensors[i - 1]->index + 1 : 0,
                         (uint64_t)l->n_tensors - 1, err));
        PL_TRY(check_bytes("TensorRef.hash", t->hash, HASH_BYTES, err));
    }
    return check_u64("Load.stage_bytes", m->stage_bytes, 0, SIZE_MAX_BYTES, err);
}

static pl_status check_progress(const Paceline__Progress *m, pl_error *err)
{
    PL_TRY(check_i32("Progress.phase", (int32_t)m->phase, PACELINE__PROGRESS__PHASE__FETCH,
                     PACELINE__PROGRESS__PHASE__LOAD, err));
    PL_TRY(check_u64("Progress.total_bytes", m->total_bytes, 0, SIZE_MAX_BYTES, err));
    return check_u64("Progress.done_bytes", m->done_bytes, 0, m->total_bytes, err);
}

static pl_status check_ready(const Paceline__Ready *m, pl_error *err)
{
    PL_TRY(check_u64("Ready.weights_bytes", m->weights_bytes, 0, SIZE_MAX_BYTES, err));
    PL_TRY(check_u64("Ready.kv_bytes", m->kv_bytes, 0, SIZE_MAX_BYTES, err));
    PL_TRY(check_u64("Ready.compute_bytes", m->compute_bytes, 0, SIZE_MAX_BYTES, err));
    PL_TRY(check_u64("Ready.link_bytes", m->link_bytes, 0, SIZE_MAX_BYTES, err));
    return check_u64("Ready.fetched_bytes", m->fetched_bytes, 0, SIZE_MAX_BYTES, err);
}

static pl_status check_params(const Paceline__Params *p, limits_ref l, pl_error *err)
{
    PL_TRY(check_double("Params.temperature", (double)p->temperature, 0, 1e6, err));
    PL_TRY(check_i32("Params.top_k", p->top_k, -1, INT32_MAX, err));
    PL_TRY(check_double("Params.top_p", (double)p->top_p, 0, 1e6, err));
    PL_TRY(check_double("Params.min_p", (double)p->min_p, 0, 1e6, err));
    PL_TRY(check_double("Params.repeat_penalty", (double)p->repeat_penalty, 0, 1e6, err));
    PL_TRY(check_i32("Params.repeat_last_n", p->repeat_last_n, -1, INT32_MAX, err));
    PL_TRY(check_i32("Params.n_logprobs", p->n_logprobs, -1, l->n_logprobs, err));
    PL_TRY(check_double("Params.dynatemp_range", (double)p->dynatemp_range, 0, 1e6, err));
    PL_TRY(check_double("Params.dynatemp_exponent", (double)p->dynatemp_exponent, 0, 1e6, err));
    PL_TRY(check_double("Params.typical_p", (double)p->typical_p, 0, 1, err));
    PL_TRY(check_double("Params.top_n_sigma", (double)p->top_n_sigma, -1e6, 1e6, err));
    PL_TRY(check_double("Params.xtc_probability", (double)p->xtc_probability, 0, 1, err));
    PL_TRY(check_double("Params.xtc_threshold", (double)p->xtc_threshold, 0, 1, err));
    PL_TRY(check_double("Params.frequency_penalty", (double)p->frequency_penalty, -1e6, 1e6, err));
    PL_TRY(check_double("Params.presence_penalty", (double)p->presence_penalty, -1e6, 1e6, err));
    PL_TRY(check_double("Params.dry_multiplier", (double)p->dry_multiplier, 0, 1e6, err));
    PL_TRY(check_double("Params.dry_base", (double)p->dry_base, 0, 1e6, err));
    PL_TRY(check_i32("Params.dry_allowed_length", p->dry_allowed_length, 0, INT32_MAX, err));
    PL_TRY(check_i32("Params.dry_last_n", p->dry_last_n, -1, INT32_MAX, err));
    PL_TRY(check_count("Params.dry_breakers", p->n_dry_breakers, 0, BREAKERS_MAX, err));
    for (size_t i = 0; i < p->n_dry_breakers; i++)
        PL_TRY(check_count("Params.dry_breakers: bytes", p->dry_breakers[i].len, 1, BREAKER_BYTES_MAX, err));
    PL_TRY(check_u64("Params.mirostat", p->mirostat, 0, 2, err));
    PL_TRY(check_double("Params.mirostat_tau", (double)p->mirostat_tau, 0, 1e6, err));
    PL_TRY(check_double("Params.mirostat_eta", (double)p->mirostat_eta, 0, 1e6, err));
    PL_TRY(check_count("Params.samplers", p->samplers.len, 0, STEPS_MAX, err));
    PL_TRY(check_count("Params.bias_token", p->n_bias_token, 0, BIAS_MAX, err));
    PL_TRY(check_count("Params.bias", p->n_bias, p->n_bias_token, p->n_bias_token, err));
    PL_TRY(check_i32s("Params.bias_token", p->bias_token, p->n_bias_token, 0, l->n_vocab - 1, err));
    for (size_t i = 0; i < p->n_bias; i++)
        if (p->bias[i] != -INFINITY) PL_TRY(check_double("Params.bias", (double)p->bias[i], -1e30, 1e30, err));
    return check_count("Params.grammar", p->grammar.len, 0, GRAMMAR_BYTES_MAX, err);
}

static pl_status check_sequence(const Paceline__Sequence *m, limits_ref l, pl_error *err)
{
    PL_TRY(check_name("Sequence.request_id", m->request_id, err));
    PL_TRY(check_count("Sequence.prompt", m->n_prompt, 0, (size_t)l->n_ctx, err));
    PL_TRY(check_count("Sequence.emitted", m->n_emitted, 0, (size_t)l->n_ctx - m->n_prompt, err));
    PL_TRY(check_i32s("Sequence.prompt", m->prompt, m->n_prompt, 0, l->n_vocab - 1, err));
    PL_TRY(check_i32s("Sequence.emitted", m->emitted, m->n_emitted, 0, l->n_vocab - 1, err));
    if (!m->params) return pl_fail(err, PL_ERR_FORMAT, "Sequence.params: absent");
    PL_TRY(check_params(m->params, l, err));
    PL_TRY(check_count("Sequence.adapters", m->n_adapters, 0, 64, err));
    for (size_t i = 0; i < m->n_adapters; i++) {
        PL_TRY(check_u64("Adapter.index", m->adapters[i]->index, 0, 63, err));
        PL_TRY(check_double("Adapter.scale", (double)m->adapters[i]->scale, -1e6, 1e6, err));
    }
    PL_TRY(check_count("Sequence.sampler_state", m->sampler_state.len, 0, 4096, err));
    PL_TRY(check_u64("Sequence.n_shifted", m->n_shifted, 0, INT64_MAX / 2, err));
    PL_TRY(check_u64("Sequence.max_tokens", m->max_tokens, 0, INT32_MAX, err));
    PL_TRY(check_count("Sequence.stop_tokens", m->n_stop_tokens, 0, 1024, err));
    return check_i32s("Sequence.stop_tokens", m->stop_tokens, m->n_stop_tokens, 0, l->n_vocab - 1, err);
}

static pl_status check_kv_op(const Paceline__KvOp *m, limits_ref l, pl_error *err)
{
    PL_TRY(check_i32("KvOp.kind", (int32_t)m->kind, PACELINE__KV_OP__KIND__OPEN, PACELINE__KV_OP__KIND__CLOSE, err));
    bool open = m->kind == PACELINE__KV_OP__KIND__OPEN, extend = m->kind == PACELINE__KV_OP__KIND__EXTEND;
    bool fork = m->kind == PACELINE__KV_OP__KIND__FORK, truncate = m->kind == PACELINE__KV_OP__KIND__TRUNCATE;
    PL_TRY(check_i32("KvOp.seq", m->seq, 0, l->n_seqs - 1, err));
    PL_TRY(check_i32("KvOp.src", m->src, 0, fork ? l->n_seqs - 1 : 0, err));
    if (fork && m->src == m->seq)
        return pl_fail(err, PL_ERR_FORMAT, "KvOp.src: sequence %" PRId32 " forked from itself", m->seq);
    PL_TRY(check_i32("KvOp.n_pos", m->n_pos, 0, fork || truncate ? l->n_ctx : 0, err));
    PL_TRY(check_count("KvOp.blocks", m->n_blocks, extend ? 1 : 0, extend || fork ? (size_t)l->n_blocks : 0, err));
    PL_TRY(check_i32s("KvOp.blocks", m->blocks, m->n_blocks, 0, l->n_blocks - 1, err));
    if (open != (m->sequence != NULL))
        return pl_fail(err, PL_ERR_FORMAT, "KvOp.sequence: %s", open ? "absent in OPEN" : "present outside of OPEN");
    return open ? check_sequence(m->sequence, l, err) : PL_OK;
}

static pl_status check_frame(const Paceline__Frame *m, const size_t *part_sizes, size_t n_parts, limits_ref l,
                             pl_error *err)
{
    PL_TRY(check_u64("Frame.id", m->id, 1, UINT64_MAX, err));
    PL_TRY(check_count("Frame.ops", m->n_ops, 0, (size_t)l->n_ops, err));
    for (size_t i = 0; i < m->n_ops; i++) PL_TRY(check_kv_op(m->ops[i], l, err));
    size_t rows = m->n_seq, n_pos_per_row = m->n_pos_per_row ? m->n_pos_per_row : 1;
    PL_TRY(check_count("Frame.seq", rows, 0, (size_t)l->n_rows, err));
    PL_TRY(check_u64("Frame.n_pos_per_row", n_pos_per_row, 1, 4, err));
    PL_TRY(check_count("Frame.pos", m->n_pos, rows * n_pos_per_row, rows * n_pos_per_row, err));
    PL_TRY(check_count("Frame.token", m->n_token, rows, rows, err));
    PL_TRY(check_count("Frame.logits", m->n_logits, 0, rows, err));
    PL_TRY(check_i32s("Frame.seq", m->seq, rows, 0, l->n_seqs - 1, err));
    PL_TRY(check_i32s("Frame.pos", m->pos, m->n_pos, 0, l->n_ctx - 1, err));
    PL_TRY(check_i32s("Frame.token", m->token, rows, -1, l->n_vocab - 1, err));
    for (size_t i = 0; i < m->n_logits; i++) {
        PL_TRY(check_u64("Frame.logits", m->logits[i], i ? (uint64_t)m->logits[i - 1] + 1 : 0, rows - 1, err));
    }
    PL_TRY(check_count("Frame.tensors", m->n_tensors, n_parts, n_parts, err));
    for (size_t i = 0; i < m->n_tensors; i++) {
        const Paceline__TensorDesc *t = m->tensors[i];
        size_t bytes;
        PL_TRY(check_name("TensorDesc.name", t->name, err));
        if (!pl_wire_bytes(t->type, t->ne, t->n_ne, &bytes))
            return pl_fail(err, PL_ERR_FORMAT, "TensorDesc %s: type %" PRIu32 " with %zu dimensions has no size",
                           t->name, t->type, t->n_ne);
        if (bytes != part_sizes[i])
            return pl_fail(err, PL_ERR_FORMAT, "TensorDesc %s: %zu bytes described, %zu in the part", t->name, bytes,
                           part_sizes[i]);
        if (strcmp(t->name, "hidden") == 0) {
            PL_TRY(check_count("TensorDesc hidden: ne", t->n_ne, 2, 2, err));
            PL_TRY(check_u64("TensorDesc hidden: rows", t->ne[1], rows, rows, err));
            if (l->n_embd)
                PL_TRY(check_u64("TensorDesc hidden: width", t->ne[0], (uint64_t)l->n_embd, (uint64_t)l->n_embd, err));
        }
    }
    return PL_OK;
}

static pl_status check_logprob(const char *field, float p, pl_error *err)
{
    /* A token that cannot be has -infinity. */
    return check_double(field, (double)p, -INFINITY, 1e-3, err);
}

static pl_status check_result(const Paceline__Result *m, limits_ref l, pl_error *err)
{
    PL_TRY(check_u64("Result.frame", m->frame, 1, UINT64_MAX, err));
    PL_TRY(check_count("Result.tokens", m->n_tokens, 0, (size_t)l->n_rows, err));
    for (size_t i = 0; i < m->n_tokens; i++) {
        const Paceline__Token *t = m->tokens[i];
        PL_TRY(check_i32("Token.seq", t->seq, 0, l->n_seqs - 1, err));
        PL_TRY(check_i32("Token.pos", t->pos, 0, l->n_ctx, err));
        PL_TRY(check_i32("Token.token", t->token, 0, l->n_vocab - 1, err));
        PL_TRY(check_logprob("Token.logprob", t->logprob, err));
        PL_TRY(check_count("Token.top", t->n_top, 0, (size_t)l->n_logprobs, err));
        PL_TRY(check_count("Token.top_logprob", t->n_top_logprob, t->n_top, t->n_top, err));
        PL_TRY(check_i32s("Token.top", t->top, t->n_top, 0, l->n_vocab - 1, err));
        for (size_t j = 0; j < t->n_top; j++) PL_TRY(check_logprob("Token.top_logprob", t->top_logprob[j], err));
        PL_TRY(check_count("Token.sampler_state", t->sampler_state.len, 0, 4096, err));
    }
    return m->failure ? check_failure(m->failure, err) : PL_OK;
}

static pl_status check_blob_get(const Paceline__BlobGet *m, limits_ref l, pl_error *err)
{
    PL_TRY(check_bytes("BlobGet.hash", m->hash, HASH_BYTES, err));
    PL_TRY(check_u64("BlobGet.offset", m->offset, 0, SIZE_MAX_BYTES, err));
    return check_u64("BlobGet.size", m->size, 1, (uint64_t)l->blob_bytes, err);
}

static pl_status check_blob(const Paceline__Blob *m, const size_t *part_sizes, size_t n_parts, limits_ref l,
                            pl_error *err)
{
    PL_TRY(check_bytes("Blob.hash", m->hash, HASH_BYTES, err));
    PL_TRY(check_u64("Blob.total", m->total, 0, SIZE_MAX_BYTES, err));
    if (m->failure) {
        PL_TRY(check_count("Blob with failure: parts", n_parts, 0, 0, err));
        PL_TRY(check_u64("Blob.offset", m->offset, 0, SIZE_MAX_BYTES, err));
        return check_failure(m->failure, err);
    }
    PL_TRY(check_count("Blob: parts", n_parts, 1, 1, err));
    PL_TRY(check_u64("Blob: size of the part", part_sizes[0], 1, (uint64_t)l->blob_bytes, err));
    PL_TRY(check_u64("Blob.offset", m->offset, 0, m->total, err));
    return check_u64("Blob: size of the part", part_sizes[0], 1, m->total - m->offset, err);
}

static pl_status check_link_state(const Paceline__LinkState *m, pl_error *err)
{
    return m->failure ? check_failure(m->failure, err) : PL_OK;
}

static pl_status check_body(const Paceline__Envelope *m, const size_t *part_sizes, size_t n_parts, limits_ref l,
                            pl_error *err)
{
    bool has_parts = m->body_case == PACELINE__ENVELOPE__BODY_FRAME || m->body_case == PACELINE__ENVELOPE__BODY_BLOB;
    if (!has_parts && n_parts != 0) return pl_fail(err, PL_ERR_FORMAT, "%zu parts, and it has none", n_parts);
    switch (m->body_case) {
    case PACELINE__ENVELOPE__BODY_LOAD:
    case PACELINE__ENVELOPE__BODY_PROGRESS:
    case PACELINE__ENVELOPE__BODY_READY:
    case PACELINE__ENVELOPE__BODY_FRAME:
    case PACELINE__ENVELOPE__BODY_RESULT:
    case PACELINE__ENVELOPE__BODY_CREDIT:
    case PACELINE__ENVELOPE__BODY_LINK_STATE: PL_TRY(check_u64("epoch", m->epoch, 1, UINT64_MAX, err)); break;
    default: break;
    }
    switch (m->body_case) {
    case PACELINE__ENVELOPE__BODY_HELLO: return check_hello(m->hello, err);
    case PACELINE__ENVELOPE__BODY_WELCOME: return check_welcome(m->welcome, err);
    case PACELINE__ENVELOPE__BODY_HEARTBEAT:
        if (!m->heartbeat->stats) return PL_OK;
        return check_u64("NodeStats.memory_bytes", m->heartbeat->stats->memory_bytes, 0, SIZE_MAX_BYTES, err);
    case PACELINE__ENVELOPE__BODY_LOAD: return check_load(m->load, l, err);
    case PACELINE__ENVELOPE__BODY_PROGRESS: return check_progress(m->progress, err);
    case PACELINE__ENVELOPE__BODY_READY: return check_ready(m->ready, err);
    case PACELINE__ENVELOPE__BODY_UNLOAD: return PL_OK;
    case PACELINE__ENVELOPE__BODY_FRAME: return check_frame(m->frame, part_sizes, n_parts, l, err);
    case PACELINE__ENVELOPE__BODY_RESULT: return check_result(m->result, l, err);
    case PACELINE__ENVELOPE__BODY_CREDIT:
        return check_u64("Credit.frames", m->credit->frames, 1, (uint64_t)l->credits, err);
    case PACELINE__ENVELOPE__BODY_BLOB_GET: return check_blob_get(m->blob_get, l, err);
    case PACELINE__ENVELOPE__BODY_BLOB: return check_blob(m->blob, part_sizes, n_parts, l, err);
    case PACELINE__ENVELOPE__BODY_LINK_STATE: return check_link_state(m->link_state, err);
    case PACELINE__ENVELOPE__BODY_LEAVE:
        return check_text("Leave.reason", m->leave->reason, REASON_MAX_BYTES, true, err);
    case PACELINE__ENVELOPE__BODY_FAILURE: return check_failure(m->failure, err);
    default:
        /* The body of a newer program is kept as an unknown field. */
        if (m->base.n_unknown_fields)
            return pl_fail(err, PL_ERR_UNSUPPORTED, "body %u is not known to this build",
                           m->base.unknown_fields[0].tag);
        return pl_fail(err, PL_ERR_FORMAT, "no body");
    }
}

static int32_t or_default(int32_t value, int32_t otherwise)
{
    return value > 0 ? value : otherwise;
}

pl_status pl_envelope_check(const Paceline__Envelope *m, const size_t *part_sizes, size_t n_parts,
                            const pl_check_limits *limits, pl_error *err)
{
    pl_check_limits l = limits ? *limits : (pl_check_limits){0};
    l.n_layer = or_default(l.n_layer, 4096);
    l.n_tensors = or_default(l.n_tensors, 65536);
    l.n_ctx = or_default(l.n_ctx, 16 << 20);
    l.n_seqs = or_default(l.n_seqs, 65536);
    l.n_rows = or_default(l.n_rows, 65536);
    l.n_blocks = or_default(l.n_blocks, 16 << 20);
    l.n_vocab = or_default(l.n_vocab, INT32_MAX);
    l.n_embd = or_default(l.n_embd, 0);
    l.n_ops = or_default(l.n_ops, 65536);
    l.n_logprobs = or_default(l.n_logprobs, 20);
    l.credits = or_default(l.credits, 1024);
    l.blob_bytes = or_default(l.blob_bytes, 64 << 20);
    pl_status s = check_body(m, part_sizes, n_parts, &l, err);
    return s == PL_OK ? PL_OK : pl_note(err, s, "message from the peer: %s", pl_envelope_kind(m));
}
