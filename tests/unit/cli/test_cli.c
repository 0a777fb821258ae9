/* The command line's tables: what is parsed, what is refused, and what the names of hosts and keys mean. */
#include <stdlib.h>

#include "cli/affinity.h"
#include "cli/cluster.h"
#include "cli/commands.h"
#include "engine/base/file.h"
#include "tests/fixtures/fixtures.h"

const command *const commands[] = {&cmd_run, &cmd_serve, &cmd_node, NULL};

/* Parses words for the command; argv is the caller's. */
static pl_status parse(const command *c, cli_options *o, int *rest, pl_error *err, int n, const char *const *words)
{
    static char *argv[32];
    argv[0] = (char *)(uintptr_t)c->name;
    for (int i = 0; i < n; i++) argv[i + 1] = (char *)(uintptr_t)words[i];
    argv[n + 1] = NULL;
    cli_defaults(o);
    return cli_parse(c, o, n + 1, argv, rest, err);
}
#define PARSE(c, ...)                                                                                                  \
    parse(c, &o, &rest, &err, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),                           \
          (const char *[]){__VA_ARGS__})

START_TEST(names_of_llama_cpp_mean_what_they_mean_there)
{
    cli_options o;
    pl_error err;
    int rest;
    ck_ok(PARSE(&cmd_run, "-m", "x.gguf", "-p", "hi", "-n", "7", "-c", "99", "-ub", "13", "-np", "3", "-t", "2",
                "--temp", "0.5", "--top-k", "5", "-s", "42", "-no-cnv"),
          err);
    ck_assert_str_eq(o.model, "x.gguf");
    ck_assert_str_eq(o.prompt, "hi");
    ck_assert_int_eq(o.n_predict, 7);
    ck_assert_int_eq(o.n_ctx, 99);
    ck_assert_int_eq(o.n_rows, 13);
    ck_assert_int_eq(o.n_seqs, 3);
    ck_assert_int_eq(o.n_threads, 2);
    ck_assert_float_eq(o.temperature, 0.5f);
    ck_assert_int_eq(o.top_k, 5);
    ck_assert(o.has_seed && o.seed == 42);
    ck_assert(o.no_conversation);
    ck_ok(PARSE(&cmd_run, "--model=y.gguf", "--seed", "-1", "--n-predict=3"), err);
    ck_assert_str_eq(o.model, "y.gguf");
    ck_assert(!o.has_seed);
    ck_assert_int_eq(o.n_predict, 3);
}
END_TEST

START_TEST(lists_sizes_and_words_behind_the_options)
{
    cli_options o;
    pl_error err;
    int rest;
    ck_ok(PARSE(&cmd_serve, "--node", "a:1", "--mem", "200MiB", "--node", "b:2", "left", "over"), err);
    ck_assert_int_eq(o.nodes.n, 2);
    ck_assert_str_eq(o.nodes.items[1], "b:2");
    ck_assert_uint_eq(o.mem, 200u << 20);
    ck_assert_int_eq(rest, 7); /* argv is permuted: "left" and "over" come last */
}
END_TEST

START_TEST(processors_are_named_by_a_mask_or_a_range)
{
    cpu_set_t set;
    pl_error err;
    ck_ok(affinity_parse_mask(&set, "0x1F0", &err), err);
    ck_assert_int_eq(CPU_COUNT(&set), 5);
    ck_assert(CPU_ISSET(4, &set) && CPU_ISSET(8, &set) && !CPU_ISSET(3, &set) && !CPU_ISSET(9, &set));
    ck_ok(affinity_parse_mask(&set, "a", &err), err);
    ck_assert(CPU_ISSET(1, &set) && CPU_ISSET(3, &set) && CPU_COUNT(&set) == 2);
    ck_ok(affinity_parse_range(&set, "2-4", &err), err);
    ck_assert(CPU_ISSET(2, &set) && CPU_ISSET(4, &set) && CPU_COUNT(&set) == 3);
    static const char *const masks[] = {"", "0x", "0", "12g", "-1", "0x0"}, *const ranges[] = {"", "3", "3-", "-3", "4-2", "a-b", "0-99999", "1-2x"};
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) ck_status(affinity_parse_mask(&set, masks[i], &err), PL_ERR_INVALID, err);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) ck_status(affinity_parse_range(&set, ranges[i], &err), PL_ERR_INVALID, err);
    /* A processor that is not there is a mistake, one that is there is taken. */
    cpu_set_t before;
    ck_assert_int_eq(sched_getaffinity(0, sizeof before, &before), 0);
    char range[32];
    int last = 0;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &before)) last = i;
    cli_options o = {.cpu_range = range};
    snprintf(range, sizeof range, "%d-%d", last, last + 1);
    ck_status(affinity_apply(&o, &err), PL_ERR_INVALID, err);
    ck_says(err, "of the 2 processors");
    snprintf(range, sizeof range, "%d-%d", last, last);
    ck_ok(affinity_apply(&o, &err), err);
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    ck_assert(CPU_COUNT(&set) == 1 && CPU_ISSET(last, &set));
    sched_setaffinity(0, sizeof before, &before);
    ck_ok(affinity_apply(&(cli_options){0}, &err), err);
}
END_TEST

START_TEST(a_value_that_may_be_left_out_stands_behind_an_equals_sign)
{
    cli_options o;
    pl_error err;
    int rest;
    ck_ok(PARSE(&cmd_run, "--profile", "--dump-graph=dot", "-n", "3"), err);
    ck_assert_str_eq(o.profile, "");
    ck_assert_str_eq(o.dump_graph, "dot");
    ck_assert_int_eq(o.n_predict, 3);
    ck_ok(PARSE(&cmd_node, "--profile=t.json", "--no-fuse"), err);
    ck_assert_str_eq(o.profile, "t.json");
    ck_assert(o.no_fuse && !o.dump_graph);
    ck_status(PARSE(&cmd_node, "--dump-graph"), PL_ERR_INVALID, err); /* a node has no model of its own */
}
END_TEST

START_TEST(what_cannot_be_is_refused_with_its_name)
{
    cli_options o;
    pl_error err;
    int rest;
    ck_status(PARSE(&cmd_run, "--temprature", "1"), PL_ERR_INVALID, err);
    ck_says(err, "did you mean --temperature?");
    ck_status(PARSE(&cmd_run, "-n", "7x"), PL_ERR_INVALID, err);
    ck_says(err, "7x");
    ck_status(PARSE(&cmd_run, "-n", "99999999999"), PL_ERR_INVALID, err);
    ck_status(PARSE(&cmd_run, "--top-p", "nan"), PL_ERR_INVALID, err);
    ck_status(PARSE(&cmd_run, "-s", "-2"), PL_ERR_INVALID, err);
    ck_status(PARSE(&cmd_node, "--mem", "-1"), PL_ERR_INVALID, err);
    ck_says(err, "--mem");
    ck_status(PARSE(&cmd_run, "-m"), PL_ERR_INVALID, err);
    ck_says(err, "needs a value");
    ck_status(PARSE(&cmd_node, "--port", "1"), PL_ERR_INVALID, err); /* an option of another command */
}
END_TEST

START_TEST(the_nearest_word_is_offered_only_when_it_is_near)
{
    static const char *const words[] = {"serve", "status", "node"};
    ck_assert_str_eq(cli_nearest("serv", words, 3), "serve");
    ck_assert_str_eq(cli_nearest("nod", words, 3), "node");
    ck_assert_ptr_null(cli_nearest("completely-else", words, 3));
}
END_TEST

static const char *const hex = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

START_TEST(a_host_a_port_and_a_key_are_told_apart)
{
    keyring k = {0};
    char address[128], text[256];
    pl_key key;
    pl_error err;
    snprintf(text, sizeof text, "10.0.0.1:99#%s", hex);
    ck_ok(keyring_resolve(&k, text, 7077, address, &key, &err), err);
    ck_assert_str_eq(address, "tcp://10.0.0.1:99");
    ck_assert_uint_eq(key.b[1], 0x11);
    snprintf(text, sizeof text, "tcp://desk#%s", hex);
    ck_ok(keyring_resolve(&k, text, 7077, address, &key, &err), err);
    ck_assert_str_eq(address, "tcp://desk:7077");
    snprintf(text, sizeof text, "[::1]:5#%s", hex);
    ck_ok(keyring_resolve(&k, text, 7077, address, &key, &err), err);
    ck_assert_str_eq(address, "tcp://[::1]:5");
    snprintf(text, sizeof text, "fe80::1#%s", hex);
    ck_ok(keyring_resolve(&k, text, 7077, address, &key, &err), err);
    ck_assert_str_eq(address, "tcp://[fe80::1]:7077");
    ck_status(keyring_resolve(&k, "desk:0#", 7077, address, &key, &err), PL_ERR_INVALID, err);
    ck_status(keyring_resolve(&k, "desk:70000", 7077, address, &key, &err), PL_ERR_INVALID, err);
    ck_status(keyring_resolve(&k, "desk#12", 7077, address, &key, &err), PL_ERR_INVALID, err);
    ck_status(keyring_resolve(&k, "", 7077, address, &key, &err), PL_ERR_INVALID, err);
}
END_TEST

START_TEST(without_a_key_the_peers_file_tells_it_by_the_hosts_name)
{
    keyring k = {0};
    char address[128];
    pl_key key, a, b;
    pl_error err;
    memset(a.b, 1, sizeof a.b);
    memset(b.b, 2, sizeof b.b);
    k.public_key = a;
    ck_ok(keyring_resolve(&k, "desk2", 1, address, &key, &err),
          err); /* nobody else is known: it is this machine's own */
    ck_assert(pl_key_eq(&key, &a));
    ck_ok(pl_key_list_add(&k.peers, &a, "desk1", &err), err);
    ck_ok(keyring_resolve(&k, "anything", 1, address, &key, &err), err); /* one peer: that one */
    ck_ok(pl_key_list_add(&k.peers, &b, "desk2", &err), err);
    ck_ok(keyring_resolve(&k, "desk2", 1, address, &key, &err), err);
    ck_assert(pl_key_eq(&key, &b));
    ck_status(keyring_resolve(&k, "desk3", 1, address, &key, &err), PL_ERR_AUTH, err);
    ck_says(err, "desk3");
    pl_key_list_fini(&k.peers);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cli");
    TCase *c = tcase_create("options");
    tcase_add_test(c, names_of_llama_cpp_mean_what_they_mean_there);
    tcase_add_test(c, lists_sizes_and_words_behind_the_options);
    tcase_add_test(c, processors_are_named_by_a_mask_or_a_range);
    tcase_add_test(c, a_value_that_may_be_left_out_stands_behind_an_equals_sign);
    tcase_add_test(c, what_cannot_be_is_refused_with_its_name);
    tcase_add_test(c, the_nearest_word_is_offered_only_when_it_is_near);
    suite_add_tcase(s, c);
    c = tcase_create("keys");
    tcase_add_test(c, a_host_a_port_and_a_key_are_told_apart);
    tcase_add_test(c, without_a_key_the_peers_file_tells_it_by_the_hosts_name);
    suite_add_tcase(s, c);
    return ck_run(s, NULL);
}
