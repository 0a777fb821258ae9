/* An HTTP/1.1 server on the libuv loop: connections, TLS, limits. What the paths mean is the handler's business
 * (api.h).
 *
 * Parser: llhttp. TLS: OpenSSL. One exchange is one request and its answer; pipelined requests wait until the answer
 * before is out. Threads: the loop's thread. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"
#include "transport/loop.h"

typedef struct pl_http pl_http;
typedef struct pl_http_exchange pl_http_exchange;

typedef struct pl_http_options {
    const char *host;      /* an address or name to bind; NULL: 127.0.0.1 */
    int port;              /* 0: the system picks one */
    const char *cert_file; /* PEM chain and key: both or none */
    const char *key_file;
    size_t body_bytes_max;   /* 0: 16 MiB: a long context as text, escaped */
    size_t header_bytes_max; /* 0: 64 KiB */
    size_t queue_bytes_max;  /* of answers that a client does not read; beyond it the connection is cut. 0: 8 MiB */
    int connections_max;     /* 0: 1024 */
    uint64_t idle_ns; /* a connection without a request in progress, or a request that does not arrive; 0: 60 s */
} pl_http_options;

/* handler is called when a request has arrived whole. It answers with pl_http_respond, or pl_http_stream ..
 * pl_http_end, at once or later. */
PL_MUST_CHECK pl_status pl_http_new(pl_http **out, pl_loop *loop, const pl_http_options *options,
                                    void (*handler)(void *user, pl_http_exchange *x), void *user, pl_error *err);
/* Cuts all connections (pl_http_on_gone is told) and frees the server when the loop has closed its handles; run the
 * loop until done is called. */
void pl_http_close(pl_http *h, void (*done)(void *user), void *user);
int pl_http_port(const pl_http *h);
bool pl_http_is_tls(const pl_http *h);

/* The request. Text lives until the exchange ends. */
pl_str pl_http_method(const pl_http_exchange *x);
pl_str pl_http_path(const pl_http_exchange *x); /* before '?' */
pl_str pl_http_query(const pl_http_exchange *x);
/* The first header of that name, without regard to case; empty when absent. */
pl_str pl_http_header(const pl_http_exchange *x, const char *name);
pl_bytes pl_http_body(const pl_http_exchange *x);

/* Called once if the client goes away (or the server closes) before the answer is out; x is dead when gone returns. */
void pl_http_on_gone(pl_http_exchange *x, void (*gone)(pl_http_exchange *x, void *user), void *user);

/* One header line more of the answer; before respond or stream. name and value are ours, never from outside. */
void pl_http_add_header(pl_http_exchange *x, const char *name, const char *value);
/* The whole answer. x is dead. */
void pl_http_respond(pl_http_exchange *x, int status, const char *content_type, pl_bytes body);
/* An answer in pieces (chunked). After pl_http_end x is dead. A piece that finds its connection broken is dropped:
 * on_gone follows. */
void pl_http_stream(pl_http_exchange *x, int status, const char *content_type);
void pl_http_send(pl_http_exchange *x, pl_bytes piece);
void pl_http_end(pl_http_exchange *x);
