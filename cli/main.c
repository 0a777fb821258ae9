#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cluster.h"
#include "cli/commands.h"

const command *const commands[] = {&cmd_run,      &cmd_serve, &cmd_node,  &cmd_status,     &cmd_keygen, &cmd_tokenize,
                                   &cmd_template, &cmd_gguf,  &cmd_cache, &cmd_completion, &cmd_man,    NULL};

static int unknown_command(const char *word)
{
    const char *names[32];
    size_t n = 0;
    for (int i = 0; commands[i]; i++) names[n++] = commands[i]->name;
    const char *nearest = cli_nearest(word, names, n);
    fprintf(stderr, "paceline: there is no command %s", word);
    if (nearest) fprintf(stderr, "; did you mean %s?", nearest);
    fputs("\nRun 'paceline --help' for the list.\n", stderr);
    return pl_status_exit_code(PL_ERR_INVALID);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    const char *word = argc > 1 ? argv[1] : "";
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0) {
        puts("paceline " PL_VERSION);
        return 0;
    }
    if (argc < 2 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 ||
        (strcmp(word, "help") == 0 && argc == 2)) {
        cli_print_commands(argc < 2 ? stderr : stdout);
        return argc < 2 ? pl_status_exit_code(PL_ERR_INVALID) : 0;
    }
    bool help = strcmp(word, "help") == 0;
    if (help) word = argv[2];
    for (int i = 0; commands[i]; i++) {
        const command *c = commands[i];
        if (strcmp(word, c->name) != 0) continue;
        static cli_options o; /* large: lists of pointers */
        cli_defaults(&o);
        pl_error err;
        int rest = 0;
        if (!help && cli_parse(c, &o, argc - 1, argv + 1, &rest, &err) != PL_OK) return cli_fail(&err);
        if (help || o.help) {
            cli_print_help(c, stdout);
            return 0;
        }
        if (o.version) {
            puts("paceline " PL_VERSION);
            return 0;
        }
        return c->run(&o, argc - 1 - rest, argv + 1 + rest);
    }
    return unknown_command(word);
}
