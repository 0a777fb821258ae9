#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/groups.h"
#include "engine/base/buf.h"
#include "engine/text/vocab.h"

static const option_row rows[] = {
    {"-m, --model", "FILE", OPT_STR, offsetof(cli_options, model),
     "The model whose vocabulary is used; a file with the vocabulary alone will do."},
    {"-p, --prompt", "TEXT", OPT_STR, offsetof(cli_options, prompt), "The text (default: standard input)."},
    {"--ids", NULL, OPT_FLAG, offsetof(cli_options, ids), "Print the ids alone, separated by spaces."},
    {"--no-bos", NULL, OPT_FLAG, offsetof(cli_options, no_bos),
     "Do not add the model's begin and end tokens; with --detokenize, write them like any other."},
    {"--no-special", NULL, OPT_FLAG, offsetof(cli_options, no_special),
     "Control tokens in the text are plain text; with --detokenize, they write nothing."},
    {"--detokenize", NULL, OPT_FLAG, offsetof(cli_options, detokenize),
     "The other way: ids from standard input, separated by spaces or commas, to the bytes that they stand for."},
};
static const option_group group = {"Text", rows, sizeof rows / sizeof *rows};

static pl_status read_text(const cli_options *o, pl_buf *out, pl_error *err)
{
    uint8_t block[1 << 16];
    size_t n;
    if (o->prompt) pl_buf_add_str(out, pl_str_from(o->prompt));
    while (!o->prompt && (n = fread(block, 1, sizeof block, stdin)) > 0) pl_buf_add(out, block, n);
    if (!o->prompt && ferror(stdin)) return pl_fail(err, PL_ERR_IO, "standard input cannot be read");
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

static pl_status tokenize(const cli_options *o, const pl_vocab *v, pl_str text, pl_error *err)
{
    pl_buf ids = {0}, piece = {0};
    pl_status s = pl_tokenize(v, text, !o->no_bos, !o->no_special, &ids, err);
    const int32_t *id = (const int32_t *)(const void *)ids.data;
    size_t n = s == PL_OK ? ids.size / sizeof *id : 0, offset = 0;
    for (size_t i = 0; i < n; i++) {
        if (o->ids) {
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
    if (s == PL_OK && o->ids) putchar('\n');
    pl_buf_fini(&piece);
    pl_buf_fini(&ids);
    return s;
}

static pl_status read_ids(const pl_vocab *v, const char *text, pl_buf *ids, pl_error *err)
{
    static const char gaps[] = " \t\r\n,[]";
    for (const char *p = text + strspn(text, gaps); *p; p += strspn(p, gaps)) {
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || errno || (*end && !strchr(gaps, *end)))
            return pl_fail(err, PL_ERR_INVALID, "\"%.*s\" is not the id of a token", (int)strcspn(p, gaps), p);
        if (id < 0 || id >= pl_vocab_size(v))
            return pl_fail(err, PL_ERR_INVALID, "there is no token %ld: the model has %" PRId32, id, pl_vocab_size(v));
        int32_t token = (int32_t)id;
        if (!pl_buf_add(ids, &token, sizeof token)) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the ids");
        p = end;
    }
    return PL_OK;
}

static pl_status detokenize(const cli_options *o, const pl_vocab *v, pl_buf *text, pl_error *err)
{
    pl_buf ids = {0}, bytes = {0};
    const char *words = pl_buf_cstr(text);
    pl_status s = words ? read_ids(v, words, &ids, err) : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the ids");
    if (s == PL_OK && !pl_detokenize_text(v, (const int32_t *)(const void *)ids.data, ids.size / sizeof(int32_t),
                                          !o->no_bos, !o->no_special, &bytes))
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the text");
    if (s == PL_OK) cli_print(stdout, pl_buf_str(&bytes));
    pl_buf_fini(&bytes);
    pl_buf_fini(&ids);
    return s;
}

static int run(const cli_options *o, int argc, char **argv)
{
    (void)argv;
    pl_error err;
    pl_gguf *g = NULL;
    pl_vocab *v = NULL;
    pl_buf text = {0};
    pl_status s;
    if (argc > 0 || !o->model)
        s = pl_fail(&err, PL_ERR_INVALID, "tokenize: give the model with -m and the text with -p or on standard input");
    else if ((s = pl_gguf_open(&g, o->model, &err)) == PL_OK && (s = pl_vocab_open(&v, g, &err)) == PL_OK &&
             (s = read_text(o, &text, &err)) == PL_OK)
        s = o->detokenize ? detokenize(o, v, &text, &err) : tokenize(o, v, pl_buf_str(&text), &err);
    if (s != PL_OK && g && !v) s = pl_note(&err, s, "%s", o->model);
    pl_buf_fini(&text);
    pl_vocab_close(v);
    pl_gguf_close(g);
    return s == PL_OK ? 0 : cli_fail(&err);
}

const command cmd_tokenize = {
    "tokenize",
    "",
    "show how a model splits a text into tokens",
    "One token a line: its id, the offset of its bytes in the text that the tokens give back, and its piece. "
    "With --detokenize it goes back, byte for byte where the vocabulary keeps every byte (WordPiece and Unigram do "
    "not).",
    "$ echo 'Hello world' | paceline tokenize -m model.gguf\n"
    "$ paceline tokenize -m model.gguf -p 'Hello world' --ids | paceline tokenize -m model.gguf --detokenize",
    {&group, &group_general, NULL},
    run,
};
