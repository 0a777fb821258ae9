#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster.h"
#include "cli/commands.h"
#include "cli/groups.h"
#include "cli/inspect.h"
#include "coordinator/http/api.h"
#include "engine/base/alloc.h"
#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/log.h"

typedef struct serve {
    head h;
    pl_api *api;
    pl_http *http;
    bool was_up, stopping;
} serve;

/* Lines of a file as API keys, into the list; text owns them. */
static pl_status read_api_keys(const char *path, pl_buf *text, str_list *out, pl_error *err)
{
    PL_TRY(pl_file_read(text, path, 1 << 20, err));
    if (!pl_buf_cstr(text)) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %s", path);
    for (char *save = NULL, *line = strtok_r((char *)text->data, "\r\n", &save); line;
         line = strtok_r(NULL, "\r\n", &save)) {
        line += strspn(line, " \t");
        size_t n = strlen(line);
        while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t')) line[--n] = 0;
        if (n == 0 || line[0] == '#') continue;
        if (out->n == LIST_MAX) return pl_fail(err, PL_ERR_INVALID, "%s: more than %d keys", path, LIST_MAX);
        out->items[out->n++] = line;
    }
    return PL_OK;
}

/* The plan, whenever a pipeline comes up; what is missing, when it goes. */
static void on_change(void *user)
{
    serve *s = user;
    pl_error err = {0};
    bool up = pl_coordinator_health(s->h.coordinator, &err) == PL_OK;
    if (up == s->was_up || s->stopping) return;
    s->was_up = up;
    if (!up) {
        pl_log(PL_LOG_WARN, "the pipeline is down", "reason=%s", PL_Q(err.text));
        return;
    }
    pl_buf text = {0};
    if (!s->h.o->quiet && pl_coordinator_plan_text(s->h.coordinator, &text, &err) == PL_OK) {
        cli_print(stdout, pl_buf_str(&text));
        puts("READY");
        fflush(stdout);
    }
    pl_buf_fini(&text);
    pl_log(PL_LOG_INFO, "ready", "model=%s", PL_Q(s->h.m.name));
}

static void on_http_closed(void *user)
{
    pl_loop_uv_stop(((serve *)user)->h.loop);
}

static void on_signal(void *user, int n_before)
{
    serve *s = user;
    if (n_before > 0) _exit(130); /* asked twice: at once */
    pl_log(PL_LOG_INFO, "stopping", "%s", "");
    s->stopping = true;
    pl_http_close(s->http, on_http_closed, s);
}

static int run(const cli_options *o, int argc, char **argv)
{
    pl_error err;
    if (argc > 0) {
        (void)pl_fail(&err, PL_ERR_INVALID, "serve: %s: what is this for? The model is given with -m", argv[0]);
        return cli_fail(&err);
    }
    if (o->dump_graph) return inspect_dump_graph(o);
    log_from_options(o, "info");
    serve s = {0};
    pl_buf key_text = {0};
    str_list keys = o->api_keys;
    int code = 0;
    if ((o->api_key_file && read_api_keys(o->api_key_file, &key_text, &keys, &err) != PL_OK) ||
        head_start(&s.h, o, 4, false, &err) != PL_OK) {
        pl_buf_fini(&key_text);
        return cli_fail(&err);
    }
    pl_api_options api = {
        .coordinator = s.h.coordinator,
        .loop = s.h.loop,
        .vocab = s.h.m.vocab,
        .chat = s.h.m.chat,
        .model = s.h.m.name,
        .keys = keys.items,
        .n_keys = (size_t)keys.n,
        .origins = o->cors_origins.items,
        .n_origins = (size_t)o->cors_origins.n,
        .chat_template = pl_buf_str(&s.h.m.chat_text),
        .n_slots = o->n_seqs ? o->n_seqs : 4,
        .sample = s.h.sampling.params,
        .max_tokens = o->n_predict,
        .context_shift = o->context_shift,
        .n_keep = o->n_keep,
        .adapters = s.h.m.adapters,
        .n_adapters = pl_model_n_adapters(s.h.m.profile),
    };
    pl_http_options http = {.host = o->host, .port = o->port, .cert_file = o->cert, .key_file = o->ssl_key};
    if (pl_api_new(&s.api, &api, &err) != PL_OK ||
        pl_http_new(&s.http, s.h.loop, &http, pl_api_handle, s.api, &err) != PL_OK) {
        code = cli_fail(&err);
    } else {
        s.h.on_signal = on_signal;
        s.h.on_signal_user = &s;
        pl_coordinator_on_change(s.h.coordinator, on_change, &s);
        if (!o->quiet) {
            printf("API:    %s://%s:%d/v1\nNodes:  %s\n", pl_http_is_tls(s.http) ? "https" : "http",
                   o->host ? o->host : "127.0.0.1", pl_http_port(s.http), pl_net_address(s.h.net));
            fflush(stdout);
        }
        on_change(&s);
        pl_loop_uv_run(s.h.loop);
    }
    head_stop(&s.h); /* before the API: open requests end through it */
    pl_api_free(s.api);
    pl_buf_fini(&key_text);
    return code;
}

const command cmd_serve = {
    "serve",
    "",
    "coordinate nodes and serve the OpenAI-compatible API",
    "Splits the model's layers over the nodes that join (and over this machine, unless --no-local), and answers "
    "requests on "
    "/v1/chat/completions, /v1/completions, /v1/models and /health. Nodes come by themselves (paceline node --join) or "
    "are dialed (--node). "
    "When a node dies, the layers are placed anew over those that are left and open streams go on; a model that does "
    "not fit is refused with a table of what is short.",
    "# one machine\n$ paceline serve -m model.gguf\n# for nodes on other machines\n$ paceline serve -m model.gguf "
    "--listen 0.0.0.0:7077 --host 0.0.0.0 --api-key SECRET\n"
    "# dial nodes, and compute nothing here\n$ paceline serve -m model.gguf --no-local --node 10.0.0.5:7078#KEY --node "
    "10.0.0.6:7078#KEY\n"
    "# ask it\n$ curl http://127.0.0.1:8080/v1/chat/completions -d "
    "'{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'",
    {&group_model, &group_sampling, &group_cluster, &group_node, &group_inspect, &group_graph, &group_keys, &group_http,
     &group_general, NULL},
    run,
};
