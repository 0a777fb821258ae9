#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/groups.h"
#include "engine/gguf/dump.h"
#include "engine/stage/stage.h"

static const option_row rows[] = {
    {"--json", NULL, OPT_FLAG, offsetof(cli_options, json), "Print one JSON object."},
};
static const option_group group = {"Output", rows, 1};

static pl_status dump(const char *path, bool json, pl_error *err)
{
    pl_gguf *g;
    PL_TRY(pl_gguf_open(&g, path, err));
    pl_buf text = {0};
    pl_status s = pl_gguf_dump(g, (pl_gguf_dump_options){.json = json}, &text, err);
    if (s == PL_OK) cli_print(stdout, pl_buf_str(&text));
    pl_buf_fini(&text);
    pl_gguf_close(g);
    return s;
}

/* The model architectures of this build, one a line. */
static pl_status list_archs(void)
{
    size_t n;
    const char *const *names = pl_stage_archs(&n);
    for (size_t i = 0; i < n; i++) printf("%s\n", names[i]);
    return PL_OK;
}

static int run(const cli_options *o, int argc, char **argv)
{
    pl_error err;
    pl_status s;
    if (argc == 2 && strcmp(argv[0], "dump") == 0)
        s = dump(argv[1], o->json, &err);
    else if (argc == 1 && strcmp(argv[0], "archs") == 0)
        s = list_archs();
    else
        s = pl_fail(&err, PL_ERR_INVALID,
                    "gguf: the way to call it is 'paceline gguf dump FILE' or 'paceline gguf archs'");
    return s == PL_OK ? 0 : cli_fail(&err);
}

const command cmd_gguf = {
    "gguf",
    "dump FILE | archs",
    "look into a GGUF file",
    "Checks the whole file (all parts of a split) and prints its metadata and its tensors with type, shape, size and "
    "offset. "
    "A file that breaks the format gives one error with file, offset and reason. With archs, prints the model "
    "architectures that this build runs, as general.architecture names them.",
    "$ paceline gguf dump model.gguf\n$ paceline gguf dump --json model.gguf\n$ paceline gguf archs",
    {&group, &group_general, NULL},
    run,
};
