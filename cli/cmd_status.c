#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/groups.h"
#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/base/sys.h"

static const option_row rows[] = {
    {"-u, --url", "URL", OPT_STR, offsetof(cli_options, url),
     "The coordinator's API (default: http://127.0.0.1:8080)."},
    {"--api-key", "KEY", OPT_LIST, offsetof(cli_options, api_keys), "Its API key."},
    {"--cacert", "FILE", OPT_STR, offsetof(cli_options, cacert),
     "Certificates to trust, PEM, for a server with its own."},
    {"-k, --insecure", NULL, OPT_FLAG, offsetof(cli_options, insecure), "Do not check the server's certificate."},
    {"--json", NULL, OPT_FLAG, offsetof(cli_options, json),
     "Print the answer as it came (docs/status.md explains it)."},
    {"-w, --watch", NULL, OPT_FLAG, offsetof(cli_options, watch), "Again every second, until interrupted."},
};
static const option_group group = {"Coordinator", rows, sizeof rows / sizeof *rows};

enum { ANSWER_MAX = 16 << 20 };

static size_t on_bytes(char *data, size_t size, size_t n, void *user)
{
    pl_buf *b = user;
    if (b->size + size * n > ANSWER_MAX || !pl_buf_add(b, data, size * n)) return 0;
    return size * n;
}

static pl_status get(const cli_options *o, pl_buf *out, pl_error *err)
{
    pl_buf url = {0}, auth = {0};
    pl_str base = pl_str_from(o->url ? o->url : "http://127.0.0.1:8080");
    while (base.size && base.data[base.size - 1] == '/') base.size--;
    pl_buf_printf(&url, "%.*s/v1/cluster", PL_STR_ARG(base));
    CURL *c = curl_easy_init();
    struct curl_slist *headers = NULL;
    if (o->api_keys.n) {
        pl_buf_printf(&auth, "Authorization: Bearer %s", o->api_keys.items[0]);
        headers = curl_slist_append(NULL, pl_buf_cstr(&auth));
    }
    char why[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(c, CURLOPT_URL, pl_buf_cstr(&url));
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, 5000L);
    if (o->cacert) curl_easy_setopt(c, CURLOPT_CAINFO, o->cacert);
    if (o->insecure) {
        curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    CURLcode code = curl_easy_perform(c);
    long http = 0;
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &http);
    pl_status s = PL_OK;
    if (code != CURLE_OK)
        s = pl_fail(err, code == CURLE_OPERATION_TIMEDOUT ? PL_ERR_TIMEOUT : PL_ERR_CLOSED, "%s: %s", pl_buf_cstr(&url),
                    why[0] ? why : curl_easy_strerror(code));
    else if (http != 200)
        s = pl_fail(err, http == 401 ? PL_ERR_AUTH : PL_ERR_INVALID, "%s answers %ld: %.*s", pl_buf_cstr(&url), http,
                    out->size > 300 ? 300 : (int)out->size, (const char *)out->data);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    pl_buf_fini(&url);
    pl_buf_fini(&auth);
    return s;
}

static const char *text_of(const pl_json *v, const char *key, char *out, size_t size)
{
    pl_str s = pl_json_str(pl_json_get(v, key));
    snprintf(out, size, "%.*s", PL_STR_ARG(s));
    return out;
}

static uint64_t number(const pl_json *v, const char *key)
{
    return (uint64_t)pl_json_i64(pl_json_get(v, key));
}

static void print_tables(const pl_json *v)
{
    char a[128], b[128], c[64];
    const pl_json *pipeline = pl_json_get(v, "pipeline"), *nodes = pl_json_get(v, "nodes"),
                  *requests = pl_json_get(v, "requests");
    printf("model     %s\n", text_of(v, "model", a, sizeof a));
    printf("pipeline  %s, epoch %" PRIu64 ", %zu stages\n", text_of(pipeline, "state", a, sizeof a),
           number(pipeline, "epoch"), pl_json_size(pl_json_get(pipeline, "stages")));
    if (pl_json_str(pl_json_get(pipeline, "reason")).size)
        printf("          %s\n", text_of(pipeline, "reason", a, sizeof a));
    printf("requests  %" PRIu64 " open, %" PRIu64 " waiting, %.1f tokens/s\n\n", number(requests, "open"),
           number(requests, "waiting"), pl_json_f64(pl_json_get(v, "tokens_per_s")));
    printf("%-16s %-8s %-9s %10s %10s %8s %6s  %s\n", "NODE", "STATE", "LAYERS", "MEMORY", "BUDGET", "RTT", "BUSY",
           "ADDRESS");
    for (size_t i = 0; i < pl_json_size(nodes); i++) {
        const pl_json *n = pl_json_at(nodes, i), *layers = pl_json_get(n, "layers");
        char range[32] = "-";
        if (pl_json_size(layers) == 2)
            snprintf(range, sizeof range, "%" PRId64 "..%" PRId64, pl_json_i64(pl_json_at(layers, 0)),
                     pl_json_i64(pl_json_at(layers, 1)) - 1);
        printf("%-16s %-8s %-9s %10s %10s %5.2f ms %5.0f%%  %s\n", text_of(n, "name", a, sizeof a),
               text_of(n, "state", c, sizeof c), range, pl_format_size(number(n, "memory_bytes")),
               pl_format_size(number(n, "budget_bytes")), (double)number(n, "rtt_ns") / 1e6,
               100 * pl_json_f64(pl_json_get(n, "busy_share")), text_of(n, "address", b, sizeof b));
    }
}

static pl_status show(const cli_options *o, pl_error *err)
{
    pl_buf text = {0};
    pl_json *v = NULL;
    pl_status s = get(o, &text, err);
    if (s == PL_OK && o->json)
        cli_print(stdout, pl_buf_str(&text));
    else if (s == PL_OK && (s = pl_json_parse(&v, pl_buf_str(&text), err)) == PL_OK)
        print_tables(v);
    pl_json_free(v);
    pl_buf_fini(&text);
    return s;
}

static int run(const cli_options *o, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    pl_error err;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    pl_status s;
    do {
        if (o->watch && isatty(STDOUT_FILENO)) fputs("\033[H\033[2J", stdout);
        s = show(o, &err);
        fflush(stdout);
    } while (s == PL_OK && o->watch && sleep(1) == 0);
    curl_global_cleanup();
    return s == PL_OK ? 0 : cli_fail(&err);
}

const command cmd_status = {
    "status",
    "",
    "show a coordinator's nodes, stages, memory and rates",
    "Asks the coordinator's API.",
    "$ paceline status\n$ paceline status --url http://10.0.0.1:8080 --watch",
    {&group, &group_general, NULL},
    run,
};
