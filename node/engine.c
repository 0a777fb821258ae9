/* One thread takes jobs in order; their answers go back to the loop by pl_loop_post, in the same order.
 *
 * Everything that the thread uses (store, header, stage) belongs to it alone while it lives; the loop's thread touches
 * only the two queues, under the lock. A posted answer finds the compute through a mailbox that outlives it: free
 * empties the mailbox, so an answer still under way gives nothing. */
#include "node/engine.h"

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/pool.h"
#include "engine/base/sys.h"
#include "engine/gguf/write.h"
#include "engine/stage/load.h"
#include "engine/stage/store.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

typedef enum { JOB_LOOKUP, JOB_PUT, JOB_OPEN_HEADER, JOB_LOAD, JOB_UNLOAD, JOB_RUN } job_kind;

typedef struct job {
    struct job *next;
    job_kind kind;
    pl_hash *hashes; /* copied */
    size_t n;
    bool *have;
    uint64_t *partial;
    pl_type type;
    int64_t ne[4];
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
    pl_status status;
    pl_error err;
    uint64_t start_ns, end_ns;
} job;

typedef struct queue {
    job *first, **last;
} queue;

typedef struct mailbox mailbox;

typedef struct engine {
    pl_compute base;
    pl_loop *loop;
    pl_compute_facts facts;
    char cpu_name[128];
    char dir[4096]; /* of the store */
    uint64_t bench_bytes_max;
    int poll;
    bool pin, no_pack, no_fuse;
    pl_load_options load;
    pl_profiler *profiler;
    mailbox *mailbox;

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    queue todo, answers;
    bool stop;

    /* The thread's own: */
    pl_pool *pool; /* of one thread: packing is not worth keeping more of them awake beside the stage's own */
    pl_backend *backend;
    pl_store *store; /* NULL: none */
    pl_store_writer *writer;
    pl_hash writing;
    uint64_t written;
    /* The model that is here whole: */
    pl_gguf *local;
    pl_model_profile *local_profile;
    pl_hash *local_hashes;
    pl_hash local_header_hash;
    /* The header that was opened last: the local model's, or one from the store. */
    bool header_is_local;
    pl_stored header_blob;
    pl_gguf *header;
    pl_model_profile *profile;
    pl_loaded *loaded;
    pl_stage *stage;
} engine;

struct mailbox {
    engine *e; /* NULL: the compute is gone */
    int posts; /* under way; with e NULL the last one frees the mailbox */
};

static void push(queue *q, job *j)
{
    j->next = NULL;
    *q->last = j;
    q->last = &j->next;
}

static job *pop(queue *q)
{
    job *j = q->first;
    if (!j) return NULL;
    q->first = j->next;
    if (!q->first) q->last = &q->first;
    return j;
}

static void free_job(job *j)
{
    pl_part_unref(j->part);
    pl_free(j->hashes);
    pl_free(j);
}

/* --- Jobs, on the compute's thread --- */

static const pl_gguf *header_of(const engine *e)
{
    return e->header_is_local ? e->local : e->header;
}
static const pl_model_profile *profile_of(const engine *e)
{
    return e->header_is_local ? e->local_profile : e->profile;
}

/* The local tensor with this hash; false when there is none. */
static bool find_local(const engine *e, const pl_hash *hash, size_t *at)
{
    for (size_t i = 0; e->local && i < pl_gguf_n_tensors(e->local); i++)
        if (pl_hash_eq(&e->local_hashes[i], hash)) {
            *at = i;
            return true;
        }
    return false;
}

static void close_writer(engine *e)
{
    pl_store_abandon(e->writer);
    e->writer = NULL;
}

static void do_lookup(engine *e, job *j)
{
    size_t at;
    /* A part that is still being written has bytes that only its writer counts. */
    close_writer(e);
    for (size_t i = 0; i < j->n; i++) {
        j->partial[i] = 0;
        j->have[i] = (e->local && pl_hash_eq(&j->hashes[i], &e->local_header_hash)) ||
                     find_local(e, &j->hashes[i], &at) ||
                     (e->store && pl_store_has(e->store, &j->hashes[i], &j->partial[i]));
    }
}

/* Bytes that the part has already are passed over: after a piece was refused the node asks from the beginning, while
 * another process may have written on. */
static pl_status do_put(engine *e, job *j, pl_error *err)
{
    if (!e->store) return pl_fail(err, PL_ERR_IO, "there is no cache to keep tensors in");
    if (e->writer && !pl_hash_eq(&e->writing, &j->hashes[0])) close_writer(e);
    if (!e->writer) {
        PL_TRY(pl_store_begin(e->store, &j->hashes[0], j->type, j->ne, j->total, &e->writer, &e->written, err));
        e->writing = j->hashes[0];
    }
    if (j->offset > e->written) {
        pl_fail(err, PL_ERR_FORMAT, "a piece at %" PRIu64 ", but %" PRIu64 " bytes are kept", j->offset, e->written);
        close_writer(e);
        return PL_ERR_FORMAT;
    }
    uint64_t skip = e->written - j->offset;
    if (skip < j->part->size) {
        pl_status s = pl_store_add(e->writer, (pl_bytes){j->part->data + skip, j->part->size - skip}, err);
        if (s != PL_OK) {
            close_writer(e);
            return s;
        }
        e->written += j->part->size - skip;
    }
    if (e->written < j->total || j->offset + j->part->size < j->total) return PL_OK;
    pl_store_writer *w = e->writer;
    e->writer = NULL;
    return pl_store_finish(w, err);
}

static void close_stage(engine *e)
{
    pl_stage_close(e->stage);
    pl_loaded_close(e->loaded);
    e->stage = NULL;
    e->loaded = NULL;
}

static void close_header(engine *e)
{
    pl_model_profile_close(e->profile);
    pl_gguf_close(e->header);
    pl_stored_close(&e->header_blob);
    e->profile = NULL;
    e->header = NULL;
    e->header_is_local = false;
}

static pl_status do_open_header(engine *e, job *j, pl_error *err)
{
    close_stage(e);
    close_header(e);
    if (e->local && pl_hash_eq(&j->hashes[0], &e->local_header_hash)) {
        e->header_is_local = true;
    } else {
        if (!e->store) return pl_fail(err, PL_ERR_NOT_FOUND, "the header is not here, and there is no cache");
        PL_TRY(pl_store_get(e->store, &j->hashes[0], &e->header_blob, err));
        PL_TRY(pl_gguf_open_bytes(&e->header, (pl_bytes){e->header_blob.data, e->header_blob.size}, true, err));
        PL_TRY(pl_model_profile_open(&e->profile, e->header, err));
    }
    *j->header = header_of(e);
    *j->profile = profile_of(e);
    return PL_OK;
}

/* Whether all of the stage's tensors are those of the local file, which is then mapped itself. */
static bool all_local(const engine *e, const job *j, const size_t *index)
{
    if (!e->header_is_local) return false;
    for (size_t i = 0; i < j->n; i++)
        if (!pl_hash_eq(&e->local_hashes[index[i]], &j->hashes[i])) return false;
    return true;
}

static pl_status load_weights(engine *e, job *j, const size_t *index, pl_error *err)
{
    int32_t first = j->shape.layer_first, end = j->shape.layer_end;
    if (all_local(e, j, index))
        return pl_loaded_from_file(&e->loaded, e->no_pack ? NULL : e->store, e->local, e->local_profile, first, end,
                                   &e->load, err);
    if (!e->store) return pl_fail(err, PL_ERR_NOT_FOUND, "tensors of another model, and there is no cache");
    for (size_t i = 0; i < j->n; i++) {
        size_t at;
        if (!pl_store_has(e->store, &j->hashes[i], NULL) && find_local(e, &j->hashes[i], &at))
            PL_TRY(pl_store_import(e->store, e->local, at, &j->hashes[i], err));
    }
    return pl_loaded_from_store(&e->loaded, e->store, header_of(e), profile_of(e), first, end, j->hashes, &e->load, err);
}

static pl_status do_load(engine *e, job *j, pl_error *err)
{
    close_stage(e);
    close_writer(e);
    const pl_model_profile *profile = profile_of(e);
    if (!profile) return pl_fail(err, PL_ERR_INVALID, "no header is open");
    size_t n = pl_model_stage_tensors(profile, j->shape.layer_first, j->shape.layer_end, NULL);
    if (n != j->n) return pl_fail(err, PL_ERR_INVALID, "%zu tensors for a stage that has %zu", j->n, n);
    size_t *index = pl_alloc((n + 1) * sizeof *index);
    if (!index) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %zu tensors", n);
    pl_model_stage_tensors(profile, j->shape.layer_first, j->shape.layer_end, index);
    pl_status s = load_weights(e, j, index, err);
    pl_free(index);
    if (s == PL_OK) {
        pl_stage_options o = {.shape = j->shape, .poll = e->poll, .pin = e->pin, .no_fuse = e->no_fuse, .profiler = e->profiler};
        s = pl_stage_open(&e->stage, header_of(e), profile, pl_loaded_weights(e->loaded), &o, err);
    }
    if (s == PL_OK)
        *j->memory = pl_stage_memory_used(e->stage);
    else
        close_stage(e);
    return s;
}

static pl_status do_run(engine *e, job *j, pl_error *err)
{
    if (!e->stage) return pl_fail(err, PL_ERR_INVALID, "no stage is loaded");
    return pl_stage_run(e->stage, j->mb, err);
}

static void do_job(engine *e, job *j)
{
    j->start_ns = pl_now_ns();
    j->status = PL_OK;
    switch (j->kind) {
    case JOB_LOOKUP: do_lookup(e, j); break;
    case JOB_PUT: j->status = do_put(e, j, &j->err); break;
    case JOB_OPEN_HEADER: j->status = do_open_header(e, j, &j->err); break;
    case JOB_LOAD: j->status = do_load(e, j, &j->err); break;
    case JOB_UNLOAD: close_stage(e); break;
    case JOB_RUN: j->status = do_run(e, j, &j->err); break;
    }
    j->end_ns = pl_now_ns();
}

/* --- Answers, on the loop's thread --- */

static void deliver(void *user)
{
    mailbox *box = user;
    engine *e = box->e;
    box->posts--;
    if (!e) {
        if (box->posts == 0) pl_free(box);
        return;
    }
    /* Each post brings one answer, so that the order among other events of the loop stays as it was. */
    pthread_mutex_lock(&e->lock);
    job *j = pop(&e->answers);
    pthread_mutex_unlock(&e->lock);
    const pl_error *err = j->status == PL_OK ? NULL : &j->err;
    if (j->done) j->done(j->user, err);
    if (j->ran) j->ran(j->user, err, j->start_ns, j->end_ns);
    free_job(j);
}

static void *work(void *user)
{
    engine *e = user;
    pthread_mutex_lock(&e->lock);
    for (;;) {
        job *j = NULL;
        while (!e->stop && !(j = pop(&e->todo))) pthread_cond_wait(&e->wake, &e->lock);
        if (e->stop) break;
        pthread_mutex_unlock(&e->lock);
        do_job(e, j);
        pthread_mutex_lock(&e->lock);
        push(&e->answers, j);
        pthread_mutex_unlock(&e->lock);
        /* Without memory for a post nothing can be told to anybody; trying again is all there is. */
        while (pl_loop_post(e->loop, deliver, e->mailbox) != PL_OK) sched_yield();
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* --- The vtable --- */

static void add(engine *e, job described, const pl_hash *hashes)
{
    job *j = pl_alloc(sizeof *j);
    pl_hash *copy = hashes ? pl_alloc(described.n * sizeof *copy) : NULL;
    /* A node that cannot get a few hundred bytes cannot answer either: there is no state that it could go on in. */
    PL_ASSERT(j && (copy || !hashes));
    *j = described;
    if (hashes) memcpy(copy, hashes, described.n * sizeof *copy);
    j->hashes = copy;
    e->mailbox->posts++;
    pthread_mutex_lock(&e->lock);
    push(&e->todo, j);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

static void vt_lookup(pl_compute *c, const pl_hash *hashes, size_t n, bool *have, uint64_t *partial,
                      void (*done)(void *user, const pl_error *err), void *user)
{
    add((engine *)c, (job){.kind = JOB_LOOKUP, .n = n, .have = have, .partial = partial, .done = done, .user = user},
        hashes);
}

static void vt_put(pl_compute *c, const pl_hash *hash, pl_type type, const int64_t ne[4], uint64_t total,
                   uint64_t offset, pl_part *part, void (*done)(void *user, const pl_error *err), void *user)
{
    job j = {.kind = JOB_PUT,
             .n = 1,
             .type = type,
             .total = total,
             .offset = offset,
             .part = part,
             .done = done,
             .user = user};
    if (type != PL_TYPE_COUNT) memcpy(j.ne, ne, sizeof j.ne);
    add((engine *)c, j, hash);
}

static void vt_open_header(pl_compute *c, const pl_hash *hash, const pl_gguf **header, const pl_model_profile **profile,
                           void (*done)(void *user, const pl_error *err), void *user)
{
    add((engine *)c,
        (job){.kind = JOB_OPEN_HEADER, .n = 1, .header = header, .profile = profile, .done = done, .user = user}, hash);
}

static void vt_load(pl_compute *c, const pl_hash *hashes, size_t n, const pl_stage_shape *shape,
                    pl_stage_memory *memory, void (*done)(void *user, const pl_error *err), void *user)
{
    add((engine *)c, (job){.kind = JOB_LOAD, .n = n, .shape = *shape, .memory = memory, .done = done, .user = user},
        hashes);
}

static void vt_unload(pl_compute *c)
{
    add((engine *)c, (job){.kind = JOB_UNLOAD}, NULL);
}

static void vt_run(pl_compute *c, pl_micro_batch *mb,
                   void (*done)(void *user, const pl_error *err, uint64_t start_ns, uint64_t end_ns), void *user)
{
    add((engine *)c, (job){.kind = JOB_RUN, .mb = mb, .ran = done, .user = user}, NULL);
}

static const pl_compute_facts *vt_facts(pl_compute *c)
{
    return &((engine *)c)->facts;
}

static void vt_free(pl_compute *c)
{
    engine *e = (engine *)c;
    if (e->started) {
        pthread_mutex_lock(&e->lock);
        e->stop = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    int unposted = 0;
    for (job *j; (j = pop(&e->todo)); unposted++) free_job(j);
    for (job *j; (j = pop(&e->answers));) free_job(j);
    if (e->mailbox) {
        e->mailbox->e = NULL;
        e->mailbox->posts -= unposted;
        if (e->mailbox->posts == 0) pl_free(e->mailbox);
    }
    close_stage(e);
    close_header(e);
    close_writer(e);
    pl_free(e->local_hashes);
    pl_model_profile_close(e->local_profile);
    pl_gguf_close(e->local);
    pl_store_close(e->store);
    if (e->backend) e->backend->vt->free(e->backend);
    pl_pool_free(e->pool);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    pl_free(e);
}

static const pl_compute_vt vt = {vt_free, vt_facts, vt_lookup, vt_put, vt_open_header, vt_load, vt_unload, vt_run};

/* --- Opening --- */

static pl_status open_store(engine *e, const pl_compute_engine_options *o, pl_error *err)
{
    if (o->store_dir)
        snprintf(e->dir, sizeof e->dir, "%s", o->store_dir);
    else
        PL_TRY(pl_cache_dir(e->dir, sizeof e->dir, err));
    return pl_store_open(&e->store, e->dir, e->backend, err);
}

static pl_status open_local(engine *e, const char *path, pl_error *err)
{
    PL_TRY(pl_gguf_open(&e->local, path, err));
    PL_TRY(pl_model_profile_open(&e->local_profile, e->local, err));
    size_t n = pl_gguf_n_tensors(e->local);
    e->local_hashes = pl_alloc((n + 1) * sizeof *e->local_hashes);
    if (!e->local_hashes) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %zu hashes", n);
    PL_TRY(pl_store_hash_gguf(e->store, e->local, e->local_hashes, NULL, NULL, err));
    /* The same bytes as the coordinator's catalog makes of this file. */
    pl_buf header = {0};
    PL_TRY(pl_gguf_header_write(e->local, &header, err));
    e->local_header_hash = pl_hash_of(pl_buf_bytes(&header));
    pl_buf_fini(&header);
    return PL_OK;
}

/* The measured rates are kept beside the cache: the same machine then gets the same layers at its next start, whatever
 * else it was doing at this one. */
static void rates_path(const engine *e, char *out, size_t size)
{
    snprintf(out, size, "%s/rates-%s-%d.json", e->dir, e->facts.isa, e->facts.n_threads);
}

static bool rates_read(const engine *e, pl_bench *out)
{
    char path[4200];
    rates_path(e, path, sizeof path);
    pl_buf text = {0};
    pl_json *v = NULL;
    pl_error err;
    bool ok = pl_file_read(&text, path, 4096, &err) == PL_OK && pl_json_parse(&v, pl_buf_str(&text), &err) == PL_OK &&
              pl_str_is(pl_json_str(pl_json_get(v, "cpu")), e->cpu_name);
    *out = (pl_bench){pl_json_f64(pl_json_get(v, "read_bytes_s")), pl_json_f64(pl_json_get(v, "macs_s"))};
    pl_json_free(v);
    pl_buf_fini(&text);
    return ok && out->read_bytes_s > 0 && out->prefill_macs_s > 0;
}

/* A cache that cannot be written costs a new measurement next time. */
static void rates_write(const engine *e, const pl_bench *b)
{
    char path[4200];
    rates_path(e, path, sizeof path);
    pl_json *v = pl_json_object();
    pl_json_set(v, "cpu", pl_json_string(pl_str_from(e->cpu_name)));
    pl_json_set(v, "read_bytes_s", pl_json_real(b->read_bytes_s));
    pl_json_set(v, "macs_s", pl_json_real(b->prefill_macs_s));
    pl_buf text = {0};
    pl_error err;
    if (pl_json_write(v, 1, &text, &err) != PL_OK || pl_file_write(path, pl_buf_bytes(&text), 0644, &err) != PL_OK)
        pl_log(PL_LOG_WARN, "the measured rates are not kept", "reason=%s", PL_Q(err.text));
    pl_json_free(v);
    pl_buf_fini(&text);
}

static pl_status find_facts(engine *e, int n_threads, pl_error *err)
{
    pl_compute_facts *f = &e->facts;
    pl_bench bench;
    f->n_threads = n_threads ? n_threads : pl_sys_cpus();
    pl_sys_cpu_name(e->cpu_name, sizeof e->cpu_name);
    f->cpu_name = e->cpu_name;
    f->isa = pl_cpu_isa_name();
    f->profile = e->backend->vt->profile(e->backend);
    f->archs = pl_stage_archs(&f->n_archs);
    f->memory_total = pl_sys_memory_total();
    f->memory_available = pl_sys_memory_available();
    PL_TRY(pl_stage_known_checksum(&f->known_checksum, err));
    if (!rates_read(e, &bench)) {
        PL_TRY(pl_stage_bench(&bench, f->n_threads, e->bench_bytes_max, err));
        if (e->store) rates_write(e, &bench);
    }
    f->read_bytes_s = bench.read_bytes_s;
    f->macs_s = bench.prefill_macs_s;
    return PL_OK;
}

pl_status pl_compute_engine_new(pl_compute **out, pl_loop *loop, const pl_compute_engine_options *o, pl_error *err)
{
    *out = NULL;
    engine *e = pl_calloc(1, sizeof *e);
    if (!e) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the compute");
    pl_status s;
    e->base.vt = &vt;
    e->loop = loop;
    e->poll = o->poll;
    e->bench_bytes_max = o->bytes_max;
    e->pin = o->pin;
    e->no_pack = o->no_pack;
    e->load = o->load;
    e->no_fuse = o->no_fuse;
    e->profiler = o->profiler;
    e->todo.last = &e->todo.first;
    e->answers.last = &e->answers.first;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    if (!(e->mailbox = pl_calloc(1, sizeof *e->mailbox))) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the compute");
        goto fail;
    }
    e->mailbox->e = e;
    if ((s = pl_pool_new(&e->pool, (pl_pool_options){.n_threads = 1, .poll = o->poll}, err)) != PL_OK) goto fail;
    if ((s = pl_cpu_backend_new(&e->backend, e->pool, err)) != PL_OK) goto fail;
    if ((s = open_store(e, o, err)) != PL_OK) {
        if (!o->local_gguf) goto fail;
        PL_LOG(PL_LOG_WARN, "no tensor cache: weights are used as they are in the file", "error=%s", PL_Q(err->text));
        e->store = NULL;
    }
    if (o->local_gguf && (s = open_local(e, o->local_gguf, err)) != PL_OK) goto fail;
    if ((s = find_facts(e, o->n_threads, err)) != PL_OK) goto fail;
    if (pthread_create(&e->thread, NULL, work, e) != 0) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no thread for the compute");
        goto fail;
    }
    e->started = true;
    *out = &e->base;
    return PL_OK;
fail:
    vt_free(&e->base);
    return s;
}
