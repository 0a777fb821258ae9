/* Takes apart what a model writes: the answer, its reasoning and its tool calls, as they arrive.
 *
 * Each family of models marks these in its own way, and its chat template shows which: Hermes and Qwen, Qwen Coder,
 * GLM, MiniMax, Llama 3, Mistral, DeepSeek, Kimi, Granite, Apertus, Gemma, gpt-oss (the harmony format), and plain JSON
 * for models without a way of their own. What looks like a call and cannot be read stays text.
 *
 * Threads: a style never changes; a pl_reply belongs to one thread at a time. */
#pragma once

#include "engine/base/json.h"

/* What a model's template says of its replies: a small value, to be copied. */
typedef struct pl_reply_style {
    uint32_t blocks, thoughts; /* rows of the tables in tool_calls.c that are in use */
    bool harmony;
    bool bare_json;   /* a call may stand as JSON without any mark */
    bool takes_tools; /* the template shows tools to the model */
} pl_reply_style;

pl_reply_style pl_reply_style_of(pl_str template_text);
/* Whether a control token with this text marks something, and so has to be in the text that pl_reply_add is given. */
bool pl_reply_marks(const pl_reply_style *style, pl_str token);

typedef enum { PL_REPLY_CONTENT, PL_REPLY_REASONING, PL_REPLY_CALL } pl_reply_kind;
typedef struct pl_reply_part {
    pl_reply_kind kind;
    pl_str text; /* of a call: its arguments, one JSON object */
    pl_str name; /* of a call */
} pl_reply_part;
/* One part, whose texts live until it returns. Parts of the same kind follow each other to one text; a call is whole.
 */
typedef void (*pl_reply_fn)(void *user, const pl_reply_part *part);

typedef struct pl_reply pl_reply;

/* prompt: what the model was given, whose end may open its reasoning. tools: the request's array, borrowed; NULL: calls
 * are not looked for. */
PL_MUST_CHECK pl_status pl_reply_open(pl_reply **out, const pl_reply_style *style, pl_str prompt, const pl_json *tools,
                                      pl_reply_fn part, void *user, pl_error *err);
void pl_reply_close(pl_reply *r);

/* More text. Gives what is settled; holds back what may be the beginning of a mark, and white space that may stand in
 * front of one. False when there is no memory. */
bool pl_reply_add(pl_reply *r, pl_str text);
/* The reply is over: gives the rest. */
bool pl_reply_end(pl_reply *r);
