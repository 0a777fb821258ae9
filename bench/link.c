/* The round trip of one message over ZeroMQ on loopback, plain and with CURVE: two threads with a loop and a net each.
 * Arguments: bytes of the part [16384], round trips [5000]. One JSON object per line. */
#include "transport/curve.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define S UINT64_C(1000000000)

typedef struct side {
    pl_loop *loop;
    pl_net *net;
    pl_key public_key, secret_key;
    pl_part *part;
    uint64_t *times, sent_at;
    int n, n_max;
} side;

static void fatal(const pl_error *err)
{
    fprintf(stderr, "bench-link: %s\n", err->text);
    exit(1);
}

static bool admit(void *user, const pl_key *peer)
{
    (void)user;
    (void)peer;
    return true;
}

static void on_down(void *user, pl_link *link, const pl_error *why)
{
    (void)link;
    (void)why;
    side *s = user;
    pl_loop_uv_stop(s->loop);
}

static void server_up(void *user, pl_link *link, bool accepted)
{
    (void)user;
    (void)link;
    (void)accepted;
}

static void server_message(void *user, pl_link *link, pl_msg *m)
{
    (void)user;
    if (pl_link_send(link, &m, NULL) != PL_OK) pl_msg_free(m);
}

static void ping(side *s, pl_link *link)
{
    pl_msg *m;
    pl_error err = {0};
    if (pl_msg_new(&m, &err) != PL_OK || !(m->header = pl_part_new(64)) ||
        pl_msg_add(m, pl_part_ref(s->part), &err) != PL_OK)
        fatal(&err);
    memset(m->header->data, 0, m->header->size);
    s->sent_at = pl_loop_now(s->loop);
    if (pl_link_send(link, &m, &err) != PL_OK) fatal(&err);
}

static void client_up(void *user, pl_link *link, bool accepted)
{
    (void)accepted;
    ping(user, link);
}

static void client_message(void *user, pl_link *link, pl_msg *m)
{
    side *s = user;
    s->times[s->n++] = pl_loop_now(s->loop) - s->sent_at;
    pl_msg_free(m);
    if (s->n < s->n_max)
        ping(s, link);
    else
        pl_loop_uv_stop(s->loop);
}

static void side_make(side *s, bool curve, const pl_net_events *events)
{
    pl_error err = {0};
    if (pl_key_pair_new(&s->public_key, &s->secret_key, &err) != PL_OK || pl_loop_uv_new(&s->loop, &err) != PL_OK)
        fatal(&err);
    pl_zmq_options o = {.secret_key = curve ? &s->secret_key : NULL, .allowed = admit};
    if (pl_net_zmq_new(&s->net, s->loop, &o, events, s, &err) != PL_OK) fatal(&err);
}

static void *server_main(void *user)
{
    side *s = user;
    pl_loop_uv_run(s->loop);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void race(bool curve, size_t bytes, int n)
{
    static const pl_net_events server_events = {server_up, server_message, on_down},
                               client_events = {client_up, client_message, on_down};
    pl_error err = {0};
    side server = {0}, client = {.n_max = n};
    client.times = calloc((size_t)n, sizeof *client.times);
    client.part = pl_part_new(bytes);
    if (!client.times || !client.part) exit(1);
    memset(client.part->data, 1, bytes);
    side_make(&server, curve, &server_events);
    side_make(&client, curve, &client_events);
    if (pl_net_listen(server.net, "tcp://127.0.0.1:*", &err) != PL_OK) fatal(&err);
    pthread_t thread;
    if (pthread_create(&thread, NULL, server_main, &server) != 0) exit(1);
    pl_link *link;
    if (pl_link_dial(client.net, pl_net_address(server.net), curve ? &server.public_key : NULL, 5 * S, NULL, &link,
                     &err) != PL_OK)
        fatal(&err);
    pl_loop_uv_run(client.loop);
    qsort(client.times, (size_t)client.n, sizeof *client.times, compare);
    if (client.n)
        printf("{\"test\":\"link round "
               "trip\",\"curve\":%s,\"part_bytes\":%zu,\"n\":%d,\"median_us\":%.1f,\"p10_us\":%.1f,\"p99_us\":%.1f}\n",
               curve ? "true" : "false", bytes, client.n, (double)client.times[client.n / 2] / 1e3,
               (double)client.times[client.n / 10] / 1e3, (double)client.times[client.n * 99 / 100] / 1e3);
    pl_net_free(client.net);
    pl_loop_uv_stop(server.loop);
    pthread_join(thread, NULL);
    pl_net_free(server.net);
    pl_loop_uv_free(client.loop);
    pl_loop_uv_free(server.loop);
    pl_part_unref(client.part);
    free(client.times);
}

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 16384;
    int n = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 5000;
    if (n < 1) return 64;
    for (int round = 0; round < 3; round++) {
        race(false, bytes, n);
        race(true, bytes, n);
    }
    return 0;
}
