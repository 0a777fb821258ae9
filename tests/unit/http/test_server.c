/* The HTTP server over a real socket: the loop on the test's thread, a client on another. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coordinator/http/server.h"
#include "tests/fixtures/fixtures.h"

typedef struct world {
    pl_loop *loop;
    pl_http *http;
    const char *request;  /* what the client sends */
    bool client_leaves;   /* after the first bytes of the answer */
    char answer[1 << 16]; /* what it got until the connection was quiet or closed */
    int n_requests, n_gone;
    char seen[512];         /* method, path, query, a header and the body of the last request */
    pl_http_exchange *open; /* of /wait */
} world;

static void on_gone(pl_http_exchange *x, void *user)
{
    world *w = user;
    ck_assert_ptr_eq(x, w->open);
    w->n_gone++;
    w->open = NULL;
}

static void handle(void *user, pl_http_exchange *x)
{
    world *w = user;
    pl_str method = pl_http_method(x), path = pl_http_path(x), query = pl_http_query(x),
           header = pl_http_header(x, "x-test");
    pl_bytes body = pl_http_body(x);
    snprintf(w->seen, sizeof w->seen, "%.*s %.*s %.*s %.*s %.*s", PL_STR_ARG(method), PL_STR_ARG(path),
             PL_STR_ARG(query), PL_STR_ARG(header), (int)body.size, body.size ? (const char *)body.data : "");
    w->n_requests++;
    if (pl_str_is(path, "/stream")) {
        pl_http_stream(x, 200, "text/plain");
        pl_http_send(x, (pl_bytes){(const uint8_t *)"one", 3});
        pl_http_send(x, (pl_bytes){(const uint8_t *)"two!", 4});
        pl_http_end(x);
    } else if (pl_str_is(path, "/wait")) {
        w->open = x;
        pl_http_on_gone(x, on_gone, w);
        pl_http_stream(x, 200, "text/plain");
        pl_http_send(x, (pl_bytes){(const uint8_t *)"x", 1});
    } else {
        pl_http_respond(x, 200, "text/plain", (pl_bytes){(const uint8_t *)"fine\n", 5});
    }
}

static void stop(void *user)
{
    pl_loop_uv_stop(((world *)user)->loop);
}

static void *client(void *user)
{
    world *w = user;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)pl_http_port(w->http)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval quiet = {.tv_usec = 300000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &quiet, sizeof quiet);
    size_t got = 0, n = strlen(w->request);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 && send(fd, w->request, n, MSG_NOSIGNAL) == (ssize_t)n)
        for (ssize_t r;
             got + 1 < sizeof w->answer && (r = recv(fd, w->answer + got, sizeof w->answer - 1 - got, 0)) > 0;) {
            got += (size_t)r;
            if (w->client_leaves) break;
        }
    w->answer[got] = 0;
    close(fd);
    usleep(100000); /* the server sees it go */
    ck_assert_int_eq(pl_loop_post(w->loop, stop, w), PL_OK);
    return NULL;
}

static void talk(world *w, const char *request)
{
    pl_error err;
    pl_http_options o = {.body_bytes_max = 1000, .header_bytes_max = 2000};
    w->request = request;
    ck_ok(pl_loop_uv_new(&w->loop, &err), err);
    ck_ok(pl_http_new(&w->http, w->loop, &o, handle, w, &err), err);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, client, w), 0);
    pl_loop_uv_run(w->loop);
    pthread_join(thread, NULL);
    pl_http_close(w->http, stop, w);
    pl_loop_uv_run(w->loop);
    pl_loop_uv_free(w->loop);
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p += strlen(part)) n++;
    return n;
}

static world w;
static void setup(void)
{
    memset(&w, 0, sizeof w);
}

START_TEST(a_request_is_read_with_all_its_parts)
{
    talk(&w, "POST /a/b?c=d HTTP/1.1\r\nHost: h\r\nX-Test: yes\r\nContent-Length: 4\r\n\r\nbody");
    ck_assert_str_eq(w.seen, "POST /a/b c=d yes body");
    ck_assert(strncmp(w.answer, "HTTP/1.1 200 OK\r\n", 17) == 0);
    ck_assert_ptr_nonnull(strstr(w.answer, "Content-Length: 5\r\n"));
    ck_assert_ptr_nonnull(strstr(w.answer, "\r\n\r\nfine\n"));
}
END_TEST

START_TEST(a_body_may_come_in_chunks)
{
    talk(&w, "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    ck_assert_str_eq(w.seen, "POST /x   abcde");
}
END_TEST

START_TEST(requests_that_come_together_are_answered_in_order)
{
    talk(&w, "GET /1 HTTP/1.1\r\n\r\nGET /stream HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\n\r\n");
    ck_assert_int_eq(w.n_requests, 3);
    ck_assert_int_eq(count(w.answer, "HTTP/1.1 200"), 3);
    ck_assert_str_eq(w.seen, "GET /3   ");
}
END_TEST

START_TEST(a_stream_is_chunked_and_ended)
{
    talk(&w, "GET /stream HTTP/1.1\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(w.answer, "Transfer-Encoding: chunked\r\n"));
    ck_assert_ptr_nonnull(strstr(w.answer, "\r\n\r\n3\r\none\r\n4\r\ntwo!\r\n0\r\n\r\n"));
}
END_TEST

START_TEST(an_old_client_gets_its_stream_until_the_end_of_the_connection)
{
    talk(&w, "GET /stream HTTP/1.0\r\n\r\n");
    ck_assert_ptr_null(strstr(w.answer, "chunked"));
    ck_assert_ptr_nonnull(strstr(w.answer, "\r\n\r\nonetwo!"));
}
END_TEST

START_TEST(too_much_is_refused_and_never_reaches_the_handler)
{
    static char request[8000];
    talk(&w, "POST /x HTTP/1.1\r\nContent-Length: 1001\r\n\r\n");
    ck_assert(strncmp(w.answer, "HTTP/1.1 413 ", 13) == 0);
    setup();
    memset(request, 'a', sizeof request - 1);
    memcpy(request, "GET /x HTTP/1.1\r\nX: ", 20);
    talk(&w, request);
    ck_assert(strncmp(w.answer, "HTTP/1.1 431 ", 13) == 0);
    setup();
    snprintf(request, sizeof request,
             "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n%01024d\r\n0\r\n\r\n", 7);
    talk(&w, request);
    ck_assert(strncmp(w.answer, "HTTP/1.1 413 ", 13) == 0);
    ck_assert_int_eq(w.n_requests, 0);
}
END_TEST

START_TEST(what_is_not_http_is_refused)
{
    talk(&w, "\x16\x03\x01 hello\r\n\r\n");
    ck_assert(strncmp(w.answer, "HTTP/1.1 400 ", 13) == 0);
    setup();
    talk(&w, "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc"); /* request smuggling */
    ck_assert(strncmp(w.answer, "HTTP/1.1 400 ", 13) == 0);
    ck_assert_int_eq(w.n_requests, 0);
}
END_TEST

START_TEST(a_client_that_goes_away_is_told_once)
{
    w.client_leaves = true;
    talk(&w, "GET /wait HTTP/1.1\r\n\r\n");
    ck_assert_int_eq(w.n_requests, 1);
    ck_assert_int_eq(w.n_gone, 1);
}
END_TEST

START_TEST(closing_the_server_tells_open_exchanges)
{
    talk(&w, "GET /wait HTTP/1.1\r\n\r\n"); /* the client goes when it is quiet; or the server closes before */
    ck_assert_int_eq(w.n_gone, 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http");
    TCase *c = tcase_create("server");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_test(c, a_request_is_read_with_all_its_parts);
    tcase_add_test(c, a_body_may_come_in_chunks);
    tcase_add_test(c, requests_that_come_together_are_answered_in_order);
    tcase_add_test(c, a_stream_is_chunked_and_ended);
    tcase_add_test(c, an_old_client_gets_its_stream_until_the_end_of_the_connection);
    tcase_add_test(c, too_much_is_refused_and_never_reaches_the_handler);
    tcase_add_test(c, what_is_not_http_is_refused);
    tcase_add_test(c, a_client_that_goes_away_is_told_once);
    tcase_add_test(c, closing_the_server_tells_open_exchanges);
    suite_add_tcase(s, c);
    return ck_run(s, NULL);
}
