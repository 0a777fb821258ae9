#include "cli/commands.h"
#include "cli/groups.h"

static int run(const cli_options *o, int argc, char **argv)
{
    (void)o;
    pl_error err;
    pl_status s;
    if (argc == 1)
        s = cli_print_completion(argv[0], stdout, &err);
    else
        s = pl_fail(&err, PL_ERR_INVALID, "completion: for which shell? bash, zsh or fish");
    return s == PL_OK ? 0 : cli_fail(&err);
}

const command cmd_completion = {
    "completion",
    "bash|zsh|fish",
    "print a completion script for a shell",
    "The script completes commands and options; it is made from the same tables as --help.",
    "# bash, for this user\n$ paceline completion bash > ~/.local/share/bash-completion/completions/paceline\n# zsh\n$ "
    "paceline completion zsh > ~/.zfunc/_paceline\n"
    "# fish\n$ paceline completion fish > ~/.config/fish/completions/paceline.fish",
    {&group_general, NULL},
    run,
};
