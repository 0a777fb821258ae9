#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/groups.h"
#include "engine/base/file.h"
#include "engine/text/chat.h"

#define FILE_BYTES_MAX (64u << 20)

static const option_row rows[] = {
    {"-m, --model", "FILE", OPT_STR, offsetof(cli_options, model),
     "The model whose template is used, and whose begin and end tokens the template sees."},
    {"--template", "FILE", OPT_STR, offsetof(cli_options, chat_template_file),
     "A template in Jinja instead of the model's own."},
    {"--messages", "FILE", OPT_STR, offsetof(cli_options, messages),
     "The conversation: a JSON array of messages with role and content, or an object that has it as \"messages\" "
     "(default: "
     "standard input)."},
    {"--tools", "FILE", OPT_STR, offsetof(cli_options, tools),
     "A JSON array of tools, which the template gets as tools."},
    {"--no-generation-prompt", NULL, OPT_FLAG, offsetof(cli_options, no_generation_prompt),
     "Do not open the answer at the end."},
    {"--set", "NAME=JSON", OPT_LIST, offsetof(cli_options, sets),
     "One more variable of the template, as enable_thinking=false or bos_token='\"<s>\"'. May be given several times."},
};
static const option_group group = {"Template", rows, sizeof rows / sizeof *rows};

static pl_status read_json(const char *path, pl_json **out, pl_error *err)
{
    pl_buf text = {0};
    pl_status s = PL_OK;
    if (path) {
        s = pl_file_read(&text, path, FILE_BYTES_MAX, err);
    } else {
        uint8_t block[1 << 16];
        size_t n;
        while (text.size <= FILE_BYTES_MAX && (n = fread(block, 1, sizeof block, stdin)) > 0)
            pl_buf_add(&text, block, n);
        if (ferror(stdin) || text.failed || text.size > FILE_BYTES_MAX)
            s = pl_fail(err, PL_ERR_IO, "standard input cannot be read");
    }
    if (s == PL_OK && (s = pl_json_parse(out, pl_buf_str(&text), err)) != PL_OK)
        s = pl_note(err, s, "%s", path ? path : "standard input");
    pl_buf_fini(&text);
    return s;
}

/* NAME=JSON */
static pl_status set_variable(pl_json *vars, const char *word, pl_error *err)
{
    char name[128];
    const char *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : 0;
    if (n == 0 || n >= sizeof name) return pl_fail(err, PL_ERR_INVALID, "--set %s: not NAME=JSON", word);
    memcpy(name, word, n);
    name[n] = 0;
    pl_json *v;
    pl_status s = pl_json_parse(&v, pl_str_from(equals + 1), err);
    if (s != PL_OK) return pl_note(err, s, "--set %s", word);
    return pl_json_set(vars, name, v) ? PL_OK : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %s", word);
}

/* The text of a token: what --set says, or the model's. */
static pl_str token_text(const pl_json *vars, const char *name, const pl_vocab *v, int32_t token)
{
    const pl_json *set = pl_json_get(vars, name);
    if (pl_json_type(set) == PL_JSON_STRING) return pl_json_str(set);
    return token < 0 ? PL_STR("") : pl_vocab_text(v, token);
}

static pl_status open_chat(const cli_options *o, const pl_json *vars, pl_chat **out, pl_error *err)
{
    pl_gguf *g = NULL;
    pl_vocab *v = NULL;
    pl_buf text = {0};
    pl_status s = PL_OK;
    if (o->model) s = pl_gguf_open(&g, o->model, err);
    if (s == PL_OK && g && (s = pl_vocab_open(&v, g, err)) != PL_OK) s = pl_note(err, s, "%s", o->model);
    pl_str source = {"", 0};
    bool found = true;
    if (s == PL_OK && o->chat_template_file) {
        s = pl_file_read(&text, o->chat_template_file, FILE_BYTES_MAX, err);
        source = pl_buf_str(&text);
    } else if (s == PL_OK) {
        s = pl_gguf_get_str(g, "tokenizer.chat_template", &source, &found, err);
        if (s == PL_OK && !found)
            s = pl_fail(err, PL_ERR_NOT_FOUND, "%s has no chat template (tokenizer.chat_template)", o->model);
    }
    if (s == PL_OK) {
        s = pl_chat_open(out, source, token_text(vars, "bos_token", v, v ? pl_vocab_bos(v) : -1),
                         token_text(vars, "eos_token", v, v ? pl_vocab_eos(v) : -1), err);
        if (s != PL_OK) s = pl_note(err, s, "%s", o->chat_template_file ? o->chat_template_file : o->model);
    }
    pl_buf_fini(&text);
    pl_vocab_close(v);
    pl_gguf_close(g);
    return s;
}

static pl_status render(const cli_options *o, pl_error *err)
{
    pl_chat *chat = NULL;
    pl_json *given = NULL, *tools = NULL, *vars = pl_json_object();
    pl_buf out = {0};
    pl_status s = vars ? read_json(o->messages, &given, err) : pl_fail(err, PL_ERR_NO_MEMORY, "no memory to render");
    const pl_json *messages = pl_json_type(given) == PL_JSON_OBJECT ? pl_json_get(given, "messages") : given;
    /* The other members of a request are variables too. */
    void *at = NULL;
    pl_str name;
    pl_json *v;
    while (s == PL_OK && pl_json_type(given) == PL_JSON_OBJECT && pl_json_next(given, &at, &name, &v)) {
        if (!pl_str_is(name, "messages") && !pl_json_set(vars, name.data, pl_json_ref(v)))
            s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory to render");
    }
    if (s == PL_OK && o->tools && (s = read_json(o->tools, &tools, err)) == PL_OK &&
        !pl_json_set(vars, "tools", pl_json_ref(tools)))
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory to render");
    for (int i = 0; s == PL_OK && i < o->sets.n; i++) s = set_variable(vars, o->sets.items[i], err);
    if (s == PL_OK) s = open_chat(o, vars, &chat, err);
    if (s == PL_OK) s = pl_chat_render(chat, messages, vars, !o->no_generation_prompt, &out, err);
    if (s == PL_OK) cli_print(stdout, pl_buf_str(&out));
    pl_buf_fini(&out);
    pl_json_free(tools);
    pl_json_free(given);
    pl_json_free(vars);
    pl_chat_close(chat);
    return s;
}

static int run(const cli_options *o, int argc, char **argv)
{
    (void)argv;
    pl_error err;
    pl_status s = argc > 0 || (!o->model && !o->chat_template_file)
                      ? pl_fail(&err, PL_ERR_INVALID, "template: give a model with -m or a template with --template")
                      : render(o, &err);
    return s == PL_OK ? 0 : cli_fail(&err);
}

const command cmd_template = {
    "template",
    "",
    "show the prompt that a chat template makes of a conversation",
    "Renders the template as the transformers library does and prints the bytes, without anything behind them. The "
    "variables tools, documents, enable_thinking and the like come from --tools and --set, or stand beside the "
    "messages "
    "in their file.",
    "$ echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | paceline template -m model.gguf\n"
    "$ paceline template --template chat.jinja --messages conversation.json --set enable_thinking=false",
    {&group, &group_general, NULL},
    run,
};
