/* The command line as tables: one description of every option gives parsing, --help, the man pages and shell
 * completion.
 *
 * Names and meanings are llama.cpp's where it has them. */
#pragma once

#include <stdio.h>

#include "engine/base/bytes.h"
#include "engine/base/status.h"

typedef enum {
    OPT_FLAG,    /* bool, set */
    OPT_NO_FLAG, /* bool, cleared */
    OPT_STR,     /* const char * */
    OPT_I32,     /* int32_t */
    OPT_U64,     /* uint64_t and the bool behind it: has a value */
    OPT_F32,     /* float */
    OPT_SIZE,    /* uint64_t, "200MiB" */
    OPT_LIST     /* str_list: may be given several times */
} option_kind;

typedef struct option_row {
    const char *names; /* "-m, --model" */
    const char *arg;   /* "FILE", NULL for flags, "[=FILE]" when it may be left out: the value is then "" */
    option_kind kind;
    size_t offset;    /* into struct cli_options */
    const char *help; /* one sentence, with the default */
} option_row;

typedef struct option_group {
    const char *title;
    const option_row *rows;
    int n;
} option_group;

#define LIST_MAX 256
typedef struct str_list {
    const char *items[LIST_MAX];
    int n;
} str_list;

/* Everything that some command's options set. Defaults: cli_defaults. */
typedef struct cli_options {
    /* model */
    const char *model, *chat_template, *chat_template_file;
    int32_t n_ctx, n_rows, n_seqs, n_threads, n_blocks;
    const char *kv_type, *kv_type_v;
    bool no_pack;
    const char *cache_dir;
    /* prompt and output */
    const char *prompt, *prompt_file, *system;
    int32_t n_predict;
    str_list stops;
    bool no_conversation, ignore_eos, special, no_display_prompt, show_timings;
    /* sampling */
    float temperature, dynatemp_range, dynatemp_exponent, top_p, min_p, typical_p, top_n_sigma, xtc_probability,
        xtc_threshold, repeat_penalty, frequency_penalty, presence_penalty, dry_multiplier, dry_base, mirostat_tau,
        mirostat_eta;
    int32_t top_k, repeat_last_n, dry_allowed_length, dry_last_n, mirostat;
    const char *samplers, *sampler_seq, *grammar, *grammar_file, *json_schema, *json_schema_file;
    str_list logit_bias, dry_breakers;
    uint64_t seed;
    bool has_seed;
    /* cluster */
    str_list nodes, joins, allow;
    const char *listen, *advertise, *key, *peers, *name, *objective, *trace;
    uint64_t mem;
    bool no_local, plain;
    const char *model_draft, *spec_type;
    str_list lora, lora_scaled;
    int32_t n_draft, n_kept;
    float draft_p_min;
    bool no_cache_prompt, context_shift;
    int32_t n_keep;
    int32_t min_nodes, n_stages, heartbeat_ms, dead_after_ms, credits, poll, grace_ms;
    bool pin, no_mmap, mlock, overcommit;
    /* inspection */
    const char *dump_graph, *profile;
    const char *cpu_mask, *cpu_range;
    bool no_fuse;
    /* http */
    const char *host, *cert, *ssl_key, *alias, *api_key_file, *url;
    int32_t port;
    str_list api_keys, cors_origins;
    const char *cacert;
    bool insecure;
    /* text */
    const char *messages, *tools;
    str_list sets;
    bool no_generation_prompt, ids, no_bos, no_special, detokenize;
    /* other */
    const char *out;
    bool force, json, verbose, quiet, watch;
    const char *log_level, *log_format;
    bool help, version;
} cli_options;

typedef struct command {
    const char *name;
    const char *synopsis;                                    /* what follows the options: "FILE" */
    const char *summary;                                     /* half a sentence for the list of commands */
    const char *details;                                     /* paragraphs for --help and the man page */
    const char *examples;                                    /* lines of "$ paceline …" with a comment above each */
    const option_group *groups[10];                          /* NULL-terminated */
    int (*run)(const cli_options *o, int argc, char **argv); /* argv: what is not an option; gives the exit code */
} command;

extern const command *const commands[]; /* NULL-terminated, in the order of the help */

void cli_defaults(cli_options *o);
/* Parses argv[1..]; on success *rest is the index of the first word that is not an option (argv is permuted). */
PL_MUST_CHECK pl_status cli_parse(const command *c, cli_options *o, int argc, char **argv, int *rest, pl_error *err);

/* Writes text to f. An empty text may have no data, which fwrite does not take. */
void cli_print(FILE *f, pl_str text);
void cli_print_commands(FILE *f);
void cli_print_help(const command *c, FILE *f);
void cli_print_man(const command *c, FILE *f); /* c NULL: paceline(1) itself */
PL_MUST_CHECK pl_status cli_print_completion(const char *shell, FILE *f, pl_error *err);

/* "paceline: TEXT" on stderr and the status' exit code: how every command ends when it fails. */
int cli_fail(const pl_error *err);
/* The word among the candidates that is nearest to what was typed, or NULL. */
const char *cli_nearest(const char *word, const char *const *candidates, size_t n);
