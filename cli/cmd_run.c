/* `paceline run`: a prompt, or a conversation, answered by this process alone or with the nodes that it dials.
 *
 * States: starting (until a pipeline is up) -> answering <-> asking (interactive only) -> ending. One generation at a
 * time. */
#include <editline/readline.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cluster.h"
#include "cli/commands.h"
#include "cli/groups.h"
#include "cli/inspect.h"
#include "cli/progress.h"
#include "coordinator/generation.h"
#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/sys.h"

/* A model that does not fit may yet, when the dialed nodes have said hello. */
static const uint64_t give_up_budget_ns = 3000000000u, give_up_nodes_ns = 30000000000u, look_ns = 100000000u;

typedef struct session {
    const cli_options *o;
    head h;
    pl_timer *look;
    progress progress;
    uint64_t start_ns;
    bool conversation, interactive, up, ending;
    pl_buf prompt; /* of a run that is not interactive */
    pl_json *messages;
    pl_generation *generation;
    pl_buf answer, line; /* line: what a backslash at its end continues */
    void *input;         /* the watch on standard input while asking */
    int code;
} session;

static session *reading; /* libedit's callback has no user pointer */

static void finish(session *s, int code)
{
    s->code = code;
    s->ending = true;
    pl_loop_uv_stop(s->h.loop);
}

static void fail(session *s, const pl_error *err)
{
    finish(s, cli_fail(err));
}

static void ask(session *s);

static bool add_message(session *s, const char *role, pl_str content)
{
    pl_json *m = pl_json_object();
    pl_json_set(m, "role", pl_json_string(pl_str_from(role)));
    pl_json_set(m, "content", pl_json_string(content));
    return pl_json_append(s->messages, m);
}

static void on_token(void *user, const pl_sampled *token, pl_str text)
{
    (void)token;
    session *s = user;
    cli_print(stdout, text);
    fflush(stdout);
    pl_buf_add_str(&s->answer, text);
}

static void print_timings(const pl_usage *u)
{
    double prompt_s = (double)u->prompt_ns / 1e9, generate_s = (double)u->generate_ns / 1e9;
    const pl_request_stats *st = &u->stats;
    fprintf(stderr, "[prompt: %d tokens", u->n_prompt);
    if (st->n_cached > 0) fprintf(stderr, ", %d of them known", st->n_cached);
    fprintf(stderr, ", %.1f tokens/s; generated: %d tokens, %.1f tokens/s",
            prompt_s > 0 ? (u->n_prompt - st->n_cached) / prompt_s : 0, u->n_generated,
            generate_s > 0 ? (u->n_generated - 1) / generate_s : 0);
    if (st->n_drafted > 0) fprintf(stderr, "; guessed: %d, %d of them right", st->n_drafted, st->n_accepted);
    fprintf(stderr, "]\n");
}

static void on_end(void *user, pl_str text, pl_finish why, const char *stopped_by, const pl_usage *usage,
                   const pl_error *err)
{
    session *s = user;
    s->generation = NULL;
    (void)stopped_by;
    cli_print(stdout, text);
    pl_buf_add_str(&s->answer, text);
    putchar('\n');
    fflush(stdout);
    if (s->ending) return;
    if (why == PL_FINISH_ERROR) {
        if (!s->interactive) {
            fail(s, err);
            return;
        }
        fprintf(stderr, "paceline: %s\n", err->text);
    } else if (s->o->show_timings && !s->o->quiet) {
        print_timings(usage);
    }
    if (!s->interactive) {
        finish(s, why == PL_FINISH_CANCELLED ? 130 : 0);
        return;
    }
    add_message(s, "assistant", pl_buf_str(&s->answer));
    ask(s);
}

static const pl_generation_events events = {on_token, on_end};

/* Starts to answer: the conversation so far, or the raw prompt. */
static pl_status answer(session *s, pl_error *err)
{
    const cli_options *o = s->o;
    pl_generation_options g = {.request = {.max_tokens = o->n_predict,
                                           .ignore_eos = o->ignore_eos,
                                           .context_shift = o->context_shift,
                                           .n_keep = o->n_keep,
                                           .has_seed = o->has_seed,
                                           .sample = s->h.sampling.params},
                               .special = o->special};
    memcpy(g.request.adapters, s->h.m.adapters, sizeof g.request.adapters);
    pl_buf text = {0}, tokens = {0};
    pl_status status = PL_OK;
    if (o->stops.n > PL_STOPS_MAX)
        status = pl_fail(err, PL_ERR_INVALID, "--stop is given more than %d times", PL_STOPS_MAX);
    for (int i = 0; i < o->stops.n && status == PL_OK; i++) g.stops[g.n_stops++] = o->stops.items[i];
    if (status == PL_OK && s->conversation) {
        status = pl_chat_render(s->h.m.chat, s->messages, NULL, true, &text, err);
        if (status == PL_OK) status = pl_generation_tokenize_chat(s->h.m.vocab, pl_buf_str(&text), &tokens, err);
    } else if (status == PL_OK) {
        status = pl_tokenize(s->h.m.vocab, pl_buf_str(&s->prompt), true, true, &tokens, err);
        if (!o->no_display_prompt) cli_print(stdout, pl_buf_str(&s->prompt));
    }
    if (status == PL_OK && tokens.size == 0) status = pl_fail(err, PL_ERR_INVALID, "the prompt is empty");
    g.request.tokens = (const int32_t *)(const void *)tokens.data;
    g.request.n_tokens = (int32_t)(tokens.size / sizeof(int32_t));
    pl_buf_reset(&s->answer);
    if (status == PL_OK)
        status = pl_generation_start(&s->generation, s->h.coordinator, s->h.loop, s->h.m.vocab, &g, &events, s, err);
    pl_buf_fini(&text);
    pl_buf_fini(&tokens);
    return status;
}

/* --- the conversation ------------------------------------------------------------------------------------------------
 */

static void stop_asking(session *s)
{
    if (!s->input) return;
    rl_callback_handler_remove();
    pl_loop_unwatch_fd(s->h.loop, s->input);
    s->input = NULL;
}

static void forget(session *s)
{
    pl_json_free(s->messages);
    s->messages = pl_json_array();
    if (s->o->system) add_message(s, "system", pl_str_from(s->o->system));
}

/* The question that was not answered, so that it does not stand in the way of the next one. */
static void forget_last(session *s)
{
    pl_json *kept = pl_json_array();
    for (size_t i = 0; i + 1 < pl_json_size(s->messages); i++)
        pl_json_append(kept, pl_json_ref(pl_json_at(s->messages, i)));
    pl_json_free(s->messages);
    s->messages = kept;
}

static void on_line(char *line)
{
    session *s = reading;
    if (!line || strcmp(line, "/exit") == 0 || strcmp(line, "/bye") == 0) {
        if (!line) fputc('\n', stderr);
        free(line);
        stop_asking(s);
        finish(s, 0);
        return;
    }
    size_t n = strlen(line);
    bool more = n > 0 && line[n - 1] == '\\';
    pl_buf_add(&s->line, line, more ? n - 1 : n);
    if (more) pl_buf_add_u8(&s->line, '\n');
    if (n > 0) add_history(line);
    bool clear = strcmp(line, "/clear") == 0, help = strcmp(line, "/help") == 0 || strcmp(line, "/?") == 0;
    free(line);
    stop_asking(s); /* always: libedit leaves the terminal in its line mode behind each line */
    if (more) {
        ask(s);
        return;
    }
    if (clear || help) {
        if (clear) forget(s);
        fputs(clear ? "The conversation begins anew.\n"
                    : "/clear  begin anew\n/exit   leave (or Ctrl-D)\nA backslash at the end of a line goes on in the "
                      "next; Ctrl-C stops an answer.\n",
              stderr);
        pl_buf_reset(&s->line);
        ask(s);
        return;
    }
    if (s->line.size == 0) {
        ask(s);
        return;
    }
    add_message(s, "user", pl_buf_str(&s->line));
    pl_buf_reset(&s->line);
    pl_error err;
    if (answer(s, &err) != PL_OK) {
        fprintf(stderr, "paceline: %s%s\n", err.text, pl_json_size(s->messages) > 1 ? " (/clear begins anew)" : "");
        forget_last(s);
        ask(s);
    }
}

static void on_input(void *user)
{
    (void)user;
    rl_callback_read_char();
}

static void ask(session *s)
{
    pl_error err;
    reading = s;
    rl_callback_handler_install(s->line.size ? ". " : "> ", on_line);
    if (pl_loop_watch_fd(s->h.loop, STDIN_FILENO, on_input, s, &s->input, &err) != PL_OK) fail(s, &err);
}

static void on_signal(void *user, int n_before)
{
    session *s = user;
    if (s->generation && s->interactive)
        pl_generation_cancel(s->generation);
    else if (s->generation && n_before == 0)
        pl_generation_cancel(s->generation);
    else
        finish(s, 130);
}

/* --- starting
 * --------------------------------------------------------------------------------------------------------- */

static void begin(session *s)
{
    s->up = true;
    progress_end(&s->progress);
    pl_timer_stop(s->h.loop, s->look);
    s->look = NULL;
    pl_error err;
    pl_buf text = {0};
    if (s->o->nodes.n > 0 && !s->o->quiet && pl_coordinator_plan_text(s->h.coordinator, &text, &err) == PL_OK)
        cli_print(stderr, pl_buf_str(&text));
    pl_buf_fini(&text);
    if (s->interactive) {
        fprintf(stderr, "%s. /help explains, Ctrl-D ends.\n", s->h.m.name);
        ask(s);
    } else if (answer(s, &err) != PL_OK) {
        fail(s, &err);
    }
}

static void show_loading(session *s)
{
    pl_json *v = pl_coordinator_status(s->h.coordinator);
    const pl_json *p = pl_json_get(pl_json_get(v, "pipeline"), "progress");
    progress_show(&s->progress, (uint64_t)pl_json_i64(pl_json_get(p, "done_bytes")),
                  (uint64_t)pl_json_i64(pl_json_get(p, "total_bytes")));
    pl_json_free(v);
}

/* Loading may take its time, but machines that were named and do not come are not waited for without end. Who listens
 * has nodes come by themselves, whenever that is. */
static bool nobody_comes(const session *s, pl_status status, uint64_t waited_ns)
{
    if (status != PL_ERR_CLOSED || waited_ns <= give_up_nodes_ns || s->o->listen) return false;
    pl_json *v = pl_coordinator_status(s->h.coordinator);
    bool down = pl_str_is(pl_json_str(pl_json_get(pl_json_get(v, "pipeline"), "state")), "down");
    pl_json_free(v);
    return down;
}

static void on_look(void *user)
{
    session *s = user;
    pl_error err = {0};
    pl_status status = pl_coordinator_health(s->h.coordinator, &err);
    uint64_t waited = pl_loop_now(s->h.loop) - s->start_ns;
    if (status == PL_OK) {
        begin(s);
    } else if ((status == PL_ERR_BUDGET && waited > give_up_budget_ns) || nobody_comes(s, status, waited)) {
        progress_end(&s->progress);
        fail(s, &err);
    } else {
        show_loading(s);
    }
}

static void on_change(void *user)
{
    session *s = user;
    if (!s->up && !s->ending) on_look(s);
}

static pl_status read_prompt(session *s, pl_error *err)
{
    const cli_options *o = s->o;
    if (o->prompt)
        pl_buf_add_str(&s->prompt, pl_str_from(o->prompt));
    else if (o->prompt_file)
        PL_TRY(pl_file_read(&s->prompt, o->prompt_file, 64 << 20, err));
    else if (!isatty(STDIN_FILENO)) {
        uint8_t block[1 << 16];
        size_t n;
        while ((n = fread(block, 1, sizeof block, stdin)) > 0) pl_buf_add(&s->prompt, block, n);
    } else
        s->interactive = true;
    return s->prompt.failed ? pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the prompt") : PL_OK;
}

static pl_status start(session *s, pl_error *err)
{
    PL_TRY(read_prompt(s, err));
    if (s->o->no_local && s->o->nodes.n == 0 && !s->o->listen)
        return pl_fail(err, PL_ERR_INVALID, "--no-local leaves nobody to compute: name machines with --node");
    /* libedit drops what the locale cannot spell; text is UTF-8 here whatever the locale says. */
    if (s->interactive && (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)) setlocale(LC_CTYPE, "C.UTF-8");
    PL_TRY(head_start(&s->h, s->o, 1, s->o->listen == NULL, err));
    s->conversation = s->h.m.chat && !s->o->no_conversation;
    if (s->interactive && !s->conversation)
        return pl_fail(err, PL_ERR_INVALID,
                       "a conversation needs a chat template, and %s: give a prompt with -p, or --chat-template-file",
                       s->h.m.chat ? "--no-conversation switches it off" : "the model has none");
    forget(s);
    if (s->conversation && !s->interactive) add_message(s, "user", pl_buf_str(&s->prompt));
    s->h.on_signal = on_signal;
    s->h.on_signal_user = s;
    s->start_ns = pl_loop_now(s->h.loop);
    progress_start(&s->progress, "Loading", s->o->quiet);
    pl_coordinator_on_change(s->h.coordinator, on_change, s);
    return pl_timer_start(s->h.loop, look_ns, look_ns, on_look, s, &s->look, err);
}

static int run(const cli_options *o, int argc, char **argv)
{
    pl_error err;
    log_from_options(o, "warn");
    session s = {.o = o};
    if (argc > 0) {
        (void)pl_fail(&err, PL_ERR_INVALID, "run: %s: what is this for? The prompt is given with -p", argv[0]);
        return cli_fail(&err);
    }
    if (o->dump_graph) return inspect_dump_graph(o);
    if (start(&s, &err) == PL_OK)
        pl_loop_uv_run(s.h.loop);
    else
        s.code = cli_fail(&err);
    s.ending = true;
    stop_asking(&s);
    if (s.h.loop) pl_timer_stop(s.h.loop, s.look);
    progress_end(&s.progress);
    head_stop(&s.h);
    pl_json_free(s.messages);
    pl_buf_fini(&s.prompt);
    pl_buf_fini(&s.answer);
    pl_buf_fini(&s.line);
    return s.code;
}

const command cmd_run = {
    "run",
    "",
    "answer a prompt, or chat, in this process or on remote nodes",
    "Loads the model and answers. With --node the layers are placed on those machines (and on this one, unless "
    "--no-local), so that a laptop can drive machines that hold more than it can. "
    "Without a prompt on a terminal it is a conversation. A model with a chat template is asked with it, unless "
    "--no-conversation.",
    "# chat\n$ paceline run -m model.gguf\n# one answer\n$ paceline run -m model.gguf -p 'Why is the sky blue?'\n# "
    "continue a text, as it is, always the same\n"
    "$ paceline run -m model.gguf --no-conversation -p 'Once upon a time' --temp 0 -n 64\n# from a laptop, computing "
    "on two remote machines\n"
    "$ paceline run -m model.gguf --no-local --node 10.0.0.5#KEY --node 10.0.0.6#KEY -p 'Hello'",
    {&group_model, &group_prompt, &group_sampling, &group_cluster, &group_node, &group_inspect, &group_graph,
     &group_keys, &group_general, NULL},
    run,
};
