#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/groups.h"
#include "engine/base/buf.h"
#include "engine/text/vocab.h"

static const option_row rows[] = {
    {"-m, --model", "FILE", OPT_STR, offsetof(cli_options, model),
     "The model whose vocabulary is used; a file with the vocabulary alone will do."},
    {"-p, --prompt", "TEXT", OPT_STR, offsetof(cli_options, prompt), "The text (default: standard input)."},
    {"--ids", NULL, OPT_FLAG, offsetof(cli_options, json), "Print the ids alone, separated by spaces."},
    {"--no-bos", NULL, OPT_FLAG, offsetof(cli_options, no_conversation),
     "Do not add the model's begin and end tokens."},
    {"--no-special", NULL, OPT_FLAG, offsetof(cli_options, special), "Control tokens in the text are plain text."},
};
static const option_group group = {"Text", rows, sizeof rows / sizeof *rows};

static pl_status read_all(FILE *f, pl_buf *out, pl_error *err)
{
    uint8_t block[1 << 16];
    size_t n;
    while ((n = fread(block, 1, sizeof block, f)) > 0) pl_buf_add(out, block, n);
    if (ferror(f)) return pl_fail(err, PL_ERR_IO, "standard input cannot be read");
    return out->failed ? pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the text") : PL_OK;
}

/* Bytes that would break the table are escaped. */
static void print_piece(pl_str s)
{
    putchar('\'');
    for (size_t i = 0; i < s.size; i++) {
        unsigned char c = (unsigned char)s.data[i];
        if (c < 0x20 || c == 0x7f || c == '\'' || c == '\\')
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    putchar('\'');
}

static pl_status tokenize(const cli_options *o, const pl_vocab *v, pl_error *err)
{
    pl_buf text = {0}, ids = {0}, piece = {0};
    pl_status s = PL_OK;
    if (o->prompt)
        pl_buf_add_str(&text, pl_str_from(o->prompt));
    else
        s = read_all(stdin, &text, err);
    if (s == PL_OK) s = pl_tokenize(v, pl_buf_str(&text), !o->no_conversation, !o->special, &ids, err);
    if (s == PL_OK) {
        const int32_t *id = (const int32_t *)(const void *)ids.data;
        size_t n = ids.size / sizeof *id, offset = 0;
        for (size_t i = 0; i < n; i++) {
            if (o->json) {
                printf("%s%" PRId32, i ? " " : "", id[i]);
                continue;
            }
            pl_buf_reset(&piece);
            pl_detokenize(v, id[i], true, &piece);
            printf("%8" PRId32 "  %8zu  ", id[i], offset);
            print_piece(pl_buf_str(&piece));
            putchar('\n');
            offset += piece.size;
        }
        if (o->json) putchar('\n');
    }
    pl_buf_fini(&piece);
    pl_buf_fini(&ids);
    pl_buf_fini(&text);
    return s;
}

static int run(const cli_options *o, int argc, char **argv)
{
    (void)argv;
    pl_error err;
    pl_gguf *g = NULL;
    pl_vocab *v = NULL;
    pl_status s;
    if (argc > 0 || !o->model)
        s = pl_fail(&err, PL_ERR_INVALID, "tokenize: give the model with -m and the text with -p or on standard input");
    else if ((s = pl_gguf_open(&g, o->model, &err)) == PL_OK && (s = pl_vocab_open(&v, g, &err)) == PL_OK)
        s = tokenize(o, v, &err);
    if (s != PL_OK && g && !v) s = pl_note(&err, s, "%s", o->model);
    pl_vocab_close(v);
    pl_gguf_close(g);
    return s == PL_OK ? 0 : cli_fail(&err);
}

const command cmd_tokenize = {
    "tokenize",
    "",
    "show how a model splits a text into tokens",
    "One token a line: its id, the offset of its bytes in the text that the tokens give back, and its piece.",
    "$ echo 'Hello world' | paceline tokenize -m model.gguf\n$ paceline tokenize -m model.gguf -p 'Hello world' --ids",
    {&group, &group_general, NULL},
    run,
};
