/* Every rule of proto/check.h has a message that breaks it. */
#include "engine/base/alloc.h"
#include "engine/base/buf.h"
#include "proto/check.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fixtures/messages.h"
#include <math.h>
#include <stdlib.h>

/* A valid message, unpacked, so that it can be changed. */
typedef struct draft {
    pl_envelope e;
    size_t part_sizes[MESSAGE_PARTS_MAX + 1], n_parts;
} draft;

static const pl_check_limits limits = {.n_layer = 100,
                                       .n_tensors = 100,
                                       .n_ctx = 2048,
                                       .n_seqs = 4,
                                       .n_rows = 512,
                                       .n_blocks = 256,
                                       .n_vocab = 1000,
                                       .n_embd = 64,
                                       .n_ops = 10,
                                       .n_logprobs = 5,
                                       .credits = 8,
                                       .blob_bytes = 1 << 20};

static pl_buf packed(int body)
{
    message v = message_valid(body);
    pl_buf b = {0};
    ck_assert(pl_buf_reserve(&b, pl_envelope_size(v.m) + 1));
    b.size = pl_envelope_size(v.m);
    pl_envelope_pack(v.m, b.data);
    return b;
}

static draft draft_of(int body)
{
    draft d = {0};
    message v = message_valid(body);
    memcpy(d.part_sizes, v.part_sizes, sizeof v.part_sizes);
    d.n_parts = v.n_parts;
    pl_buf b = packed(body);
    pl_error err = {0};
    ck_ok(pl_envelope_unpack(&d.e, pl_buf_bytes(&b), &err), err);
    pl_buf_fini(&b);
    return d;
}

static pl_status check_draft(draft *d, pl_error *err)
{
    return pl_envelope_check(d->e.m, d->part_sizes, d->n_parts, &limits, err);
}

static void ck_rejected(draft *d, const char *words, int line)
{
    pl_error err = {0};
    pl_status s = check_draft(d, &err);
    ck_assert_msg(s == PL_ERR_FORMAT, "line %d: %s, not a broken format", line, pl_status_name(s));
    ck_assert_msg(strstr(err.text, words), "line %d: \"%s\" does not say \"%s\"", line, err.text, words);
    pl_envelope_fini(&d->e);
}

/* The valid message of this kind, changed by the statement, is rejected with these words. M is the envelope. */
#define M (d.e.m)
#define REJECTED(body, words, ...)                                                                                     \
    do {                                                                                                               \
        draft d = draft_of(PACELINE__ENVELOPE__BODY_##body);                                                           \
        __VA_ARGS__;                                                                                                   \
        ck_rejected(&d, words, __LINE__);                                                                              \
    } while (0)
#define ACCEPTED(body, ...)                                                                                            \
    do {                                                                                                               \
        draft d = draft_of(PACELINE__ENVELOPE__BODY_##body);                                                           \
        pl_error err = {0};                                                                                            \
        __VA_ARGS__;                                                                                                   \
        ck_ok(check_draft(&d, &err), err);                                                                             \
        pl_envelope_fini(&d.e);                                                                                        \
    } while (0)
#define HUGE_BYTES (((uint64_t)1 << 56) + 1)

static char *text_of(const char *s)
{
    return (char *)(uintptr_t)s;
}

static char *long_text(size_t n)
{
    static char text[8192];
    memset(text, 'x', n);
    text[n] = '\0';
    return text;
}

START_TEST(every_valid_message_is_accepted_and_survives_its_packing)
{
    pl_error err = {0};
    draft d = draft_of(_i);
    ck_ok(check_draft(&d, &err), err);
    ck_ok(pl_envelope_check(M, d.part_sizes, d.n_parts, NULL, &err), err);
    ck_assert_str_ne(pl_envelope_kind(M), "nothing");
    pl_buf first = packed(_i);
    ck_assert_uint_eq(pl_envelope_size(M), first.size);
    uint8_t *again = pl_alloc(first.size + 1);
    ck_assert_ptr_nonnull(again);
    pl_envelope_pack(M, again);
    ck_assert_mem_eq(again, first.data, first.size);
    pl_free(again);
    pl_buf_fini(&first);
    pl_envelope_fini(&d.e);
}
END_TEST

START_TEST(a_header_cut_short_anywhere_is_an_error_or_another_message)
{
    pl_buf b = packed(_i);
    pl_envelope e = {0};
    for (size_t n = 0; n < b.size; n++) {
        uint8_t *exact = pl_alloc(n ? n : 1);
        ck_assert_ptr_nonnull(exact);
        memcpy(exact, b.data, n);
        pl_error err = {0};
        pl_status s = pl_envelope_unpack(&e, (pl_bytes){exact, n}, &err);
        ck_assert(s == PL_OK || s == PL_ERR_FORMAT);
        ck_assert((s == PL_OK) == (e.m != NULL));
        if (s == PL_OK) (void)!pl_envelope_check(e.m, NULL, 0, &limits, &err);
        pl_free(exact);
    }
    pl_envelope_fini(&e);
    pl_buf_fini(&b);
}
END_TEST

START_TEST(no_message_but_frame_and_blob_has_parts)
{
    draft d = draft_of(_i);
    if (_i != PACELINE__ENVELOPE__BODY_FRAME && _i != PACELINE__ENVELOPE__BODY_BLOB) {
        d.part_sizes[0] = 1;
        d.n_parts = 1;
        ck_rejected(&d, "parts", __LINE__);
        return;
    }
    d.part_sizes[d.n_parts++] = 1;
    ck_rejected(&d, _i == PACELINE__ENVELOPE__BODY_FRAME ? "Frame.tensors" : "parts", __LINE__);
}
END_TEST

START_TEST(envelopes_need_a_known_body_and_an_epoch_where_one_belongs)
{
    pl_envelope e = {0};
    pl_error err = {0};
    ck_ok(pl_envelope_unpack(&e, (pl_bytes){NULL, 0}, &err), err);
    ck_status(pl_envelope_check(e.m, NULL, 0, NULL, &err), PL_ERR_FORMAT, err);
    ck_says(err, "no body");
    /* Field 1000, of two bytes: from a newer program. */
    static const uint8_t newer[] = {0xc2, 0x3e, 2, 1, 2};
    ck_ok(pl_envelope_unpack(&e, (pl_bytes){newer, sizeof newer}, &err), err);
    ck_status(pl_envelope_check(e.m, NULL, 0, NULL, &err), PL_ERR_UNSUPPORTED, err);
    ck_says(err, "1000");
    pl_envelope_fini(&e);
    REJECTED(LOAD, "epoch", M->epoch = 0);
    REJECTED(PROGRESS, "epoch", M->epoch = 0);
    REJECTED(READY, "epoch", M->epoch = 0);
    REJECTED(FRAME, "epoch", M->epoch = 0);
    REJECTED(RESULT, "epoch", M->epoch = 0);
    REJECTED(CREDIT, "epoch", M->epoch = 0);
    REJECTED(LINK_STATE, "epoch", M->epoch = 0);
}
END_TEST

START_TEST(a_small_header_cannot_unpack_to_a_large_structure)
{
    /* Two bytes on the wire for each empty token of a Result, some hundred in memory. */
    static const size_t n_tokens = 100000;
    pl_buf b = {0};
    pl_error err = {0};
    size_t body = 2 * n_tokens;
    ck_assert(pl_buf_add_u8(&b, 10 << 3 | 2)); /* Envelope.result, length as a varint of 3 bytes */
    ck_assert(pl_buf_add_u8(&b, (uint8_t)(body | 0x80)) && pl_buf_add_u8(&b, (uint8_t)(body >> 7 | 0x80)) &&
              pl_buf_add_u8(&b, (uint8_t)(body >> 14)));
    for (size_t i = 0; i < n_tokens; i++) ck_assert(pl_buf_add_u8(&b, 2 << 3 | 2) && pl_buf_add_u8(&b, 0));
    pl_envelope e = {0};
    ck_status(pl_envelope_unpack(&e, pl_buf_bytes(&b), &err), PL_ERR_FORMAT, err);
    ck_says(err, "24 times");
    ck_assert_ptr_null(e.m);
    pl_envelope_fini(&e);
    pl_buf_fini(&b);
}
END_TEST

START_TEST(unpacking_again_allocates_nothing)
{
    pl_buf b = packed(PACELINE__ENVELOPE__BODY_FRAME);
    pl_envelope e = {0};
    pl_error err = {0};
    ck_ok(pl_envelope_unpack(&e, pl_buf_bytes(&b), &err), err);
    uint64_t before = pl_alloc_count();
    for (int i = 0; i < 10; i++) ck_ok(pl_envelope_unpack(&e, pl_buf_bytes(&b), &err), err);
    ck_assert_uint_eq(pl_alloc_count(), before);
    pl_envelope_fini(&e);
    pl_buf_fini(&b);
}
END_TEST

START_TEST(unpacking_survives_every_failed_allocation)
{
    pl_buf b = packed(_i);
    for (uint64_t n = 1; n < 100; n++) {
        pl_envelope e = {0};
        pl_error err = {0};
        pl_alloc_fail_at(n);
        pl_status s = pl_envelope_unpack(&e, pl_buf_bytes(&b), &err);
        pl_alloc_fail_at(0);
        ck_assert(s == PL_OK || s == PL_ERR_NO_MEMORY);
        pl_envelope_fini(&e);
        if (s == PL_OK) break;
    }
    pl_buf_fini(&b);
}
END_TEST

START_TEST(texts_are_utf_8_without_control_characters_and_not_too_long)
{
    REJECTED(HELLO, "Hello.name: not UTF-8 at byte 2", M->hello->name = text_of("ab\xff"));
    REJECTED(HELLO, "Hello.name: not UTF-8", M->hello->name = text_of("\xed\xa0\x80"));
    REJECTED(HELLO, "Hello.version: control character at byte 1", M->hello->version = text_of("a\x1b[2J"));
    REJECTED(HELLO, "Hello.name: control", M->hello->name = text_of("a\nb"));
    REJECTED(HELLO, "Hello.name: control", M->hello->name = text_of("a\x7f"));
    REJECTED(HELLO, "Hello.name: control",
             M->hello->name = text_of("\xc2\x9b"
                                      "2J"));
    REJECTED(HELLO, "257 bytes", M->hello->name = long_text(257));
    ACCEPTED(HELLO, M->hello->name = long_text(256));
    REJECTED(LEAVE, "4097 bytes", M->leave->reason = long_text(4097));
    REJECTED(LEAVE, "control", M->leave->reason = text_of("\r"));
    ACCEPTED(LEAVE, M->leave->reason = text_of("one\n\ttwo"));
}
END_TEST

START_TEST(hello_is_checked)
{
    REJECTED(HELLO, "Hello.role", M->hello->role = PACELINE__HELLO__ROLE__ROLE_NONE);
    REJECTED(HELLO, "Hello.role", M->hello->role = (Paceline__Hello__Role)5);
    REJECTED(HELLO, "Hello.protocol", M->hello->protocol = 0);
    REJECTED(HELLO, "Hello.budget_bytes", M->hello->budget_bytes = HUGE_BYTES);
    REJECTED(HELLO, "Hello.n_threads", M->hello->n_threads = 65537);
    REJECTED(HELLO, "Hello.isa", M->hello->isa = text_of("\x01"));
    REJECTED(HELLO, "Hello.profile", M->hello->profile = text_of("\x01"));
    REJECTED(HELLO, "Hello.types: 257", M->hello->n_types = 257);
    REJECTED(HELLO, "Hello.types", M->hello->types[1] = 1024);
    REJECTED(HELLO, "Hello.archs: 257", M->hello->n_archs = 257);
    REJECTED(HELLO, "Hello.archs", M->hello->archs[0] = text_of("\x01"));
    REJECTED(HELLO, "Hello.devices: 65", M->hello->n_devices = 65);
    REJECTED(HELLO, "Device.kind", M->hello->devices[0]->kind = text_of("\x01"));
    REJECTED(HELLO, "Device.name", M->hello->devices[0]->name = text_of("\x01"));
    REJECTED(HELLO, "Device.memory_bytes", M->hello->devices[0]->memory_bytes = HUGE_BYTES);
    REJECTED(HELLO, "Hello.read_bytes_s", M->hello->read_bytes_s = (double)NAN);
    REJECTED(HELLO, "Hello.read_bytes_s", M->hello->read_bytes_s = -1);
    REJECTED(HELLO, "Hello.macs_s", M->hello->macs_s = (double)INFINITY);
    REJECTED(HELLO, "Hello.data_address", M->hello->data_address = text_of("\x01"));
}
END_TEST

START_TEST(welcome_and_heartbeat_are_checked)
{
    REJECTED(WELCOME, "Welcome.heartbeat_ns", M->welcome->heartbeat_ns = 999999);
    REJECTED(WELCOME, "Welcome.heartbeat_ns", M->welcome->heartbeat_ns = UINT64_MAX);
    REJECTED(WELCOME, "Welcome.dead_after_ns", M->welcome->dead_after_ns = M->welcome->heartbeat_ns);
    REJECTED(WELCOME, "Welcome.dead_after_ns", M->welcome->dead_after_ns = UINT64_MAX);
    REJECTED(WELCOME, "Welcome.lease_ns", M->welcome->lease_ns = UINT64_MAX);
    REJECTED(HEARTBEAT, "NodeStats.memory_bytes", M->heartbeat->stats->memory_bytes = HUGE_BYTES);
    ACCEPTED(HEARTBEAT, M->heartbeat->stats = NULL);
}
END_TEST

START_TEST(load_is_checked)
{
    REJECTED(LOAD, "Load.header_hash: 31", M->load->header_hash.len = 31);
    REJECTED(LOAD, "Load.header_bytes", M->load->header_bytes = 0);
    REJECTED(LOAD, "Load.header_bytes", M->load->header_bytes = HUGE_BYTES);
    REJECTED(LOAD, "Load.model", M->load->model = text_of("\x01"));
    REJECTED(LOAD, "Load.n_layer", M->load->n_layer = 0);
    REJECTED(LOAD, "Load.n_layer", M->load->n_layer = 101);
    REJECTED(LOAD, "Load.layer_end", M->load->layer_end = 31);
    REJECTED(LOAD, "Load.layer_end", M->load->layer_end = 0);
    REJECTED(LOAD, "Load.layer_first", M->load->layer_first = 20);
    REJECTED(LOAD, "Load.layer_first", M->load->layer_first = 0);
    REJECTED(LOAD, "Load.layer_end", M->load->layer_end = 30);
    REJECTED(LOAD, "Load.n_stages", M->load->n_stages = 0);
    REJECTED(LOAD, "Load.n_stages", M->load->n_stages = 31);
    REJECTED(LOAD, "Load.stage", M->load->stage = 3);
    REJECTED(LOAD, "Load.layer_first", M->load->stage = 0);
    REJECTED(LOAD, "Load.layer_end", M->load->stage = 2);
    REJECTED(LOAD, "Load.upstream: absent", M->load->upstream = NULL);
    REJECTED(LOAD, "Load.downstream: absent", M->load->downstream = NULL);
    REJECTED(LOAD, "Load.upstream: present", M->load->stage = 0; M->load->layer_first = 0);
    REJECTED(LOAD, "Load.downstream: present", M->load->stage = 2; M->load->layer_end = 30);
    ACCEPTED(LOAD, M->load->stage = 0; M->load->layer_first = 0; M->load->upstream = NULL);
    ACCEPTED(LOAD, M->load->stage = 2; M->load->layer_end = 30; M->load->downstream = NULL);
    REJECTED(LOAD, "Neighbour.key: 5", M->load->upstream->key.len = 5);
    ACCEPTED(LOAD, M->load->upstream->key.len = 0);
    REJECTED(LOAD, "Neighbour.address", M->load->upstream->address = text_of("\x01"));
    REJECTED(LOAD, "without an address", M->load->downstream->address = text_of(""));
    REJECTED(LOAD, "Load.n_blocks", M->load->n_blocks = 0);
    REJECTED(LOAD, "Load.n_blocks", M->load->n_blocks = 257);
    REJECTED(LOAD, "Load.n_ctx", M->load->n_ctx = 0);
    REJECTED(LOAD, "Load.n_ctx", M->load->n_ctx = UINT32_MAX);
    REJECTED(LOAD, "Load.n_seqs", M->load->n_seqs = 0);
    REJECTED(LOAD, "Load.n_seqs", M->load->n_seqs = 5);
    REJECTED(LOAD, "Load.n_rows", M->load->n_rows = 0);
    REJECTED(LOAD, "Load.n_rows", M->load->n_rows = 513);
    REJECTED(LOAD, "Load.credits", M->load->credits = 0);
    REJECTED(LOAD, "Load.credits", M->load->credits = 9);
    REJECTED(LOAD, "Load.kv_type", M->load->kv_type = 31);
    REJECTED(LOAD, "Load.kv_type_v", M->load->kv_type_v = 31);
    REJECTED(LOAD, "Load.wire_type", M->load->wire_type = 2);
    REJECTED(LOAD, "Load.tensors: 0", M->load->n_tensors = 0);
    REJECTED(LOAD, "Load.tensors: 101", M->load->n_tensors = 101);
    REJECTED(LOAD, "TensorRef.index", M->load->tensors[1]->index = 3);
    REJECTED(LOAD, "TensorRef.index", M->load->tensors[1]->index = 100);
    REJECTED(LOAD, "TensorRef.hash: 0", M->load->tensors[1]->hash.len = 0);
    REJECTED(LOAD, "Load.stage_bytes", M->load->stage_bytes = HUGE_BYTES);
}
END_TEST

START_TEST(progress_and_ready_are_checked)
{
    REJECTED(PROGRESS, "Progress.phase", M->progress->phase = (Paceline__Progress__Phase)3);
    REJECTED(PROGRESS, "Progress.phase", M->progress->phase = (Paceline__Progress__Phase)-1);
    REJECTED(PROGRESS, "Progress.done_bytes", M->progress->done_bytes = 21);
    REJECTED(PROGRESS, "Progress.total_bytes", M->progress->total_bytes = HUGE_BYTES);
    REJECTED(READY, "Ready.weights_bytes", M->ready->weights_bytes = HUGE_BYTES);
    REJECTED(READY, "Ready.kv_bytes", M->ready->kv_bytes = HUGE_BYTES);
    REJECTED(READY, "Ready.compute_bytes", M->ready->compute_bytes = HUGE_BYTES);
    REJECTED(READY, "Ready.link_bytes", M->ready->link_bytes = HUGE_BYTES);
    REJECTED(READY, "Ready.fetched_bytes", M->ready->fetched_bytes = HUGE_BYTES);
}
END_TEST

#define OP(i)    (M->frame->ops[i])
#define SEQUENCE (OP(0)->sequence)
enum { OPEN_OP, EXTEND_OP, FORK_OP, TRUNCATE_OP, CLOSE_OP };

START_TEST(sequences_are_checked)
{
    REJECTED(FRAME, "Sequence.request_id", SEQUENCE->request_id = text_of("\x01"));
    REJECTED(FRAME, "Sequence.prompt", SEQUENCE->n_prompt = 2049);
    REJECTED(FRAME, "Sequence.emitted", SEQUENCE->n_emitted = 2046);
    REJECTED(FRAME, "Sequence.prompt[1]", SEQUENCE->prompt[1] = 1000);
    REJECTED(FRAME, "Sequence.prompt[1]", SEQUENCE->prompt[1] = -1);
    REJECTED(FRAME, "Sequence.emitted[0]", SEQUENCE->emitted[0] = -1);
    REJECTED(FRAME, "Sequence.params: absent", SEQUENCE->params = NULL);
    REJECTED(FRAME, "Sequence.adapters: 65", SEQUENCE->n_adapters = 65);
    REJECTED(FRAME, "Adapter.index: 64", SEQUENCE->adapters[0]->index = 64);
    REJECTED(FRAME, "Adapter.scale", SEQUENCE->adapters[0]->scale = NAN);
    REJECTED(FRAME, "Sequence.sampler_state", SEQUENCE->sampler_state.len = 4097);
    REJECTED(FRAME, "Sequence.max_tokens", SEQUENCE->max_tokens = 0x80000000U);
    REJECTED(FRAME, "Sequence.stop_tokens: 1025", SEQUENCE->n_stop_tokens = 1025);
    REJECTED(FRAME, "Sequence.stop_tokens[0]", SEQUENCE->stop_tokens[0] = 1000);
    REJECTED(FRAME, "Params.temperature", SEQUENCE->params->temperature = -1);
    REJECTED(FRAME, "Params.temperature", SEQUENCE->params->temperature = NAN);
    REJECTED(FRAME, "Params.top_k", SEQUENCE->params->top_k = -2);
    REJECTED(FRAME, "Params.top_p", SEQUENCE->params->top_p = INFINITY);
    REJECTED(FRAME, "Params.min_p", SEQUENCE->params->min_p = -0.1F);
    REJECTED(FRAME, "Params.repeat_penalty", SEQUENCE->params->repeat_penalty = NAN);
    REJECTED(FRAME, "Params.repeat_last_n", SEQUENCE->params->repeat_last_n = -2);
    REJECTED(FRAME, "Params.n_logprobs", SEQUENCE->params->n_logprobs = 6);
    REJECTED(FRAME, "Params.n_logprobs", SEQUENCE->params->n_logprobs = -2);
    REJECTED(FRAME, "Params.dynatemp_range", SEQUENCE->params->dynatemp_range = -1);
    REJECTED(FRAME, "Params.dynatemp_exponent", SEQUENCE->params->dynatemp_exponent = NAN);
    REJECTED(FRAME, "Params.typical_p", SEQUENCE->params->typical_p = 1.5F);
    REJECTED(FRAME, "Params.top_n_sigma", SEQUENCE->params->top_n_sigma = NAN);
    REJECTED(FRAME, "Params.xtc_probability", SEQUENCE->params->xtc_probability = 2);
    REJECTED(FRAME, "Params.xtc_threshold", SEQUENCE->params->xtc_threshold = -1);
    REJECTED(FRAME, "Params.frequency_penalty", SEQUENCE->params->frequency_penalty = INFINITY);
    REJECTED(FRAME, "Params.presence_penalty", SEQUENCE->params->presence_penalty = NAN);
    REJECTED(FRAME, "Params.dry_multiplier", SEQUENCE->params->dry_multiplier = -1);
    REJECTED(FRAME, "Params.dry_base", SEQUENCE->params->dry_base = NAN);
    REJECTED(FRAME, "Params.dry_allowed_length", SEQUENCE->params->dry_allowed_length = -1);
    REJECTED(FRAME, "Params.dry_last_n", SEQUENCE->params->dry_last_n = -2);
    REJECTED(FRAME, "Params.dry_breakers", SEQUENCE->params->n_dry_breakers = 33);
    REJECTED(FRAME, "Params.dry_breakers", SEQUENCE->params->dry_breakers[0].len = 65);
    REJECTED(FRAME, "Params.dry_breakers", SEQUENCE->params->dry_breakers[0].len = 0);
    REJECTED(FRAME, "Params.mirostat", SEQUENCE->params->mirostat = 3);
    REJECTED(FRAME, "Params.mirostat_tau", SEQUENCE->params->mirostat_tau = -1);
    REJECTED(FRAME, "Params.mirostat_eta", SEQUENCE->params->mirostat_eta = NAN);
    REJECTED(FRAME, "Params.samplers", SEQUENCE->params->samplers.len = 17);
    REJECTED(FRAME, "Params.bias_token", SEQUENCE->params->n_bias_token = SEQUENCE->params->n_bias = 1025);
    REJECTED(FRAME, "Params.bias", SEQUENCE->params->n_bias = 1);
    REJECTED(FRAME, "Params.bias_token[1]", SEQUENCE->params->bias_token[1] = -1);
    REJECTED(FRAME, "Params.bias", SEQUENCE->params->bias[0] = INFINITY);
    REJECTED(FRAME, "Params.bias", SEQUENCE->params->bias[0] = NAN);
    REJECTED(FRAME, "Params.grammar", SEQUENCE->params->grammar.len = 262145);
}
END_TEST

START_TEST(kv_operations_are_checked)
{
    REJECTED(FRAME, "KvOp.kind", OP(0)->kind = PACELINE__KV_OP__KIND__KV_NONE);
    REJECTED(FRAME, "KvOp.kind", OP(0)->kind = (Paceline__KvOp__Kind)6);
    REJECTED(FRAME, "KvOp.seq", OP(0)->seq = 4);
    REJECTED(FRAME, "KvOp.seq", OP(0)->seq = -1);
    REJECTED(FRAME, "KvOp.src", OP(FORK_OP)->src = 4);
    REJECTED(FRAME, "KvOp.src", OP(FORK_OP)->src = -1);
    REJECTED(FRAME, "forked from itself", OP(FORK_OP)->src = 1);
    REJECTED(FRAME, "KvOp.src", OP(CLOSE_OP)->src = 1);
    REJECTED(FRAME, "KvOp.n_pos", OP(FORK_OP)->n_pos = 2049);
    REJECTED(FRAME, "KvOp.n_pos", OP(TRUNCATE_OP)->n_pos = -1);
    REJECTED(FRAME, "KvOp.n_pos", OP(EXTEND_OP)->n_pos = 1);
    REJECTED(FRAME, "KvOp.blocks: 0", OP(EXTEND_OP)->n_blocks = 0);
    REJECTED(FRAME, "KvOp.blocks: 257", OP(EXTEND_OP)->n_blocks = 257);
    REJECTED(FRAME, "KvOp.blocks: 2", OP(EXTEND_OP)->kind = PACELINE__KV_OP__KIND__CLOSE);
    REJECTED(FRAME, "KvOp.blocks[1]", OP(EXTEND_OP)->blocks[1] = 256);
    REJECTED(FRAME, "KvOp.blocks[0]", OP(FORK_OP)->blocks[0] = -1);
    REJECTED(FRAME, "KvOp.sequence: absent", OP(OPEN_OP)->sequence = NULL);
    REJECTED(FRAME, "KvOp.sequence: present", OP(CLOSE_OP)->sequence = SEQUENCE);
}
END_TEST

#define FRAME_OF (M->frame)
#define DESC(i)  (M->frame->tensors[i])

START_TEST(frames_are_checked)
{
    REJECTED(FRAME, "Frame.id", FRAME_OF->id = 0);
    REJECTED(FRAME, "Frame.ops: 11", FRAME_OF->n_ops = 11);
    REJECTED(FRAME, "Frame.seq: 513", FRAME_OF->n_seq = 513);
    REJECTED(FRAME, "Frame.pos: 2", FRAME_OF->n_pos = 2);
    REJECTED(FRAME, "Frame.pos: 3", FRAME_OF->n_pos_per_row = 2);
    REJECTED(FRAME, "Frame.n_pos_per_row", FRAME_OF->n_pos_per_row = 5);
    REJECTED(FRAME, "Frame.token: 4", FRAME_OF->n_token = 4);
    REJECTED(FRAME, "Frame.logits: 4", FRAME_OF->n_logits = 4);
    REJECTED(FRAME, "Frame.seq[2]", FRAME_OF->seq[2] = 4);
    REJECTED(FRAME, "Frame.seq[2]", FRAME_OF->seq[2] = -1);
    REJECTED(FRAME, "Frame.pos[1]", FRAME_OF->pos[1] = 2048);
    REJECTED(FRAME, "Frame.pos[1]", FRAME_OF->pos[1] = -1);
    REJECTED(FRAME, "Frame.token[0]", FRAME_OF->token[0] = 1000);
    REJECTED(FRAME, "Frame.token[0]", FRAME_OF->token[0] = -2);
    REJECTED(FRAME, "Frame.logits: 3", FRAME_OF->logits[1] = 3);
    REJECTED(FRAME, "Frame.logits: 1", FRAME_OF->logits[1] = 1);
    REJECTED(FRAME, "Frame.logits", FRAME_OF->logits[0] = UINT32_MAX);
    /* Rows may be none; then there are no logits either. */
    ACCEPTED(FRAME, FRAME_OF->n_seq = FRAME_OF->n_pos = FRAME_OF->n_token = FRAME_OF->n_logits = 0;
             FRAME_OF->n_tensors = 0; d.n_parts = 0);
    REJECTED(FRAME, "Frame.logits: 1", FRAME_OF->n_seq = FRAME_OF->n_pos = FRAME_OF->n_token = 0;
             FRAME_OF->n_logits = 1);
}
END_TEST

START_TEST(tensor_descriptions_match_their_parts)
{
    REJECTED(FRAME, "Frame.tensors: 2", d.n_parts = 1);
    REJECTED(FRAME, "Frame.tensors: 1", FRAME_OF->n_tensors = 1);
    REJECTED(FRAME, "TensorDesc.name", DESC(1)->name = text_of("\x01"));
    REJECTED(FRAME, "has no size", DESC(1)->type = 2);
    REJECTED(FRAME, "has no size", DESC(1)->n_ne = 0);
    REJECTED(FRAME, "has no size", DESC(1)->n_ne = 5);
    REJECTED(FRAME, "has no size", DESC(1)->ne[0] = 33);
    REJECTED(FRAME, "has no size", DESC(1)->ne[3] = (uint64_t)1 << 31);
    REJECTED(FRAME, "bytes described", DESC(1)->ne[3] = 6);
    REJECTED(FRAME, "bytes described", d.part_sizes[0]--);
    /* 2^62 elements of 4 bytes: 0 when it wraps. */
    REJECTED(FRAME, "has no size", DESC(1)->type = 0; DESC(1)->ne[0] = DESC(1)->ne[1] = (uint64_t)1 << 30;
             DESC(1)->ne[2] = 4; DESC(1)->ne[3] = 1; d.part_sizes[1] = 0);
    REJECTED(FRAME, "hidden: rows", DESC(0)->ne[1] = 2; d.part_sizes[0] = 64 * 2 * 4);
    REJECTED(FRAME, "hidden: width", DESC(0)->ne[0] = 32; d.part_sizes[0] = 32 * 3 * 4);
    REJECTED(FRAME, "hidden: ne", DESC(0)->n_ne = 1; d.part_sizes[0] = 64 * 4);
}
END_TEST

#define TOKEN (M->result->tokens[0])

START_TEST(results_are_checked)
{
    REJECTED(RESULT, "Result.frame", M->result->frame = 0);
    REJECTED(RESULT, "Result.tokens: 513", M->result->n_tokens = 513);
    REJECTED(RESULT, "Token.seq", TOKEN->seq = 4);
    REJECTED(RESULT, "Token.seq", TOKEN->seq = -1);
    REJECTED(RESULT, "Token.pos", TOKEN->pos = 2049);
    ACCEPTED(RESULT, TOKEN->pos = 2048);
    REJECTED(RESULT, "Token.token", TOKEN->token = -1);
    REJECTED(RESULT, "Token.token", TOKEN->token = 1000);
    REJECTED(RESULT, "Token.logprob", TOKEN->logprob = NAN);
    REJECTED(RESULT, "Token.logprob", TOKEN->logprob = 0.5F);
    REJECTED(RESULT, "Token.top: 6", TOKEN->n_top = TOKEN->n_top_logprob = 6);
    REJECTED(RESULT, "Token.top_logprob: 1", TOKEN->n_top_logprob = 1);
    REJECTED(RESULT, "Token.top[1]", TOKEN->top[1] = 1000);
    REJECTED(RESULT, "Token.top_logprob", TOKEN->top_logprob[1] = NAN);
    REJECTED(RESULT, "Token.sampler_state", TOKEN->sampler_state.len = 4097);
}
END_TEST

START_TEST(credits_blobs_and_failures_are_checked)
{
    REJECTED(CREDIT, "Credit.frames", M->credit->frames = 0);
    REJECTED(CREDIT, "Credit.frames", M->credit->frames = 9);
    REJECTED(BLOB_GET, "BlobGet.hash", M->blob_get->hash.len = 0);
    REJECTED(BLOB_GET, "BlobGet.offset", M->blob_get->offset = UINT64_MAX);
    REJECTED(BLOB_GET, "BlobGet.size", M->blob_get->size = 0);
    REJECTED(BLOB_GET, "BlobGet.size", M->blob_get->size = (1 << 20) + 1);
    REJECTED(BLOB, "Blob.hash", M->blob->hash.len = 0);
    REJECTED(BLOB, "Blob.total", M->blob->total = UINT64_MAX);
    REJECTED(BLOB, "Blob.offset", M->blob->offset = 5097);
    REJECTED(BLOB, "size of the part", d.part_sizes[0] = 1001);
    REJECTED(BLOB, "size of the part", d.part_sizes[0] = 0);
    REJECTED(BLOB, "size of the part", d.part_sizes[0] = (1 << 20) + 1; M->blob->total = 1 << 30);
    REJECTED(BLOB, "parts", d.n_parts = 0);
    Paceline__Failure f = PACELINE__FAILURE__INIT;
    f.status = PL_ERR_IO;
    REJECTED(BLOB, "parts", M->blob->failure = &f);
    ACCEPTED(BLOB, M->blob->failure = &f; d.n_parts = 0);
    f.status = PL_OK;
    REJECTED(BLOB, "Failure.status", M->blob->failure = &f; d.n_parts = 0);
    REJECTED(RESULT, "Failure.status", M->result->failure = &f);
    REJECTED(LINK_STATE, "Failure.status", M->link_state->failure->status = PL_STATUS_COUNT);
    REJECTED(FAILURE, "Failure.status", M->failure->status = 0);
    REJECTED(FAILURE, "Failure.text", M->failure->text = text_of("\xff"));
}
END_TEST

START_TEST(wire_sizes_are_what_the_formats_say)
{
    size_t n;
    ck_assert(pl_wire_bytes(0, (uint64_t[]){5, 3}, 2, &n) && n == 60);
    ck_assert(pl_wire_bytes(1, (uint64_t[]){5, 3}, 2, &n) && n == 30);
    ck_assert(pl_wire_bytes(30, (uint64_t[]){5}, 1, &n) && n == 10);
    ck_assert(pl_wire_bytes(8, (uint64_t[]){64, 3}, 2, &n) && n == 204);
    ck_assert(pl_wire_bytes(0, (uint64_t[]){5, 0}, 2, &n) && n == 0);
    ck_assert(!pl_wire_bytes(8, (uint64_t[]){63}, 1, &n));
    ck_assert(!pl_wire_bytes(99, (uint64_t[]){1}, 1, &n));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("proto");
    TCase *t = tcase_create("all");
    int first = MESSAGE_KIND_FIRST, end = MESSAGE_KIND_LAST + 1;
    tcase_add_loop_test(t, every_valid_message_is_accepted_and_survives_its_packing, first, end);
    tcase_add_loop_test(t, a_header_cut_short_anywhere_is_an_error_or_another_message, first, end);
    tcase_add_loop_test(t, no_message_but_frame_and_blob_has_parts, first, end);
    tcase_add_loop_test(t, unpacking_survives_every_failed_allocation, first, end);
    tcase_add_test(t, envelopes_need_a_known_body_and_an_epoch_where_one_belongs);
    tcase_add_test(t, a_small_header_cannot_unpack_to_a_large_structure);
    tcase_add_test(t, unpacking_again_allocates_nothing);
    tcase_add_test(t, texts_are_utf_8_without_control_characters_and_not_too_long);
    tcase_add_test(t, hello_is_checked);
    tcase_add_test(t, welcome_and_heartbeat_are_checked);
    tcase_add_test(t, load_is_checked);
    tcase_add_test(t, progress_and_ready_are_checked);
    tcase_add_test(t, sequences_are_checked);
    tcase_add_test(t, kv_operations_are_checked);
    tcase_add_test(t, frames_are_checked);
    tcase_add_test(t, tensor_descriptions_match_their_parts);
    tcase_add_test(t, results_are_checked);
    tcase_add_test(t, credits_blobs_and_failures_are_checked);
    tcase_add_test(t, wire_sizes_are_what_the_formats_say);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
