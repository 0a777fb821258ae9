/* Chat templates: messages to the prompt that the model's makers meant, by a Jinja interpreter (jinja.h).
 *
 * Reference: the templates as `transformers` renders them (jinja2 with trim_blocks and lstrip_blocks).
 * Threads: a pl_chat never changes after opening. */
#pragma once

#include "engine/base/json.h"
#include "engine/text/tool_calls.h"
#include "engine/text/vocab.h"

typedef struct pl_chat pl_chat;

/* Compiles the template text. bos and eos: the texts of those tokens. PL_ERR_FORMAT names line and column. */
PL_MUST_CHECK pl_status pl_chat_open(pl_chat **out, pl_str template_text, pl_str bos, pl_str eos, pl_error *err);
/* The template of the file (tokenizer.chat_template); PL_ERR_NOT_FOUND when it has none. */
PL_MUST_CHECK pl_status pl_chat_open_gguf(pl_chat **out, const pl_gguf *g, const pl_vocab *v, pl_error *err);
void pl_chat_close(pl_chat *c);

/* Appends the prompt. messages: array of objects with role and content, as in the OpenAI API. extra: an object whose
 * members become variables of the template (tools, documents, …), NULL for none. Bounded in steps, depth and output.
 * PL_ERR_INVALID: the template refused the messages (raise_exception), with its words. */
PL_MUST_CHECK pl_status pl_chat_render(const pl_chat *c, const pl_json *messages, const pl_json *extra,
                                       bool add_generation_prompt, pl_buf *out, pl_error *err);

/* How the template's model marks calls and reasoning. */
pl_reply_style pl_chat_reply_style(const pl_chat *c);
/* Whether the template wants the arguments of a message's tool_calls as a text of JSON; otherwise as an object. */
bool pl_chat_arguments_as_text(const pl_chat *c);
