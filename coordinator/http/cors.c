/* Which pages of other origins may read the answers (https://fetch.spec.whatwg.org/#http-cors-protocol).
 *
 * Pages from this machine may; others only when the server was started for them. To let any page ask a server on
 * loopback would give every site that its user visits the use of the model. */
#include <stdio.h>

#include "coordinator/http/api_impl.h"
#include "coordinator/http/server.h"

/* Only what may stand in a header as it is. */
static bool is_plain(pl_str s, size_t max)
{
    if (s.size == 0 || s.size > max) return false;
    for (size_t i = 0; i < s.size; i++)
        if (s.data[i] < 0x21 || s.data[i] > 0x7e) return false;
    return true;
}

/* http://localhost, with any port. */
static bool is_local(pl_str origin)
{
    static const char *const hosts[] = {"http://localhost",  "https://localhost", "http://127.0.0.1",
                                        "https://127.0.0.1", "http://[::1]",      "https://[::1]"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        size_t n = strlen(hosts[i]);
        if (origin.size >= n && memcmp(origin.data, hosts[i], n) == 0 && (origin.size == n || origin.data[n] == ':'))
            return true;
    }
    return false;
}

bool api_cors(pl_http_exchange *x, const char *const *origins, size_t n_origins)
{
    pl_str origin = pl_http_header(x, "origin");
    if (!is_plain(origin, 200)) return false;
    bool yes = is_local(origin);
    for (size_t i = 0; i < n_origins && !yes; i++) yes = strcmp(origins[i], "*") == 0 || pl_str_is(origin, origins[i]);
    pl_http_add_header(x, "Vary", "Origin");
    if (!yes) return false;
    char value[201];
    snprintf(value, sizeof value, "%.*s", PL_STR_ARG(origin));
    pl_http_add_header(x, "Access-Control-Allow-Origin", value);
    return true;
}

void api_preflight(pl_http_exchange *x, bool allowed)
{
    pl_str headers = pl_http_header(x, "access-control-request-headers");
    char value[1001] = "Authorization,Content-Type";
    /* The names come back as they were asked for: clients have many of their own. */
    bool plain = headers.size > 0 && headers.size < sizeof value;
    for (size_t i = 0; i < headers.size && plain; i++) {
        char c = headers.data[i];
        plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("-_, ", c);
    }
    if (plain) snprintf(value, sizeof value, "%.*s", PL_STR_ARG(headers));
    if (allowed) {
        pl_http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        pl_http_add_header(x, "Access-Control-Allow-Headers", value);
        pl_http_add_header(x, "Access-Control-Max-Age", "86400");
    }
    pl_http_respond(x, 200, "text/plain; charset=utf-8", (pl_bytes){0});
}
