#include <string.h>

#include "cli/commands.h"
#include "cli/groups.h"

static int run(const cli_options *o, int argc, char **argv)
{
    (void)o;
    if (argc == 0) {
        cli_print_man(NULL, stdout);
        return 0;
    }
    for (int i = 0; commands[i]; i++)
        if (strcmp(commands[i]->name, argv[0]) == 0) {
            cli_print_man(commands[i], stdout);
            return 0;
        }
    pl_error err;
    (void)pl_fail(&err, PL_ERR_NOT_FOUND, "man: there is no command %s", argv[0]);
    return cli_fail(&err);
}

const command cmd_man = {
    "man",
    "[COMMAND]",
    "print a manual page",
    "The page of a command, or of paceline itself, in man(7) form; the build installs all of them.",
    "$ paceline man serve | man -l -",
    {&group_general, NULL},
    run,
};
