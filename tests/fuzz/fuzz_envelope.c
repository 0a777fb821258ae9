/* Any bytes as a message: the first says how many parts follow and how its limits are, two each the sizes of parts, the
 * rest is the header. What is accepted is used as its readers would: every id as an index, every size as the size of
 * memory. */
#include "engine/base/alloc.h"
#include "proto/check.h"
#include "proto/codec.h"
#include "tests/fuzz/fuzz.h"

static const pl_check_limits tight = {.n_layer = 32,
                                      .n_tensors = 64,
                                      .n_ctx = 256,
                                      .n_seqs = 8,
                                      .n_rows = 64,
                                      .n_blocks = 64,
                                      .n_vocab = 512,
                                      .n_ops = 16,
                                      .n_logprobs = 4,
                                      .credits = 16,
                                      .blob_bytes = 65536};

static void use_frame(const Paceline__Frame *f)
{
    uint8_t seqs[8] = {0}, blocks[64] = {0}, positions[256] = {0}, tokens[512] = {0};
    for (size_t i = 0; i < f->n_ops; i++) {
        seqs[f->ops[i]->seq]++;
        seqs[f->ops[i]->src]++;
        for (size_t j = 0; j < f->ops[i]->n_blocks; j++) blocks[f->ops[i]->blocks[j]]++;
        const Paceline__Sequence *s = f->ops[i]->sequence;
        for (size_t j = 0; s && j < s->n_prompt; j++) tokens[s->prompt[j]]++;
        for (size_t j = 0; s && j < s->n_emitted; j++) tokens[s->emitted[j]]++;
    }
    for (size_t i = 0; i < f->n_seq; i++) {
        seqs[f->seq[i]]++;
        positions[f->pos[i]]++;
        if (f->token[i] >= 0) tokens[f->token[i]]++;
    }
    for (size_t i = 0; i < f->n_logits; i++) positions[f->pos[f->logits[i]]]++;
    PL_ASSERT(f->n_seq <= 64 && f->n_token == f->n_seq && f->n_logits <= f->n_seq);
}

static void use_result(const Paceline__Result *r)
{
    uint8_t seqs[8] = {0}, positions[257] = {0}, tokens[512] = {0};
    for (size_t i = 0; i < r->n_tokens; i++) {
        seqs[r->tokens[i]->seq]++;
        positions[r->tokens[i]->pos]++;
        tokens[r->tokens[i]->token]++;
        for (size_t j = 0; j < r->tokens[i]->n_top; j++) tokens[r->tokens[i]->top[j]]++;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t sizes[8], n_parts = 0;
    if (size == 0) return 0;
    bool is_tight = data[0] & 0x80;
    size_t wanted = data[0] & 7;
    data++, size--;
    for (; n_parts < wanted && size >= 2; n_parts++, data += 2, size -= 2) sizes[n_parts] = pl_get_u16(data);
    pl_envelope e = {0};
    pl_error err = {0};
    if (pl_envelope_unpack(&e, (pl_bytes){data, size}, &err) != PL_OK) {
        PL_ASSERT(!e.m && err.status == PL_ERR_FORMAT);
    } else if (pl_envelope_check(e.m, sizes, n_parts, is_tight ? &tight : NULL, &err) != PL_OK) {
        PL_ASSERT(err.status == PL_ERR_FORMAT || err.status == PL_ERR_UNSUPPORTED);
    } else {
        if (is_tight && e.m->body_case == PACELINE__ENVELOPE__BODY_FRAME) use_frame(e.m->frame);
        if (is_tight && e.m->body_case == PACELINE__ENVELOPE__BODY_RESULT) use_result(e.m->result);
        /* What was read can be written, and is accepted again when it can be read. */
        size_t n = pl_envelope_size(e.m);
        uint8_t *packed = pl_alloc(n ? n : 1);
        PL_ASSERT(packed);
        pl_envelope_pack(e.m, packed);
        pl_envelope again = {0};
        pl_status s = pl_envelope_unpack(&again, (pl_bytes){packed, n}, &err);
        /* That may fail: without its detours a header is shorter, and then its structure may be too much for its bytes;
         * and protobuf-c reads unknown fields of number 0 when they are written long, but not as it writes them itself.
         */
        if (s == PL_OK) s = pl_envelope_check(again.m, sizes, n_parts, is_tight ? &tight : NULL, &err);
        PL_ASSERT(s == PL_OK || !again.m);
        pl_envelope_fini(&again);
        pl_free(packed);
    }
    pl_envelope_fini(&e);
    return 0;
}
