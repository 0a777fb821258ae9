#include "cli/cluster.h"

#include "cli/draft.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/affinity.h"
#include "cli/inspect.h"
#include "coordinator/placement.h"
#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/sys.h"
#include "engine/stage/store.h"

/* --- keys ------------------------------------------------------------------------------------------------------------
 */

static pl_status config_path(const char *given, const char *name, char *out, size_t size, pl_error *err)
{
    if (given) {
        snprintf(out, size, "%s", given);
        return PL_OK;
    }
    char dir[4096];
    PL_TRY(pl_config_dir(dir, sizeof dir, err));
    if ((size_t)snprintf(out, size, "%s/%s", dir, name) >= size)
        return pl_fail(err, PL_ERR_INVALID, "%s: the path is too long", dir);
    return PL_OK;
}

static pl_status open_own_key(keyring *k, const cli_options *o, pl_error *err)
{
    char path[4200];
    PL_TRY(config_path(o->key, "key", path, sizeof path, err));
    pl_status s = pl_key_load(&k->public_key, &k->secret_key, path, err);
    if (s != PL_ERR_NOT_FOUND || o->key) return s;
    PL_TRY(pl_key_pair_new(&k->public_key, &k->secret_key, err));
    pl_error why = {0};
    char dir[4096];
    if ((s = pl_config_dir(dir, sizeof dir, &why)) == PL_OK && (s = pl_mkdirs(dir, &why)) == PL_OK)
        s = pl_key_save(&k->public_key, &k->secret_key, path, false, &why);
    char text[2 * PL_KEY_SIZE + 1];
    pl_key_text(&k->public_key, text);
    if (s == PL_OK)
        pl_log(PL_LOG_INFO, "made a key pair", "path=%s public_key=%s", PL_Q(path), text);
    else
        pl_log(PL_LOG_WARN, "the new key pair is for this run only", "reason=%s", PL_Q(why.text));
    return PL_OK;
}

static int64_t changed_ns(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec : 0;
}

pl_status keyring_open(keyring *k, const cli_options *o, pl_error *err)
{
    *k = (keyring){.plain = o->plain};
    if (k->plain) return PL_OK;
    PL_TRY(open_own_key(k, o, err));
    PL_TRY(config_path(o->peers, "peers", k->peers_path, sizeof k->peers_path, err));
    k->peers_time_ns = changed_ns(k->peers_path);
    pl_status s = pl_key_list_load(&k->peers, k->peers_path, err);
    if (s != PL_OK && !(s == PL_ERR_NOT_FOUND && !o->peers)) return s;
    for (int i = 0; i < o->allow.n; i++) {
        pl_key key;
        if ((s = pl_key_parse(&key, pl_str_from(o->allow.items[i]), err)) != PL_OK)
            return pl_note(err, PL_ERR_INVALID, "--allow");
        PL_TRY(pl_key_list_add(&k->allow, &key, "", err));
    }
    return PL_OK;
}

void keyring_close(keyring *k)
{
    pl_key_list_fini(&k->peers);
    pl_key_list_fini(&k->allow);
    *k = (keyring){0};
}

static bool is_listed(const keyring *k, const pl_key *peer)
{
    return pl_key_eq(peer, &k->public_key) || pl_key_list_find(&k->allow, peer) || pl_key_list_find(&k->peers, peer);
}

/* The peers file is read again when it has changed, so that a machine can be let in without a restart. */
static void read_peers_again(keyring *k)
{
    int64_t t = changed_ns(k->peers_path);
    if (t == k->peers_time_ns) return;
    k->peers_time_ns = t;
    pl_key_list now = {0};
    pl_error err;
    if (pl_key_list_load(&now, k->peers_path, &err) != PL_OK) {
        pl_log(PL_LOG_WARN, "the changed peers file is not used", "reason=%s", PL_Q(err.text));
        return;
    }
    pl_key_list_fini(&k->peers);
    k->peers = now;
}

/* This machine itself and the listed peers: who may give orders. */
static bool keyring_trusts(void *user, const pl_key *peer)
{
    keyring *k = user;
    if (k->plain) return true;
    read_peers_again(k);
    return is_listed(k, peer);
}

/* Who may connect: also the neighbours that the running plan named. */
static bool keyring_allows(void *user, const pl_key *peer)
{
    const keyring *k = user;
    return keyring_trusts(user, peer) || (k->node && pl_node_expects(k->node, peer));
}

pl_status keyring_resolve(const keyring *k, const char *text, int default_port, char address[128], pl_key *key,
                          pl_error *err)
{
    const char *hash = strchr(text, '#');
    size_t n = hash ? (size_t)(hash - text) : strlen(text);
    if (n >= 6 && memcmp(text, "tcp://", 6) == 0) text += 6, n -= 6;
    char host[100];
    if (n == 0 || n >= sizeof host) return pl_fail(err, PL_ERR_INVALID, "%s: not HOST:PORT[#KEY]", text);
    memcpy(host, text, n);
    host[n] = 0;
    char *colon = strrchr(host, ':');
    bool bare_v6 = colon && strchr(host, ':') != colon && host[0] != '[';
    if (colon && !bare_v6 && !(host[0] == '[' && colon[-1] != ']')) {
        char *end;
        long port = strtol(colon + 1, &end, 10);
        if (*end || end == colon + 1 || port < 1 || port > 65535)
            return pl_fail(err, PL_ERR_INVALID, "%s: %s is not a port", text, colon + 1);
        *colon = 0;
        default_port = (int)port;
    }
    snprintf(address, 128, bare_v6 ? "tcp://[%s]:%d" : "tcp://%s:%d", host, default_port);
    *key = (pl_key){0};
    if (k->plain) return hash ? pl_fail(err, PL_ERR_INVALID, "%s: a key has no use with --plain", text) : PL_OK;
    if (hash) {
        pl_status s = pl_key_parse(key, pl_str_from(hash + 1), err);
        return s == PL_OK ? PL_OK : pl_note(err, PL_ERR_INVALID, "%s", text);
    }
    for (size_t i = 0; i < k->peers.n; i++)
        if (strcmp(k->peers.items[i].name, host) == 0 || k->peers.n == 1) {
            *key = k->peers.items[i].key;
            return PL_OK;
        }
    if (k->peers.n == 0 && k->allow.n == 0) { /* one machine, one key: all its processes share it */
        *key = k->public_key;
        return PL_OK;
    }
    return pl_fail(
        err, PL_ERR_AUTH,
        "%s: which key should it have? Write HOST:PORT#KEY, or name the host behind its key in the peers file", text);
}

static bool is_loopback(const char *address)
{
    return strstr(address, "://127.") || strstr(address, "://localhost") || strstr(address, "://[::1]") ||
           strncmp(address, "inproc", 6) == 0;
}

static pl_status check_plain(const keyring *k, const char *address, pl_error *err)
{
    if (!k->plain || is_loopback(address)) return PL_OK;
    return pl_fail(err, PL_ERR_AUTH, "%s: --plain is for loopback addresses only: links between machines are encrypted",
                   address);
}

/* --- the model -------------------------------------------------------------------------------------------------------
 */

static pl_status open_chat(model *m, const cli_options *o, pl_error *err)
{
    pl_buf *text = &m->chat_text;
    pl_status s = PL_OK;
    if (o->chat_template_file)
        s = pl_file_read(text, o->chat_template_file, 1 << 20, err);
    else if (o->chat_template)
        pl_buf_add_str(text, pl_str_from(o->chat_template));
    if (s == PL_OK && (o->chat_template || o->chat_template_file)) {
        int32_t bos = pl_vocab_bos(m->vocab), eos = pl_vocab_eos(m->vocab);
        s = pl_chat_open(&m->chat, pl_buf_str(text), bos < 0 ? (pl_str){0} : pl_vocab_text(m->vocab, bos),
                         eos < 0 ? (pl_str){0} : pl_vocab_text(m->vocab, eos), err);
        if (s != PL_OK) s = pl_note(err, s, "chat template");
    } else if (s == PL_OK) {
        pl_str own = {0};
        bool found;
        s = pl_chat_open_gguf(&m->chat, m->gguf, m->vocab, err);
        if (s == PL_OK) s = pl_gguf_get_str(m->gguf, "tokenizer.chat_template", &own, &found, err);
        if (s == PL_ERR_NOT_FOUND) s = PL_OK;
        pl_buf_add_str(text, own);
    }
    return s;
}

static void show_hashing(void *user, uint64_t done, uint64_t total)
{
    progress_show(user, done, total);
}

static pl_status hash_tensors(model *m, const cli_options *o, pl_error *err)
{
    size_t n = pl_gguf_n_tensors(m->gguf);
    m->hashes = pl_calloc(n ? n : 1, sizeof *m->hashes);
    if (!m->hashes) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %zu hashes", n);
    char dir[4096];
    pl_store *store = NULL;
    pl_error why = {0};
    /* Without a place to remember them the hashes are computed each time. */
    if (o->cache_dir) snprintf(dir, sizeof dir, "%s", o->cache_dir);
    if (!o->cache_dir && pl_cache_dir(dir, sizeof dir, &why) != PL_OK) dir[0] = 0;
    if (dir[0] && pl_store_open(&store, dir, NULL, &why) != PL_OK)
        pl_log(PL_LOG_WARN, "no cache", "reason=%s", PL_Q(why.text));
    progress p;
    progress_start(&p, "Hashing the model", o->quiet);
    pl_status s = pl_store_hash_gguf(store, m->gguf, m->hashes, show_hashing, &p, err);
    progress_end(&p);
    pl_store_close(store);
    return s;
}

static pl_status add_adapter(model *m, int32_t *n, const char *path, float scale, pl_error *err)
{
    PL_TRY(pl_gguf_add_adapter(m->gguf, path, err));
    m->adapters[(*n)++] = scale;
    return PL_OK;
}

static pl_status add_adapters(model *m, const cli_options *o, pl_error *err)
{
    int32_t n = 0;
    for (int i = 0; i < o->lora.n; i++) PL_TRY(add_adapter(m, &n, o->lora.items[i], 1, err));
    for (int i = 0; i < o->lora_scaled.n; i++) {
        const char *text = o->lora_scaled.items[i], *colon = strrchr(text, ':');
        char path[4096], *end = NULL;
        float scale = colon ? strtof(colon + 1, &end) : 0;
        if (!colon || end == colon + 1 || *end || (size_t)(colon - text) >= sizeof path)
            return pl_fail(err, PL_ERR_INVALID, "--lora-scaled %s: not FILE:SCALE", text);
        snprintf(path, sizeof path, "%.*s", (int)(colon - text), text);
        PL_TRY(add_adapter(m, &n, path, scale, err));
    }
    return PL_OK;
}

/* Said before any node loads it: nothing here asks a stage for embeddings. */
static pl_status refuse_encoder(const pl_model_profile *p, pl_error *err)
{
    if (!pl_model_is_encoder(p)) return PL_OK;
    return pl_fail(err, PL_ERR_UNSUPPORTED, "architecture %s gives embeddings and no text; they are not served yet",
                   pl_model_arch(p));
}

pl_status model_open(model *m, const cli_options *o, pl_error *err)
{
    *m = (model){0};
    if (!o->model) return pl_fail(err, PL_ERR_INVALID, "which model? Give -m FILE.gguf");
    const char *base = strrchr(o->model, '/');
    snprintf(m->name, sizeof m->name, "%s", o->alias ? o->alias : base ? base + 1 : o->model);
    pl_status s;
    if ((s = pl_gguf_open(&m->gguf, o->model, err)) != PL_OK) return s;
    if ((s = add_adapters(m, o, err)) != PL_OK) {
        model_close(m);
        return s;
    }
    if ((s = pl_model_profile_open(&m->profile, m->gguf, err)) != PL_OK ||
        (s = refuse_encoder(m->profile, err)) != PL_OK || (s = pl_vocab_open(&m->vocab, m->gguf, err)) != PL_OK ||
        (s = open_chat(m, o, err)) != PL_OK || (s = hash_tensors(m, o, err)) != PL_OK) {
        s = pl_note(err, s, "%s", o->model);
        model_close(m);
    }
    return s;
}

void model_close(model *m)
{
    pl_free(m->hashes);
    pl_chat_close(m->chat);
    pl_buf_fini(&m->chat_text);
    pl_vocab_close(m->vocab);
    pl_model_profile_close(m->profile);
    pl_gguf_close(m->gguf);
    *m = (model){0};
}

static bool model_is_eog(void *user, int32_t token)
{
    return pl_vocab_is_eog(((model *)user)->vocab, token);
}

/* What the program takes beside its plan: code, libraries, sockets, tensors on their way into the cache. Of --mem, the
 * plan gets the rest, so that the process as a whole keeps to it. */
static const uint64_t program_bytes = 20u << 20;

/* --- the node of this process
 * ------------------------------------------------------------------------------------------ */

pl_status net_new(pl_net **out, pl_loop *loop, keyring *k, const pl_net_events *events, void *user, pl_error *err)
{
    pl_zmq_options z = {.allowed = keyring_allows, .allowed_user = k};
    if (!k->plain) {
        z.public_key = &k->public_key;
        z.secret_key = &k->secret_key;
    }
    return pl_net_zmq_new(out, loop, &z, events, user, err);
}

/* On the compute's thread. */
static void show_loading(void *user, uint64_t done, uint64_t total)
{
    progress_show(user, done, total);
    if (done == total) progress_end(user);
}

/* With --overcommit the weights do not count. *budget 0: what the system has. *lazy: they are more than it can hold. */
static pl_status overcommit(const char *gguf_path, uint64_t *budget, bool *lazy, pl_error *err)
{
    pl_gguf *g;
    PL_TRY(pl_gguf_open(&g, gguf_path, err));
    uint64_t weights = 0, memory = pl_sys_memory_available();
    for (size_t i = 0; i < pl_gguf_n_tensors(g); i++) weights += pl_gguf_tensor_at(g, i)->size;
    pl_gguf_close(g);
    if (*budget == 0) *budget = memory - memory / 10;
    *lazy = weights > *budget;
    if (*lazy)
        pl_log(
            PL_LOG_WARN, "the model is larger than memory and is read from the disk for every token",
            "weights=%s memory=%s text=%s", pl_format_size(weights), pl_format_size(*budget),
            PL_Q("each token reads all weights, and what was read first is gone again when the next one needs it: "
                 "expect as "
                 "many seconds per token as the disk takes for a file of this size; another node would hold the rest"));
    *budget += weights;
    return PL_OK;
}

pl_status local_node_start(local_node *n, pl_loop *loop, keyring *k, const cli_options *o, const char *listen,
                           const char *gguf_path, uint64_t mem, pl_error *err)
{
    *n = (local_node){.o = o};
    progress_start(&n->loading, "Packing the weights", o->quiet);
    uint64_t budget = mem == 0 ? 0 : mem > program_bytes ? mem - program_bytes : 1;
    bool lazy = false;
    if (o->overcommit && !gguf_path)
        return pl_fail(err, PL_ERR_INVALID, "--overcommit runs a model from its file: give -m FILE.gguf");
    if (o->overcommit) PL_TRY(overcommit(gguf_path, &budget, &lazy, err));
    PL_TRY(affinity_apply(o, err));
    PL_TRY(inspect_profiler(&n->profiler, o, err));
    pl_compute_engine_options e = {
        .store_dir = o->cache_dir,
        .n_threads = o->n_threads,
        .no_pack = o->no_pack,
        .bytes_max = mem,
        .local_gguf = gguf_path,
        .poll = o->poll,
        .pin = o->pin,
        .no_fuse = o->no_fuse,
        .profiler = n->profiler,
        .load = {.copy = o->no_mmap && !lazy,
                 .lock = o->mlock && !lazy,
                 .lazy = lazy,
                 .progress = show_loading,
                 .user = &n->loading},
    };
    char advertise[128] = "";
    if (o->advertise) snprintf(advertise, sizeof advertise, "tcp://%s", o->advertise);
    pl_node_options options = {.name = o->name,
                               .budget_bytes = budget,
                               .data_address = o->advertise ? advertise : NULL,
                               .trace_path = o->trace};
    pl_status s;
    if ((s = check_plain(k, listen, err)) != PL_OK ||
        (s = pl_compute_engine_new(&n->compute, loop, &e, err)) != PL_OK ||
        (s = pl_node_new(&n->node, loop, n->compute, &options, err)) != PL_OK)
        goto fail;
    k->node = n->node;
    pl_node_set_coordinator_check(n->node, keyring_trusts, k);
    if ((s = net_new(&n->net, loop, k, &pl_node_net_events, n->node, err)) != PL_OK ||
        (s = pl_net_listen(n->net, listen, err)) != PL_OK)
        goto fail;
    pl_node_start(n->node, n->net);
    return PL_OK;
fail:
    k->node = NULL;
    local_node_stop(n);
    return s;
}

void local_node_stop(local_node *n)
{
    if (n->compute) n->compute->vt->free(n->compute); /* first: a run may still be reading the node's memory */
    pl_node_free(n->node);
    pl_net_free(n->net);
    inspect_profiler_end(n->profiler, n->o);
    *n = (local_node){0};
}

/* --- signals
 * ------------------------------------------------------------------------------------------------------------ */

pl_status signals_watch(pl_loop *loop, int *fd, void **watch, void (*fn)(void *user), void *user, pl_error *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* threads made from here on inherit it */
    *fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (*fd < 0) return pl_fail(err, PL_ERR_IO, "signalfd: %s", strerror(errno));
    return pl_loop_watch_fd(loop, *fd, fn, user, watch, err);
}

void signals_unwatch(pl_loop *loop, int fd, void *watch)
{
    pl_loop_unwatch_fd(loop, watch);
    if (fd >= 0) close(fd);
}

static void head_signal(void *user)
{
    head *h = user;
    struct signalfd_siginfo info;
    while (read(h->signal_fd, &info, sizeof info) == sizeof info)
        if (h->on_signal) h->on_signal(h->on_signal_user, h->n_signals++);
}

/* --- the coordinator with what belongs to it
 * ------------------------------------------------------------------------------ */

void log_from_options(const cli_options *o, const char *default_level)
{
    pl_log_level level = PL_LOG_INFO;
    pl_log_level_parse(default_level, &level);
    if (o->log_level) pl_log_level_parse(o->log_level, &level);
    if (o->verbose) level = PL_LOG_DEBUG;
    if (o->quiet) level = PL_LOG_ERROR;
    pl_log_setup(level, strcmp(o->log_format, "json") == 0 ? PL_LOG_JSON : PL_LOG_TEXT);
}

pl_status cache_from_options(pl_cache_types *out, const cli_options *o, pl_error *err)
{
    const char *v = o->kv_type_v ? o->kv_type_v : o->kv_type;
    if (!pl_type_parse(pl_str_from(o->kv_type), &out->k) || !pl_cache_type_known(out->k))
        return pl_fail(err, PL_ERR_INVALID, "--cache-type-k %s: f32, f16, bf16, q8_0 or q4_0", o->kv_type);
    if (!pl_type_parse(pl_str_from(v), &out->v) || !pl_cache_type_known(out->v))
        return pl_fail(err, PL_ERR_INVALID, "--cache-type-v %s: f32, f16, bf16, q8_0 or q4_0", v);
    return PL_OK;
}

static pl_status coordinator_options(const cli_options *o, int default_seqs, pl_coordinator_options *out, pl_error *err)
{
    *out = (pl_coordinator_options){
        .n_seqs = o->n_seqs ? o->n_seqs : default_seqs,
        .n_ctx = o->n_ctx,
        .n_rows = o->n_rows,
        .n_blocks = o->n_blocks,
        .has_cache = true,
        .credits = o->credits,
        .min_nodes = o->min_nodes,
        .n_stages = o->n_stages,
        .n_kept = o->no_cache_prompt ? -1 : o->n_kept,
        .heartbeat_ns = (uint64_t)o->heartbeat_ms * 1000000u,
        .dead_after_ns = (uint64_t)o->dead_after_ms * 1000000u,
        .unplaced_grace_ns = (uint64_t)o->grace_ms * 1000000u,
    };
    PL_TRY(cache_from_options(&out->cache, o, err));
    if (o->objective && strcmp(o->objective, "latency") == 0)
        out->objective = PL_OBJECTIVE_LATENCY;
    else if (o->objective && strcmp(o->objective, "throughput") == 0)
        out->objective = PL_OBJECTIVE_THROUGHPUT;
    else if (o->objective)
        return pl_fail(err, PL_ERR_INVALID, "--objective %s: latency or throughput", o->objective);
    if (o->n_seqs < 0 || o->n_ctx < 0 || o->n_rows < 0 || o->n_blocks < 0 || o->credits < 0 || o->min_nodes < 0 ||
        o->n_stages < 0 || o->heartbeat_ms < 0 || o->dead_after_ms < 0 || o->grace_ms < 0 || o->n_threads < 0)
        return pl_fail(err, PL_ERR_INVALID, "a count or time below zero has no meaning here");
    if (o->n_kept < 0) return pl_fail(err, PL_ERR_INVALID, "--cache-slots %d: below zero", o->n_kept);
    const char *spec = o->spec_type ? o->spec_type : o->model_draft ? "draft" : "none";
    bool by_model = strcmp(spec, "draft") == 0, by_text = strcmp(spec, "ngram") == 0;
    if (!by_model && !by_text && strcmp(spec, "none") != 0)
        return pl_fail(err, PL_ERR_INVALID, "--spec-type %s: none, draft or ngram", spec);
    if (by_model != (o->model_draft != NULL))
        return pl_fail(err, PL_ERR_INVALID,
                       by_model ? "--spec-type draft: which model? Give --model-draft FILE"
                                : "--model-draft with --spec-type %s: one of them guesses",
                       spec);
    if (o->n_draft < 1 || o->n_draft > PL_DRAFT_MAX)
        return pl_fail(err, PL_ERR_INVALID, "--draft-max %d: 1 to %d", o->n_draft, PL_DRAFT_MAX);
    if (!(o->draft_p_min >= 0 && o->draft_p_min <= 1))
        return pl_fail(err, PL_ERR_INVALID, "--draft-p-min %g: 0 to 1", (double)o->draft_p_min);
    if (by_model || by_text) out->n_draft = o->n_draft;
    return PL_OK;
}

static pl_status dial_nodes(head *h, pl_error *err)
{
    for (int i = 0; i < h->o->nodes.n; i++) {
        char address[128];
        pl_key key;
        PL_TRY(keyring_resolve(&h->keys, h->o->nodes.items[i], 7078, address, &key, err));
        PL_TRY(check_plain(&h->keys, address, err));
        PL_TRY(pl_coordinator_add_node(h->coordinator, address, h->keys.plain ? NULL : &key, err));
    }
    return PL_OK;
}

/* The node of this machine: with remote neighbours it must be reachable where they are. */
static pl_status start_local(head *h, bool is_private, pl_error *err)
{
    char listen[160];
    const char *control = pl_net_address(h->net);
    if (is_private && h->o->nodes.n == 0)
        snprintf(listen, sizeof listen, "inproc://node-%p", (void *)h);
    else if (is_loopback(control) && h->o->nodes.n == 0)
        snprintf(listen, sizeof listen, "tcp://127.0.0.1:0");
    else
        snprintf(listen, sizeof listen, "tcp://%s:0", h->keys.plain ? "127.0.0.1" : "0.0.0.0");
    uint64_t mem = h->o->mem;
    if (mem && mem <= h->draft_bytes)
        return pl_fail(err, PL_ERR_BUDGET, "--mem leaves nothing: the draft model alone takes %" PRIu64 " MiB",
                       h->draft_bytes >> 20);
    if (mem) mem -= h->draft_bytes;
    PL_TRY(local_node_start(&h->local, h->loop, &h->keys, h->o, listen, h->o->model, mem, err));
    char address[160];
    snprintf(address, sizeof address, "%s", control);
    char *wildcard = strstr(address, "://0.0.0.0:");
    if (wildcard) {
        char port[16];
        snprintf(port, sizeof port, "%s", wildcard + 11);
        snprintf(address, sizeof address, "tcp://127.0.0.1:%s", port);
    }
    return pl_node_join(h->local.node, address, h->keys.plain ? NULL : &h->keys.public_key, err);
}

pl_status head_start(head *h, const cli_options *o, int default_seqs, bool is_private, pl_error *err)
{
    *h = (head){.o = o, .signal_fd = -1};
    pl_coordinator_options options;
    char listen[160];
    pl_status s;
    if (is_private)
        snprintf(listen, sizeof listen, "inproc://coordinator-%p", (void *)h);
    else
        snprintf(listen, sizeof listen, "tcp://%s", o->listen ? o->listen : "127.0.0.1:7077");
    if ((s = coordinator_options(o, default_seqs, &options, err)) != PL_OK ||
        (s = pl_loop_uv_new(&h->loop, err)) != PL_OK ||
        (s = signals_watch(h->loop, &h->signal_fd, &h->signals, head_signal, h, err)) != PL_OK ||
        (s = keyring_open(&h->keys, o, err)) != PL_OK || (s = check_plain(&h->keys, listen, err)) != PL_OK ||
        (s = sampling_open(&h->sampling, o, err)) != PL_OK || (s = model_open(&h->m, o, err)) != PL_OK)
        goto fail;
    if (o->model_draft && options.n_draft) {
        if ((s = draft_open(&h->draft, h->loop, o, &options, &h->m, &h->draft_bytes, err)) != PL_OK) goto fail;
        options.guess = draft_guess;
        options.guess_user = h->draft;
    }
    pl_coordinator_model m = {h->m.gguf, h->m.profile, h->m.hashes, h->m.name, model_is_eog, &h->m};
    if ((s = pl_coordinator_new(&h->coordinator, h->loop, &m, &options, err)) != PL_OK ||
        (s = net_new(&h->net, h->loop, &h->keys, &pl_coordinator_net_events, h->coordinator, err)) != PL_OK ||
        (s = pl_net_listen(h->net, listen, err)) != PL_OK)
        goto fail;
    pl_coordinator_start(h->coordinator, h->net);
    if (h->draft && (s = draft_start(h->draft, h->coordinator, err)) != PL_OK) goto fail;
    if ((s = dial_nodes(h, err)) != PL_OK || (!o->no_local && (s = start_local(h, is_private, err)) != PL_OK))
        goto fail;
    return PL_OK;
fail:
    head_stop(h);
    return s;
}

void head_stop(head *h)
{
    draft_close(h->draft); /* first: it tells the coordinator of its guesses */
    pl_coordinator_free(h->coordinator);
    local_node_stop(&h->local);
    pl_net_free(h->net);
    model_close(&h->m);
    sampling_close(&h->sampling);
    keyring_close(&h->keys);
    if (h->loop) {
        signals_unwatch(h->loop, h->signal_fd, h->signals);
        pl_loop_uv_free(h->loop);
    }
    *h = (head){.signal_fd = -1};
}
