/* Design
 *
 * A connection is in one of these states:
 *   reading    bytes go to llhttp, which fills the one request
 *   answering  the request is whole and the handler has it; llhttp is paused, bytes that come meanwhile are kept
 * (bounded), so that the end of the connection is still seen closing    uv_close was called; memory goes in its
 * callback Answers are copied into write requests. What the client does not read is counted in queued, and a connection
 * that lets too much pile up is cut: a slow reader must not hold tokens in our memory. TLS sits between: with it, bytes
 * pass through two memory BIOs. A close may start anywhere inside a callback from llhttp or OpenSSL, so closing only
 * marks and calls uv_close; every loop checks the mark. */
#include "coordinator/http/server.h"

#include <llhttp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <uv.h>

#include "engine/base/alloc.h"
#include "engine/base/buf.h"
#include "engine/base/log.h"

typedef struct conn conn;

struct pl_http_exchange {
    conn *c;
    pl_buf url, names, values, body, extra; /* names and values: terminated strings one after the other */
    size_t n_headers;
    bool name_open; /* llhttp may give a name or value in pieces */
    bool answering, streaming, chunked, keep_alive;
    void (*gone)(pl_http_exchange *x, void *user);
    void *gone_user;
};

struct conn {
    uv_tcp_t tcp;
    pl_http *h;
    conn *prev, *next;
    llhttp_t parser;
    SSL *ssl;
    BIO *in, *out;
    pl_http_exchange x;
    pl_buf kept; /* bytes behind the request that is being answered */
    size_t queued;
    uint64_t active_ns;
    int refused; /* the status for a request that is too large */
    bool closing, broken, last;
};

struct pl_http {
    pl_loop *loop;
    uv_loop_t *uv;
    uv_tcp_t tcp;
    pl_timer *sweep;
    llhttp_settings_t settings;
    SSL_CTX *tls;
    pl_http_options o;
    void (*handler)(void *, pl_http_exchange *);
    void *user;
    conn *conns;
    int n_conns, port;
    bool closing, listener_closed;
    void (*done)(void *);
    void *done_user;
};

typedef struct write_req {
    uv_write_t req;
    conn *c;
    size_t size;
    uint8_t data[];
} write_req;

/* More than this in front of an answer is a client that pipelines without end. */
enum { KEPT_MAX = 1 << 20, READ_SIZE = 64 * 1024 };

static void conn_close(conn *c);
static void conn_consume(conn *c, const uint8_t *data, size_t size);

static void request_reset(pl_http_exchange *x)
{
    pl_buf_reset(&x->url);
    pl_buf_reset(&x->names);
    pl_buf_reset(&x->values);
    pl_buf_reset(&x->body);
    pl_buf_reset(&x->extra);
    x->n_headers = 0;
    x->name_open = x->answering = x->streaming = x->chunked = false;
    x->gone_user = NULL;
    x->gone = NULL;
}

static void server_free_if_done(pl_http *h)
{
    if (!h->closing || !h->listener_closed || h->n_conns) return;
    void (*done)(void *) = h->done;
    void *user = h->done_user;
    SSL_CTX_free(h->tls);
    pl_free(h);
    if (done) done(user);
}

static void on_conn_closed(uv_handle_t *handle)
{
    conn *c = handle->data;
    pl_http *h = c->h;
    if (c->prev)
        c->prev->next = c->next;
    else
        h->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    h->n_conns--;
    SSL_free(c->ssl); /* and its BIOs */
    pl_buf_fini(&c->x.url);
    pl_buf_fini(&c->x.names);
    pl_buf_fini(&c->x.values);
    pl_buf_fini(&c->x.body);
    pl_buf_fini(&c->x.extra);
    pl_buf_fini(&c->kept);
    pl_free(c);
    server_free_if_done(h);
}

static void conn_close(conn *c)
{
    if (c->closing) return;
    c->closing = true;
    if (c->x.answering && c->x.gone) {
        void (*gone)(pl_http_exchange *, void *) = c->x.gone;
        c->x.gone = NULL;
        gone(&c->x, c->x.gone_user);
    }
    c->x.answering = false;
    uv_close((uv_handle_t *)&c->tcp, on_conn_closed);
}

/* For failures inside a call of the handler's: on_gone must not come from inside it. */
static void conn_break(conn *c)
{
    c->broken = true;
}

static void on_written(uv_write_t *req, int status)
{
    write_req *w = (write_req *)req;
    conn *c = w->c;
    c->queued -= w->size;
    pl_free(w);
    if (status < 0) {
        conn_close(c);
        return;
    }
    c->active_ns = pl_loop_now(c->h->loop);
    if (c->last && c->queued == 0) conn_close(c);
}

static void write_raw(conn *c, const void *data, size_t size)
{
    if (size == 0 || c->closing || c->broken) return;
    write_req *w = c->queued + size > c->h->o.queue_bytes_max ? NULL : pl_alloc(sizeof *w + size);
    if (!w) {
        pl_log(PL_LOG_WARN, "http connection cut", "reason=%s queued=%zu", PL_Q("the client does not read its answer"),
               c->queued);
        conn_break(c);
        return;
    }
    w->c = c;
    w->size = size;
    memcpy(w->data, data, size);
    c->queued += size;
    uv_buf_t b = uv_buf_init((char *)w->data, (unsigned)size);
    if (uv_write(&w->req, (uv_stream_t *)&c->tcp, &b, 1, on_written) < 0) {
        c->queued -= size;
        pl_free(w);
        conn_break(c);
    }
}

static void tls_flush(conn *c)
{
    uint8_t block[16 * 1024];
    int n;
    while ((n = BIO_read(c->out, block, sizeof block)) > 0) write_raw(c, block, (size_t)n);
}

static void write_plain(conn *c, const void *data, size_t size)
{
    if (!c->ssl) {
        write_raw(c, data, size);
        return;
    }
    const uint8_t *p = data;
    while (size > 0 && !c->closing && !c->broken) {
        int step = size > 16384 ? 16384 : (int)size; /* a TLS record */
        int n = SSL_write(c->ssl, p, step);
        if (n <= 0) {
            conn_break(c);
            return;
        }
        tls_flush(c);
        p += n;
        size -= (size_t)n;
    }
}

/* RFC 9110, section 15; 499 is nginx' word for a client that went away. */
static const char *reason_phrase(int status)
{
    static const struct {
        int status;
        const char *text;
    } rows[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == status) return rows[i].text;
    return "Unknown";
}

static void write_head(pl_http_exchange *x, int status, const char *content_type, const char *framing)
{
    pl_buf b = {0};
    pl_buf_printf(&b, "HTTP/1.1 %d %s\r\n", status, reason_phrase(status));
    if (content_type) pl_buf_printf(&b, "Content-Type: %s\r\n", content_type);
    pl_buf_add(&b, x->extra.data, x->extra.size);
    pl_buf_printf(&b, "%sConnection: %s\r\n\r\n", framing, x->keep_alive ? "keep-alive" : "close");
    if (b.failed)
        conn_break(x->c);
    else
        write_plain(x->c, b.data, b.size);
    pl_buf_fini(&b);
}

/* The answer is out: the next request, or the end. Runs on its own turn of the loop, because the handler is still on
 * the stack. */
static void exchange_done(pl_http_exchange *x)
{
    conn *c = x->c;
    bool keep = x->keep_alive && !c->h->closing && !c->broken;
    request_reset(x);
    if (!keep) {
        c->last = true;
        if (c->queued == 0 || c->broken) conn_close(c);
        return;
    }
    llhttp_resume(&c->parser);
    if (c->kept.size == 0) return;
    pl_buf rest = c->kept;
    c->kept = (pl_buf){0};
    conn_consume(c, rest.data, rest.size);
    pl_buf_fini(&rest);
}

void pl_http_add_header(pl_http_exchange *x, const char *name, const char *value)
{
    pl_buf_printf(&x->extra, "%s: %s\r\n", name, value);
}

void pl_http_respond(pl_http_exchange *x, int status, const char *content_type, pl_bytes body)
{
    char framing[64];
    snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", body.size);
    write_head(x, status, content_type, framing);
    if (x->c->parser.method != HTTP_HEAD) write_plain(x->c, body.data, body.size);
    exchange_done(x);
}

void pl_http_stream(pl_http_exchange *x, int status, const char *content_type)
{
    x->streaming = true;
    x->chunked = x->c->parser.http_major == 1 && x->c->parser.http_minor >= 1;
    if (!x->chunked) x->keep_alive = false; /* HTTP/1.0: the end of the connection ends the answer */
    write_head(x, status, content_type, x->chunked ? "Transfer-Encoding: chunked\r\n" : "");
}

void pl_http_send(pl_http_exchange *x, pl_bytes piece)
{
    PL_ASSERT(x->streaming);
    if (piece.size == 0) return; /* an empty chunk would end the answer */
    if (!x->chunked) {
        write_plain(x->c, piece.data, piece.size);
        return;
    }
    pl_buf b = {0};
    pl_buf_printf(&b, "%zx\r\n", piece.size);
    pl_buf_add(&b, piece.data, piece.size);
    pl_buf_add(&b, "\r\n", 2);
    if (b.failed)
        conn_break(x->c);
    else
        write_plain(x->c, b.data, b.size);
    pl_buf_fini(&b);
}

void pl_http_end(pl_http_exchange *x)
{
    PL_ASSERT(x->streaming);
    if (x->chunked) write_plain(x->c, "0\r\n\r\n", 5);
    exchange_done(x);
}

/* What the server itself has to say: the request never reached the handler. */
static void refuse(conn *c, int status, const char *text)
{
    pl_buf b = {0};
    pl_buf_printf(&b, "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"code\":%d}}", text, status);
    c->x.keep_alive = false;
    pl_http_respond(&c->x, status, "application/json", pl_buf_bytes(&b));
    pl_buf_fini(&b);
}

/* For callbacks: llhttp stops with an error of its own, and refused says what to answer. */
static int too_large(conn *c, int status)
{
    c->refused = status;
    return -1;
}

static int on_url(llhttp_t *p, const char *at, size_t n)
{
    conn *c = p->data;
    if (c->x.url.size + n > c->h->o.header_bytes_max || !pl_buf_add(&c->x.url, at, n)) return too_large(c, 431);
    return 0;
}

static int on_header_field(llhttp_t *p, const char *at, size_t n)
{
    conn *c = p->data;
    pl_http_exchange *x = &c->x;
    if (!x->name_open && x->n_headers > 0) pl_buf_add_u8(&x->values, 0);
    if (!x->name_open) x->n_headers++;
    x->name_open = true;
    if (x->names.size + x->values.size + n > c->h->o.header_bytes_max || !pl_buf_add(&x->names, at, n))
        return too_large(c, 431);
    return 0;
}

static int on_header_value(llhttp_t *p, const char *at, size_t n)
{
    conn *c = p->data;
    pl_http_exchange *x = &c->x;
    if (x->name_open) pl_buf_add_u8(&x->names, 0);
    x->name_open = false;
    if (x->names.size + x->values.size + n > c->h->o.header_bytes_max || !pl_buf_add(&x->values, at, n))
        return too_large(c, 431);
    return 0;
}

static int on_headers_complete(llhttp_t *p)
{
    conn *c = p->data;
    pl_http_exchange *x = &c->x;
    if (x->name_open) pl_buf_add_u8(&x->names, 0);
    x->name_open = false;
    if (x->n_headers > 0) pl_buf_add_u8(&x->values, 0);
    if (x->names.failed || x->values.failed) return too_large(c, 431);
    x->keep_alive = llhttp_should_keep_alive(p);
    if ((p->flags & F_CONTENT_LENGTH) && p->content_length > c->h->o.body_bytes_max) return too_large(c, 413);
    pl_str expect = pl_http_header(x, "expect");
    if (expect.size == 12 && strncasecmp(expect.data, "100-continue", 12) == 0)
        write_plain(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    conn *c = p->data;
    if (n > c->h->o.body_bytes_max - c->x.body.size || !pl_buf_add(&c->x.body, at, n)) return too_large(c, 413);
    return 0;
}

static int on_message_complete(llhttp_t *p)
{
    conn *c = p->data;
    c->x.answering = true;
    return HPE_PAUSED;
}

/* Feeds request bytes. Stops where a request is whole and calls the handler; what is behind it is kept. */
static void conn_consume(conn *c, const uint8_t *data, size_t size)
{
    while (size > 0 && !c->closing && !c->last) {
        if (c->x.answering) {
            if (c->kept.size + size > KEPT_MAX || !pl_buf_add(&c->kept, data, size)) conn_close(c);
            return;
        }
        llhttp_errno_t e = llhttp_execute(&c->parser, (const char *)data, size);
        if (e == HPE_OK) return;
        if (e == HPE_PAUSED) {
            const uint8_t *stop = (const uint8_t *)llhttp_get_error_pos(&c->parser);
            size -= (size_t)(stop - data);
            data = stop;
            llhttp_resume(&c->parser);
            c->h->handler(c->h->user, &c->x);
            continue;
        }
        if (e == HPE_PAUSED_UPGRADE) {
            refuse(c, 501, "this server does not speak the protocol that was asked for with Upgrade or CONNECT");
            return;
        }
        if (c->refused == 413)
            refuse(c, 413, "the request body is larger than this server takes");
        else if (c->refused)
            refuse(c, 431, "the request line and headers are larger than this server takes");
        else
            refuse(c, 400, "this is not an HTTP/1.1 request");
        return;
    }
}

static void conn_tls_input(conn *c, const uint8_t *data, size_t size)
{
    while (size > 0 && !c->closing) {
        int n = BIO_write(c->in, data, size > 65536 ? 65536 : (int)size);
        if (n <= 0) {
            conn_close(c);
            return;
        }
        data += n;
        size -= (size_t)n;
        uint8_t plain[16 * 1024];
        int got;
        while (!c->closing && (got = SSL_read(c->ssl, plain, sizeof plain)) > 0) conn_consume(c, plain, (size_t)got);
        if (c->closing) return;
        int e = SSL_get_error(c->ssl, 0);
        tls_flush(c);
        if (e == SSL_ERROR_SSL || e == SSL_ERROR_ZERO_RETURN || e == SSL_ERROR_SYSCALL) {
            ERR_clear_error();
            conn_close(c);
        }
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)handle;
    (void)suggested;
    char *p = pl_alloc(READ_SIZE);
    *buf = uv_buf_init(p, p ? READ_SIZE : 0);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    conn *c = stream->data;
    if (n > 0 && !c->closing) {
        c->active_ns = pl_loop_now(c->h->loop);
        if (c->ssl)
            conn_tls_input(c, (const uint8_t *)buf->base, (size_t)n);
        else
            conn_consume(c, (const uint8_t *)buf->base, (size_t)n);
    }
    pl_free(buf->base);
    if (n < 0 || c->broken) conn_close(c);
}

/* At the cap the connection that has been idle for longest gives way, so that idle ones cannot lock out the others. */
static void make_room(pl_http *h)
{
    conn *oldest = NULL;
    int n = 0;
    for (conn *c = h->conns; c; c = c->next) {
        n += !c->closing;
        if (!c->closing && !c->x.answering && (!oldest || c->active_ns < oldest->active_ns)) oldest = c;
    }
    if (oldest && n >= h->o.connections_max) conn_close(oldest);
}

static void on_connection(uv_stream_t *server, int status)
{
    pl_http *h = server->data;
    if (status < 0 || h->closing) return;
    make_room(h);
    conn *c = pl_calloc(1, sizeof *c);
    if (!c) return; /* the next connection tries again */
    c->h = h;
    c->active_ns = pl_loop_now(h->loop);
    c->x.c = c;
    uv_tcp_init(h->uv, &c->tcp);
    c->tcp.data = c;
    c->next = h->conns;
    if (c->next) c->next->prev = c;
    h->conns = c;
    h->n_conns++;
    llhttp_init(&c->parser, HTTP_REQUEST, &h->settings);
    c->parser.data = c;
    if (uv_accept(server, (uv_stream_t *)&c->tcp) < 0 || h->n_conns > 2 * h->o.connections_max) {
        conn_close(c);
        return;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    if (h->tls) {
        c->ssl = SSL_new(h->tls);
        c->in = BIO_new(BIO_s_mem());
        c->out = BIO_new(BIO_s_mem());
        if (!c->ssl || !c->in || !c->out) {
            BIO_free(c->in);
            BIO_free(c->out);
            conn_close(c);
            return;
        }
        SSL_set_bio(c->ssl, c->in, c->out);
        SSL_set_accept_state(c->ssl);
    }
    if (uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) < 0) conn_close(c);
}

/* Connections that say nothing, and those that broke while a handler was on the stack. */
static void on_sweep(void *user)
{
    pl_http *h = user;
    uint64_t now = pl_loop_now(h->loop);
    for (conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        if (c->broken || (!c->x.answering && now - c->active_ns > h->o.idle_ns)) conn_close(c);
    }
}

static pl_status tls_open(pl_http *h, pl_error *err)
{
    h->tls = SSL_CTX_new(TLS_server_method());
    if (!h->tls) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for TLS");
    SSL_CTX_set_min_proto_version(h->tls, TLS1_2_VERSION);
    SSL_CTX_set_mode(h->tls,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    const char *what = NULL;
    if (SSL_CTX_use_certificate_chain_file(h->tls, h->o.cert_file) != 1)
        what = h->o.cert_file;
    else if (SSL_CTX_use_PrivateKey_file(h->tls, h->o.key_file, SSL_FILETYPE_PEM) != 1)
        what = h->o.key_file;
    else if (SSL_CTX_check_private_key(h->tls) != 1)
        what = h->o.key_file;
    if (!what) return PL_OK;
    char text[256];
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    ERR_clear_error();
    return pl_fail(err, PL_ERR_IO, "TLS: %s: %s", what, text);
}

static pl_status bind_and_listen(pl_http *h, pl_error *err)
{
    char port[16];
    snprintf(port, sizeof port, "%d", h->o.port);
    uv_getaddrinfo_t info;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    int e = uv_getaddrinfo(h->uv, &info, NULL, h->o.host, port, &hints);
    if (e < 0) return pl_fail(err, PL_ERR_INVALID, "http: host %s: %s", h->o.host, uv_strerror(e));
    e = uv_tcp_bind(&h->tcp, info.addrinfo->ai_addr, 0);
    uv_freeaddrinfo(info.addrinfo);
    if (e == 0) e = uv_listen((uv_stream_t *)&h->tcp, 511, on_connection);
    if (e < 0)
        return pl_fail(err, PL_ERR_IO, "http: cannot listen on %s port %d: %s", h->o.host, h->o.port, uv_strerror(e));
    struct sockaddr_storage bound;
    int size = sizeof bound;
    if (uv_tcp_getsockname(&h->tcp, (struct sockaddr *)&bound, &size) == 0)
        h->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                    : ((struct sockaddr_in *)&bound)->sin_port);
    return PL_OK;
}

static void on_listener_closed(uv_handle_t *handle)
{
    pl_http *h = handle->data;
    h->listener_closed = true;
    server_free_if_done(h);
}

pl_status pl_http_new(pl_http **out, pl_loop *loop, const pl_http_options *options,
                      void (*handler)(void *, pl_http_exchange *), void *user, pl_error *err)
{
    *out = NULL;
    if (options->port < 0 || options->port > 65535)
        return pl_fail(err, PL_ERR_INVALID, "http: port %d is not 0 to 65535", options->port);
    if (!options->cert_file != !options->key_file)
        return pl_fail(err, PL_ERR_INVALID, "TLS needs both a certificate and a key file");
    pl_http *h = pl_calloc(1, sizeof *h);
    if (!h) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the http server");
    h->loop = loop;
    h->uv = pl_loop_uv_handle(loop);
    h->handler = handler;
    h->user = user;
    h->o = *options;
    if (!h->o.host) h->o.host = "127.0.0.1";
    if (!h->o.body_bytes_max) h->o.body_bytes_max = 16 << 20;
    if (!h->o.header_bytes_max) h->o.header_bytes_max = 64 << 10;
    if (!h->o.queue_bytes_max) h->o.queue_bytes_max = 8 << 20;
    if (!h->o.connections_max) h->o.connections_max = 1024;
    if (!h->o.idle_ns) h->o.idle_ns = 60000000000u;
    llhttp_settings_init(&h->settings);
    h->settings.on_url = on_url;
    h->settings.on_header_field = on_header_field;
    h->settings.on_header_value = on_header_value;
    h->settings.on_headers_complete = on_headers_complete;
    h->settings.on_body = on_body;
    h->settings.on_message_complete = on_message_complete;
    pl_status s;
    if (h->o.cert_file && (s = tls_open(h, err)) != PL_OK) {
        SSL_CTX_free(h->tls);
        pl_free(h);
        return s;
    }
    uv_tcp_init(h->uv, &h->tcp);
    h->tcp.data = h;
    s = bind_and_listen(h, err);
    if (s == PL_OK) s = pl_timer_start(loop, 1000000000u, 1000000000u, on_sweep, h, &h->sweep, err);
    if (s != PL_OK) {
        pl_http_close(h, NULL, NULL);
        return s;
    }
    *out = h;
    return PL_OK;
}

void pl_http_close(pl_http *h, void (*done)(void *user), void *user)
{
    if (!h || h->closing) return;
    h->closing = true;
    h->done = done;
    h->done_user = user;
    pl_timer_stop(h->loop, h->sweep);
    for (conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        conn_close(c);
    }
    uv_close((uv_handle_t *)&h->tcp, on_listener_closed);
}

int pl_http_port(const pl_http *h)
{
    return h->port;
}
bool pl_http_is_tls(const pl_http *h)
{
    return h->tls != NULL;
}

pl_str pl_http_method(const pl_http_exchange *x)
{
    return pl_str_from(llhttp_method_name((llhttp_method_t)x->c->parser.method));
}

pl_str pl_http_path(const pl_http_exchange *x)
{
    pl_str url = pl_buf_str(&x->url);
    const char *q = url.size ? memchr(url.data, '?', url.size) : NULL;
    return q ? (pl_str){url.data, (size_t)(q - url.data)} : url;
}

pl_str pl_http_query(const pl_http_exchange *x)
{
    pl_str url = pl_buf_str(&x->url), path = pl_http_path(x);
    return path.size == url.size ? (pl_str){0} : (pl_str){url.data + path.size + 1, url.size - path.size - 1};
}

pl_str pl_http_header(const pl_http_exchange *x, const char *name)
{
    const char *n = (const char *)x->names.data, *v = (const char *)x->values.data;
    for (size_t i = 0; i < x->n_headers; i++, n += strlen(n) + 1, v += strlen(v) + 1)
        if (strcasecmp(n, name) == 0) return pl_str_from(v);
    return (pl_str){0};
}

pl_bytes pl_http_body(const pl_http_exchange *x)
{
    return pl_buf_bytes(&x->body);
}
void pl_http_on_gone(pl_http_exchange *x, void (*gone)(pl_http_exchange *x, void *user), void *user)
{
    x->gone = gone;
    x->gone_user = user;
}
