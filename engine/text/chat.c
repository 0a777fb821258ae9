#include "engine/text/chat.h"

#include "engine/base/alloc.h"
#include "engine/text/jinja.h"

struct pl_chat {
    pl_jinja *template;
    char *bos, *eos;
    size_t bos_size, eos_size;
    pl_reply_style style;
    bool arguments_as_text;
};

/* Templates are not told what a call's arguments are, so they are tried: one that gets an object and fails, or that
 * writes it as Python would, wants text. */
static bool wants_text(const pl_chat *c)
{
    static const char conversation[] =
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":"
        "\"call00001\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"probe_key\":1}}}]}]";
    pl_json *messages = NULL;
    pl_buf out = {0};
    pl_error err;
    bool object = false;
    if (pl_json_parse(&messages, PL_STR(conversation), &err) == PL_OK &&
        pl_chat_render(c, messages, NULL, false, &out, &err) == PL_OK)
        object = !memmem(out.data ? out.data : (const uint8_t *)"", out.size, "'probe_key'", 11);
    bool as_text = false;
    if (!object && messages) {
        /* Text it is only where that works better: some templates refuse both, or know no calls. */
        pl_json *function = pl_json_get(pl_json_at(pl_json_get(pl_json_at(messages, 1), "tool_calls"), 0), "function");
        pl_buf_reset(&out);
        as_text = pl_json_set(function, "arguments", pl_json_string(PL_STR("{\"probe_key\": 1}"))) &&
                  pl_chat_render(c, messages, NULL, false, &out, &err) == PL_OK;
    }
    pl_json_free(messages);
    pl_buf_fini(&out);
    return as_text;
}

pl_status pl_chat_open(pl_chat **out, pl_str template_text, pl_str bos, pl_str eos, pl_error *err)
{
    *out = NULL;
    pl_chat *c = pl_calloc(1, sizeof *c);
    if (!c) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a chat template");
    pl_status s = pl_jinja_open(&c->template, template_text, err);
    if (s != PL_OK) goto fail;
    c->bos = pl_strndup(bos.data, bos.size);
    c->eos = pl_strndup(eos.data, eos.size);
    c->bos_size = bos.size;
    c->eos_size = eos.size;
    if (!c->bos || !c->eos) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a chat template");
        goto fail;
    }
    c->style = pl_reply_style_of(template_text);
    c->arguments_as_text = wants_text(c);
    *out = c;
    return PL_OK;
fail:
    pl_chat_close(c);
    return s;
}

static pl_str token_text(const pl_vocab *v, int32_t token)
{
    return token >= 0 ? pl_vocab_text(v, token) : (pl_str){"", 0};
}

pl_status pl_chat_open_gguf(pl_chat **out, const pl_gguf *g, const pl_vocab *v, pl_error *err)
{
    pl_str text;
    bool found;
    *out = NULL;
    PL_TRY(pl_gguf_get_str(g, "tokenizer.chat_template", &text, &found, err));
    if (!found) return pl_fail(err, PL_ERR_NOT_FOUND, "the file has no chat template (tokenizer.chat_template)");
    pl_status s = pl_chat_open(out, text, token_text(v, pl_vocab_bos(v)), token_text(v, pl_vocab_eos(v)), err);
    return s == PL_OK ? s : pl_note(err, s, "tokenizer.chat_template");
}

void pl_chat_close(pl_chat *c)
{
    if (!c) return;
    pl_jinja_close(c->template);
    pl_free(c->bos);
    pl_free(c->eos);
    pl_free(c);
}

pl_status pl_chat_render(const pl_chat *c, const pl_json *messages, const pl_json *extra, bool add_generation_prompt,
                         pl_buf *out, pl_error *err)
{
    if (pl_json_type(messages) != PL_JSON_ARRAY) return pl_fail(err, PL_ERR_INVALID, "messages is not an array");
    if (extra && pl_json_type(extra) != PL_JSON_OBJECT)
        return pl_fail(err, PL_ERR_INVALID, "the template's variables are not an object");
    pl_json *vars = pl_json_object();
    if (!vars) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to render a chat");
    /* Values are shared by reference, which the caller's trees allow: nothing here changes them. */
    bool ok = true;
    void *iter = NULL;
    pl_str key;
    pl_json *value;
    while (extra && ok && pl_json_next(extra, &iter, &key, &value)) {
        char *name = pl_strndup(key.data, key.size);
        ok = name && pl_json_set(vars, name, pl_json_ref(value));
        pl_free(name);
    }
    ok = ok && pl_json_set(vars, "messages", pl_json_ref((pl_json *)(uintptr_t)messages));
    ok = ok && pl_json_set(vars, "add_generation_prompt", pl_json_bool(add_generation_prompt));
    ok = ok && pl_json_set(vars, "bos_token", pl_json_string((pl_str){c->bos, c->bos_size}));
    ok = ok && pl_json_set(vars, "eos_token", pl_json_string((pl_str){c->eos, c->eos_size}));
    pl_status s = ok ? pl_jinja_render(c->template, vars, NULL, out, err)
                     : pl_fail(err, PL_ERR_NO_MEMORY, "no memory to render a chat");
    pl_json_free(vars);
    return s == PL_OK ? s : pl_note(err, s, "the chat template");
}

pl_reply_style pl_chat_reply_style(const pl_chat *c)
{
    return c->style;
}

bool pl_chat_arguments_as_text(const pl_chat *c)
{
    return c->arguments_as_text;
}
