#include "tests/sim/fake_compute.h"

#include "engine/base/alloc.h"

#include <inttypes.h>

typedef enum { JOB_LOOKUP, JOB_PUT, JOB_OPEN_HEADER, JOB_LOAD, JOB_UNLOAD, JOB_RUN } job_kind;

typedef struct job {
    struct job *next;
    job_kind kind;
    uint64_t cost_ns, start_ns;
    pl_hash *hashes; /* copied */
    size_t n;
    bool *have;
    uint64_t *partial;
    uint64_t total, offset;
    pl_part *part;
    const pl_gguf **header;
    const pl_model_profile **profile;
    pl_stage_shape shape;
    pl_stage_memory *memory;
    pl_micro_batch *mb;
    void (*done)(void *user, const pl_error *err);
    void (*ran)(void *user, const pl_error *err, uint64_t start_ns, uint64_t end_ns);
    void *user;
} job;

typedef struct fake_compute {
    pl_compute base;
    pl_loop *loop;
    fake_compute_options options;
    pl_compute_facts facts;
    job *first, *last;
    pl_timer *timer; /* of the first job */
    bool paused;
    pl_status fail_run;
    uint8_t *header_bytes;
    pl_gguf *header;
    pl_model_profile *profile;
    hash_stage *stage;
    int32_t n_layers;
    uint64_t stage_bytes;
} fake_compute;

static const char *const archs[] = {"llama"};

static fake_blob *find(fake_disk *d, const pl_hash *hash)
{
    for (size_t i = 0; i < d->n; i++)
        if (pl_hash_eq(&d->blobs[i].hash, hash)) return &d->blobs[i];
    return NULL;
}

static fake_blob *find_or_make(fake_disk *d, const pl_hash *hash, uint64_t total)
{
    fake_blob *b = find(d, hash);
    if (b) return b;
    fake_blob *blobs = pl_realloc(d->blobs, (d->n + 1) * sizeof *blobs);
    PL_ASSERT(blobs);
    d->blobs = blobs;
    b = &blobs[d->n++];
    *b = (fake_blob){.hash = *hash, .data = pl_alloc(total + 1), .total = total};
    PL_ASSERT(b->data);
    return b;
}

void fake_disk_add(fake_disk *d, const pl_hash *hash, pl_bytes data)
{
    fake_blob *b = find_or_make(d, hash, data.size);
    memcpy(b->data, data.data, data.size);
    b->have = data.size;
}

static void remove_blob(fake_disk *d, fake_blob *b)
{
    pl_free(b->data);
    *b = d->blobs[--d->n];
}

void fake_disk_fini(fake_disk *d)
{
    for (size_t i = 0; i < d->n; i++) pl_free(d->blobs[i].data);
    pl_free(d->blobs);
    *d = (fake_disk){0};
}

static void free_job(job *j)
{
    pl_part_unref(j->part);
    pl_free(j->hashes);
    pl_free(j);
}

static pl_status put(fake_compute *c, job *j, pl_error *err)
{
    fake_disk *d = c->options.disk;
    fake_blob *b = find_or_make(d, &j->hashes[0], j->total);
    if (b->total != j->total || b->have != j->offset || j->part->size > b->total - b->have)
        return pl_fail(err, PL_ERR_INVALID,
                       "piece at %" PRIu64 " of %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64 " are there", j->offset,
                       j->total, b->have, b->total);
    memcpy(b->data + b->have, j->part->data, j->part->size);
    b->have += j->part->size;
    d->bytes_put += j->part->size;
    if (b->have < b->total) return PL_OK;
    pl_hash h = pl_hash_of((pl_bytes){b->data, b->total});
    if (pl_hash_eq(&h, &b->hash)) return PL_OK;
    remove_blob(d, b);
    return pl_fail(err, PL_ERR_FORMAT, "blob of %" PRIu64 " bytes does not have its hash", j->total);
}

static void close_stage(fake_compute *c)
{
    hash_stage_free(c->stage);
    c->stage = NULL;
    c->stage_bytes = 0;
}

static void close_header(fake_compute *c)
{
    pl_model_profile_close(c->profile);
    pl_gguf_close(c->header);
    pl_free(c->header_bytes);
    c->profile = NULL;
    c->header = NULL;
    c->header_bytes = NULL;
}

static pl_status open_header(fake_compute *c, job *j, pl_error *err)
{
    close_stage(c);
    close_header(c);
    fake_blob *b = find(c->options.disk, &j->hashes[0]);
    if (!b || b->have < b->total) return pl_fail(err, PL_ERR_NOT_FOUND, "the header is not in the cache");
    c->header_bytes = pl_alloc(b->total + 1);
    PL_ASSERT(c->header_bytes);
    memcpy(c->header_bytes, b->data, b->total);
    PL_TRY(pl_gguf_open_bytes(&c->header, (pl_bytes){c->header_bytes, b->total}, true, err));
    PL_TRY(pl_model_profile_open(&c->profile, c->header, err));
    *j->header = c->header;
    *j->profile = c->profile;
    return PL_OK;
}

static pl_status load(fake_compute *c, job *j, pl_error *err)
{
    close_stage(c);
    if (!c->profile) return pl_fail(err, PL_ERR_INVALID, "no header is open");
    size_t n_tensors = pl_gguf_n_tensors(c->header);
    size_t *index = pl_calloc(n_tensors + 1, sizeof *index);
    pl_hash *hashes = pl_calloc(n_tensors + 1, sizeof *hashes);
    PL_ASSERT(index && hashes);
    pl_status s = PL_OK;
    size_t n = pl_model_stage_tensors(c->profile, j->shape.layer_first, j->shape.layer_end, index);
    if (n != j->n) s = pl_fail(err, PL_ERR_INVALID, "%zu tensors, the stage has %zu", j->n, n);
    for (size_t i = 0; i < n && s == PL_OK; i++) {
        fake_blob *b = find(c->options.disk, &j->hashes[i]);
        if (!b || b->have < b->total || b->total != pl_gguf_tensor_at(c->header, index[i])->size)
            s = pl_fail(err, PL_ERR_NOT_FOUND, "tensor %zu is not in the cache", index[i]);
        hashes[index[i]] = j->hashes[i];
    }
    if (s == PL_OK) {
        hash_weights w;
        hash_weights_of(&w, c->header, c->profile, j->shape.layer_first, j->shape.layer_end, hashes);
        c->stage = hash_stage_new(&j->shape, c->profile, &w);
        PL_ASSERT(c->stage);
        c->n_layers = j->shape.layer_end - j->shape.layer_first;
        *j->memory = pl_model_stage_memory(c->profile, &j->shape);
        c->stage_bytes = j->memory->weights + j->memory->kv + j->memory->compute;
    }
    pl_free(index);
    pl_free(hashes);
    return s;
}

static pl_status run(fake_compute *c, job *j, pl_error *err)
{
    if (c->fail_run != PL_OK) {
        pl_status s = c->fail_run;
        c->fail_run = PL_OK;
        return pl_fail(err, s, "told to fail");
    }
    if (!c->stage) return pl_fail(err, PL_ERR_INVALID, "no stage is loaded");
    return hash_stage_run(c->stage, j->mb, err);
}

static void start_first(fake_compute *c);

static void finish_first(void *user)
{
    fake_compute *c = user;
    c->timer = NULL;
    if (c->paused) return;
    job *j = c->first;
    c->first = j->next;
    if (!c->first) c->last = NULL;
    pl_error err = {0};
    pl_status s = PL_OK;
    switch (j->kind) {
    case JOB_LOOKUP:
        for (size_t i = 0; i < j->n; i++) {
            fake_blob *b = find(c->options.disk, &j->hashes[i]);
            j->have[i] = b && b->have == b->total;
            j->partial[i] = b && !j->have[i] ? b->have : 0;
        }
        break;
    case JOB_PUT: s = put(c, j, &err); break;
    case JOB_OPEN_HEADER: s = open_header(c, j, &err); break;
    case JOB_LOAD: s = load(c, j, &err); break;
    case JOB_UNLOAD: close_stage(c); break;
    case JOB_RUN: s = run(c, j, &err); break;
    }
    /* The next one begins now, not when the answer's callee is done. */
    start_first(c);
    if (j->done) j->done(j->user, s == PL_OK ? NULL : &err);
    if (j->ran) j->ran(j->user, s == PL_OK ? NULL : &err, j->start_ns, pl_loop_now(c->loop));
    free_job(j);
}

static void start_first(fake_compute *c)
{
    if (!c->first || c->timer || c->paused) return;
    pl_error err;
    c->first->start_ns = pl_loop_now(c->loop);
    /* Known only now: the load before it may still have been waiting when the run was asked for. */
    if (c->first->kind == JOB_RUN)
        c->first->cost_ns =
            c->options.run_ns + (uint64_t)c->first->mb->n_rows * (uint64_t)c->n_layers * c->options.row_layer_ns;
    PL_ASSERT(pl_timer_start(c->loop, c->first->cost_ns, 0, finish_first, c, &c->timer, &err) == PL_OK);
}

static void add(fake_compute *c, job described, const pl_hash *hashes)
{
    job *j = pl_alloc(sizeof *j);
    PL_ASSERT(j);
    *j = described;
    if (hashes) {
        j->hashes = pl_alloc(j->n * sizeof *hashes);
        PL_ASSERT(j->hashes);
        memcpy(j->hashes, hashes, j->n * sizeof *hashes);
    }
    if (c->last)
        c->last->next = j;
    else
        c->first = j;
    c->last = j;
    start_first(c);
}

static void vt_free(pl_compute *base)
{
    fake_compute *c = (fake_compute *)base;
    pl_timer_stop(c->loop, c->timer);
    for (job *j = c->first, *next; j; j = next) {
        next = j->next;
        free_job(j);
    }
    close_stage(c);
    close_header(c);
    pl_free(c);
}

static const pl_compute_facts *vt_facts(pl_compute *base)
{
    return &((fake_compute *)base)->facts;
}

static void vt_lookup(pl_compute *base, const pl_hash *hashes, size_t n, bool *have, uint64_t *partial,
                      void (*done)(void *user, const pl_error *err), void *user)
{
    add((fake_compute *)base,
        (job){.kind = JOB_LOOKUP,
              .cost_ns = 100000,
              .n = n,
              .have = have,
              .partial = partial,
              .done = done,
              .user = user},
        hashes);
}

static void vt_put(pl_compute *base, const pl_hash *hash, pl_type type, const int64_t ne[4], uint64_t total,
                   uint64_t offset, pl_part *part, void (*done)(void *user, const pl_error *err), void *user)
{
    fake_compute *c = (fake_compute *)base;
    (void)type;
    (void)ne;
    add(c,
        (job){.kind = JOB_PUT,
              .cost_ns = c->options.put_ns,
              .n = 1,
              .total = total,
              .offset = offset,
              .part = part,
              .done = done,
              .user = user},
        hash);
}

static void vt_open_header(pl_compute *base, const pl_hash *hash, const pl_gguf **header,
                           const pl_model_profile **profile, void (*done)(void *user, const pl_error *err), void *user)
{
    add((fake_compute *)base,
        (job){.kind = JOB_OPEN_HEADER,
              .cost_ns = 100000,
              .n = 1,
              .header = header,
              .profile = profile,
              .done = done,
              .user = user},
        hash);
}

static void vt_load(pl_compute *base, const pl_hash *hashes, size_t n, const pl_stage_shape *shape,
                    pl_stage_memory *memory, void (*done)(void *user, const pl_error *err), void *user)
{
    fake_compute *c = (fake_compute *)base;
    add(c,
        (job){.kind = JOB_LOAD,
              .cost_ns = c->options.load_ns,
              .n = n,
              .shape = *shape,
              .memory = memory,
              .done = done,
              .user = user},
        hashes);
}

static void vt_unload(pl_compute *base)
{
    add((fake_compute *)base, (job){.kind = JOB_UNLOAD, .cost_ns = 1000}, NULL);
}

static void vt_run(pl_compute *base, pl_micro_batch *mb,
                   void (*done)(void *user, const pl_error *err, uint64_t start_ns, uint64_t end_ns), void *user)
{
    add((fake_compute *)base, (job){.kind = JOB_RUN, .mb = mb, .ran = done, .user = user}, NULL);
}

static const pl_compute_vt vt = {vt_free, vt_facts, vt_lookup, vt_put, vt_open_header, vt_load, vt_unload, vt_run};

pl_compute *fake_compute_new(pl_loop *loop, const fake_compute_options *options)
{
    fake_compute *c = pl_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->base.vt = &vt;
    c->loop = loop;
    c->options = *options;
    if (!c->options.run_ns) c->options.run_ns = 200000;
    if (!c->options.row_layer_ns) c->options.row_layer_ns = 20000;
    if (!c->options.put_ns) c->options.put_ns = 50000;
    if (!c->options.load_ns) c->options.load_ns = 2000000;
    c->facts = (pl_compute_facts){
        .isa = "hash",
        .profile = options->profile ? options->profile : "hash-1",
        .cpu_name = "simulated",
        .archs = archs,
        .n_archs = 1,
        .known_checksum = options->known_checksum,
        .n_threads = 1,
        .memory_total = options->memory_total,
        .memory_available = options->memory_total,
        .read_bytes_s = 1e9,
        .macs_s = 1e10,
    };
    return &c->base;
}

void fake_compute_pause(pl_compute *base, bool paused)
{
    fake_compute *c = (fake_compute *)base;
    c->paused = paused;
    if (!paused) start_first(c);
}

void fake_compute_fail_run(pl_compute *base, pl_status status)
{
    ((fake_compute *)base)->fail_run = status;
}
uint64_t fake_compute_stage_bytes(const pl_compute *base)
{
    return ((const fake_compute *)base)->stage_bytes;
}
