#include <stdio.h>

#include "cli/commands.h"
#include "cli/groups.h"
#include "engine/base/file.h"
#include "engine/base/sys.h"
#include "transport/curve.h"

static const option_row rows[] = {
    {"-o, --out", "FILE", OPT_STR, offsetof(cli_options, out),
     "Where the secret key goes; the public one gets .pub behind it (default: ~/.config/paceline/key)."},
    {"-f, --force", NULL, OPT_FLAG, offsetof(cli_options, force),
     "Replace a key that is there. Peers that know the old one will refuse this machine."},
};
static const option_group group = {"Key pair", rows, sizeof rows / sizeof *rows};

static pl_status keygen(const cli_options *o, pl_error *err)
{
    char dir[4096], path[4200];
    if (o->out) {
        snprintf(path, sizeof path, "%s", o->out);
    } else {
        PL_TRY(pl_config_dir(dir, sizeof dir, err));
        PL_TRY(pl_mkdirs(dir, err));
        snprintf(path, sizeof path, "%s/key", dir);
    }
    pl_key public_key, secret_key;
    PL_TRY(pl_key_pair_new(&public_key, &secret_key, err));
    PL_TRY(pl_key_save(&public_key, &secret_key, path, o->force, err));
    char text[2 * PL_KEY_SIZE + 1];
    pl_key_text(&public_key, text);
    fprintf(stderr, "Secret key: %s\nPublic key: %s.pub, and here, for the peers file of other machines:\n", path,
            path);
    puts(text);
    return PL_OK;
}

static int run(const cli_options *o, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    pl_error err;
    return keygen(o, &err) == PL_OK ? 0 : cli_fail(&err);
}

const command cmd_keygen = {
    "keygen",
    "",
    "make this machine's key pair for links",
    "Links between machines are authenticated and encrypted with CURVE. Every machine has a key pair of its own; whom "
    "it lets in stands in its peers file "
    "(~/.config/paceline/peers), one public key per line with a name behind it. The public key is printed.",
    "# once per machine\n$ paceline keygen\n# let that machine in, here\n$ echo 'PUBLIC_KEY desk2' >> "
    "~/.config/paceline/peers",
    {&group, &group_general, NULL},
    run,
};
