#include "cli/groups.h"

#include <stddef.h>

#define AT(field)                offsetof(cli_options, field)
#define GROUP(name, title, rows) const option_group name = {title, rows, sizeof rows / sizeof *rows}

static const option_row model_rows[] = {
    {"-m, --model", "FILE", OPT_STR, AT(model),
     "The model, a GGUF file; of a split one its first part (-00001-of-0000N)."},
    {"-c, --ctx-size", "N", OPT_I32, AT(n_ctx),
     "Longest sequence in tokens, prompt and answer together (default: the model's, at most 4096)."},
    {"-ub, --ubatch-size", "N", OPT_I32, AT(n_rows), "Most tokens in one micro-batch (default: 512)."},
    {"-np, --parallel", "N", OPT_I32, AT(n_seqs), "Requests answered at once (default: 4; 1 for run)."},
    {"-ctk, --cache-type, --cache-type-k", "TYPE", OPT_STR, AT(kv_type),
     "Type of the KV cache: f32, f16, bf16, q8_0 or q4_0 (default: f16)."},
    {"-ctv, --cache-type-v", "TYPE", OPT_STR, AT(kv_type_v), "Type of its values (default: that of the keys)."},
    {"--kv-blocks", "N", OPT_I32, AT(n_blocks),
     "KV cache in blocks of 32 positions (default: enough for --parallel sequences of --ctx-size)."},
    {"--cache-slots", "N", OPT_I32, AT(n_kept),
     "Ended sequences kept in the KV cache for requests that begin like them (default: as many as --parallel)."},
    {"--no-cache-prompt", NULL, OPT_FLAG, AT(no_cache_prompt), "Keep none: every prompt is computed whole."},
    {"--context-shift", NULL, OPT_FLAG, AT(context_shift),
     "When the context is full, leave out the older half of what is behind --keep tokens and go on (default: stop)."},
    {"--keep", "N", OPT_I32, AT(n_keep), "Tokens that a context shift keeps; -1: the prompt (default: 0)."},
    {"--lora", "FILE", OPT_LIST, AT(lora),
     "A LoRA adapter, a GGUF file; may be given up to 8 times. Requests can ask for other scales by its number."},
    {"--lora-scaled", "FILE:SCALE", OPT_LIST, AT(lora_scaled),
     "The same with a scale other than 1; 0: only on request."},
    {"-md, --model-draft", "FILE", OPT_STR, AT(model_draft),
     "A small model with the same vocabulary that guesses tokens, which the model then checks several at a time: the "
     "same answers, sooner. It runs in this process."},
    {"--spec-type", "WORD", OPT_STR, AT(spec_type),
     "Who guesses tokens: none, draft (--model-draft), or ngram (what followed when the text said the same before) "
     "(default: draft with --model-draft, else none)."},
    {"--draft, --draft-n, --draft-max", "N", OPT_I32, AT(n_draft),
     "Most tokens guessed per step, 1 to 16 (default: 8)."},
    {"--draft-p-min", "P", OPT_F32, AT(draft_p_min),
     "The draft model stops guessing where its likeliest token has less than this probability (default: 0.75)."},
    {"--chat-template", "JINJA", OPT_STR, AT(chat_template), "Chat template instead of the model's own."},
    {"--chat-template-file", "FILE", OPT_STR, AT(chat_template_file), "The same, from a file."},
};
GROUP(group_model, "Model", model_rows);

static const option_row prompt_rows[] = {
    {"-p, --prompt", "TEXT", OPT_STR, AT(prompt),
     "The prompt. Without one, an interactive chat, or the prompt from standard input when that is not a terminal."},
    {"-f, --file", "FILE", OPT_STR, AT(prompt_file), "The prompt, from a file."},
    {"-sys, --system-prompt", "TEXT", OPT_STR, AT(system), "System message of the conversation."},
    {"-no-cnv, --no-conversation, --raw", NULL, OPT_FLAG, AT(no_conversation),
     "The prompt is continued as it is, without the chat template."},
    {"-n, --predict, --n-predict", "N", OPT_I32, AT(n_predict),
     "Most tokens to generate; -1: until the model ends or the context is full (default: -1)."},
    {"-r, --reverse-prompt, --stop", "TEXT", OPT_LIST, AT(stops),
     "Stop where this text appears. May be given several times."},
    {"--ignore-eos", NULL, OPT_FLAG, AT(ignore_eos), "Go on behind end-of-generation tokens."},
    {"-sp, --special", NULL, OPT_FLAG, AT(special), "Print control tokens too."},
    {"--no-display-prompt", NULL, OPT_FLAG, AT(no_display_prompt), "With --no-conversation: print the answer alone."},
    {"--no-perf", NULL, OPT_NO_FLAG, AT(show_timings), "No line of timings at the end."},
};
GROUP(group_prompt, "Prompt and output", prompt_rows);

static const option_row sampling_rows[] = {
    {"--temp, --temperature", "T", OPT_F32, AT(temperature),
     "Temperature; 0 takes the likeliest token (default: 0.8)."},
    {"--top-k", "N", OPT_I32, AT(top_k), "Keep the N likeliest tokens; 0: all (default: 40)."},
    {"--top-p", "P", OPT_F32, AT(top_p),
     "Keep the likeliest tokens that hold this share of probability; 1: all (default: 0.95)."},
    {"--min-p", "P", OPT_F32, AT(min_p),
     "Drop tokens below this share of the likeliest one's probability; 0: none (default: 0.05)."},
    {"--typical, --typical-p", "P", OPT_F32, AT(typical_p),
     "Keep the tokens whose surprise is nearest to the expected one and that hold this share of probability; 1: all "
     "(default: 1)."},
    {"--top-nsigma, --top-n-sigma", "N", OPT_F32, AT(top_n_sigma),
     "Keep tokens whose logit is within N deviations of the highest one; 0 or below: off (default: -1)."},
    {"--xtc-probability", "P", OPT_F32, AT(xtc_probability),
     "How often the likeliest tokens are excluded, all but the least likely of them; 0: never (default: 0)."},
    {"--xtc-threshold", "P", OPT_F32, AT(xtc_threshold),
     "From which probability on a token is one of them; above 0.5: off (default: 0.1)."},
    {"--dynatemp-range", "R", OPT_F32, AT(dynatemp_range),
     "Let the temperature move by R up and down with the entropy; 0: off (default: 0)."},
    {"--dynatemp-exp", "X", OPT_F32, AT(dynatemp_exponent), "Exponent of the entropy in it (default: 1)."},
    {"--mirostat", "0..2", OPT_I32, AT(mirostat),
     "Mirostat, version 1 or 2, instead of the truncations above; 0: off (default: 0)."},
    {"--mirostat-ent", "BITS", OPT_F32, AT(mirostat_tau), "Surprise that Mirostat aims at (default: 5)."},
    {"--mirostat-lr", "X", OPT_F32, AT(mirostat_eta), "Learning rate of Mirostat (default: 0.1)."},
    {"--repeat-penalty", "X", OPT_F32, AT(repeat_penalty),
     "Divide the logits of tokens that were there lately by X; 1: off (default: 1)."},
    {"--repeat-last-n", "N", OPT_I32, AT(repeat_last_n), "How many tokens back \"lately\" is; -1: all (default: 64)."},
    {"--frequency-penalty", "X", OPT_F32, AT(frequency_penalty),
     "Taken from a token's logit for each time that it was there lately; 0: off (default: 0)."},
    {"--presence-penalty", "X", OPT_F32, AT(presence_penalty),
     "Taken once from the logits of tokens that were there lately; 0: off (default: 0)."},
    {"--dry-multiplier", "X", OPT_F32, AT(dry_multiplier),
     "DRY: penalty of a token that goes on with a repetition, X * base^(its length - allowed length); 0: off (default: "
     "0)."},
    {"--dry-base", "X", OPT_F32, AT(dry_base), "Base of that penalty (default: 1.75)."},
    {"--dry-allowed-length", "N", OPT_I32, AT(dry_allowed_length),
     "Repetitions of fewer tokens are not penalized (default: 2)."},
    {"--dry-penalty-last-n", "N", OPT_I32, AT(dry_last_n),
     "How many tokens back DRY looks; -1: all, 0: off (default: -1)."},
    {"--dry-sequence-breaker", "TEXT", OPT_LIST, AT(dry_breakers),
     "DRY sees no repetition across this text, in which \\n is a line end; \"none\" clears the list. May be given "
     "several "
     "times (default: a line end, a colon, a quotation mark, an asterisk)."},
    {"--logit-bias", "TOKEN+BIAS", OPT_LIST, AT(logit_bias),
     "Add BIAS to the logit of the token with this number, as 15043+1.5 or 15043-inf. May be given several times."},
    {"--samplers", "LIST", OPT_STR, AT(samplers),
     "The samplers in their order, separated by ';' (default: "
     "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature)."},
    {"--sampler-seq, --sampling-seq", "LETTERS", OPT_STR, AT(sampler_seq), "The same as letters (default: edskypmxt)."},
    {"--grammar", "GBNF", OPT_STR, AT(grammar), "Answer only with what this grammar allows, GBNF as llama.cpp has it."},
    {"--grammar-file", "FILE", OPT_STR, AT(grammar_file), "The same, from a file."},
    {"-j, --json-schema", "JSON", OPT_STR, AT(json_schema),
     "Answer only with JSON that is valid under this schema; {} is any JSON."},
    {"-jf, --json-schema-file", "FILE", OPT_STR, AT(json_schema_file), "The same, from a file."},
    {"-s, --seed", "N", OPT_U64, AT(seed),
     "Seed of the draws; the same seed gives the same text over any split (default: drawn)."},
};
GROUP(group_sampling, "Sampling", sampling_rows);

static const option_row cluster_rows[] = {
    {"--node", "HOST:PORT[#KEY]", OPT_LIST, AT(nodes),
     "Dial this node. KEY is its public key; without it, the key of that name in --peers. May be given several times."},
    {"--listen", "HOST:PORT", OPT_STR, AT(listen), "Where nodes dial this coordinator (default: 127.0.0.1:7077)."},
    {"--no-local", NULL, OPT_FLAG, AT(no_local), "This machine coordinates and computes nothing."},
    {"--min-nodes", "N", OPT_I32, AT(min_nodes),
     "Wait for N nodes (this machine counts) before the first plan (default: 1)."},
    {"--stages", "N", OPT_I32, AT(n_stages),
     "Split over exactly N nodes, or as many as there are (default: as many as are best)."},
    {"--objective", "WORD", OPT_STR, AT(objective),
     "What the split is for: latency (one stream) or throughput (many) (default: by --parallel)."},
    {"--credits", "N", OPT_I32, AT(credits), "Micro-batches in flight on each link (default: 4)."},
    {"--heartbeat", "MS", OPT_I32, AT(heartbeat_ms), "Pause between heartbeats (default: 250)."},
    {"--dead-after", "MS", OPT_I32, AT(dead_after_ms), "Silence after which a node is dead (default: 2000)."},
    {"--grace", "MS", OPT_I32, AT(grace_ms),
     "How long requests wait for a pipeline before they are told that there is none (default: 1000)."},
};
GROUP(group_cluster, "Cluster", cluster_rows);

static const option_row node_rows[] = {
    {"--mem", "SIZE", OPT_SIZE, AT(mem),
     "Budget of this machine's node for weights, KV, compute and link buffers, as 200MiB; 20 MiB of it are the "
     "program's own (default: what the system "
     "has, less a tenth)."},
    {"-t, --threads", "N", OPT_I32, AT(n_threads),
     "Threads that compute (default: the processors that this process may use)."},
    {"--poll", "0..100", OPT_I32, AT(poll), "How eagerly waiting threads spin (default: 50)."},
    {"--cpu-pin", NULL, OPT_FLAG, AT(pin), "One processor per thread."},
    {"-C, --cpu-mask", "HEX", OPT_STR, AT(cpu_mask), "Use these processors only: bit i is processor i (default: all)."},
    {"-Cr, --cpu-range", "FIRST-LAST", OPT_STR, AT(cpu_range), "The same as a range; with --cpu-mask both."},
    {"--no-pack", NULL, OPT_FLAG, AT(no_pack),
     "Compute from the plain GGUF bytes where the file is on this machine: slower, writes no cache."},
    {"--no-mmap, --huge-pages", NULL, OPT_FLAG, AT(no_mmap),
     "Copy weights into memory of their own, in huge pages, instead of mapping their files: takes their size once more, and is "
     "faster only where the file system keeps files in small pages."},
    {"--mlock", NULL, OPT_FLAG, AT(mlock), "Keep weights from being paged out; the system has to allow that much."},
    {"--overcommit", NULL, OPT_FLAG, AT(overcommit),
     "Let this machine run a model that its memory cannot hold, from its file: what does not stay in memory is read from the disk "
     "again for every token."},
    {"--cache-dir", "DIR", OPT_STR, AT(cache_dir), "Where tensors are kept (default: ~/.cache/paceline)."},
    {"--name", "NAME", OPT_STR, AT(name), "This node's name in tables and logs (default: the host's)."},
    {"--advertise", "HOST:PORT", OPT_STR, AT(advertise),
     "Where neighbours can dial this node, when that is not where it listens."},
    {"--trace", "FILE", OPT_STR, AT(trace), "Write the timeline of this node's micro-batches, one JSON object a line."},
};
GROUP(group_node, "This machine's node", node_rows);

static const option_row inspect_rows[] = {
    {"--profile", "[=FILE]", OPT_STR, AT(profile),
     "Measure the operators that run on this machine. At the end, print time, bytes moved, bandwidth and their share "
     "of what "
     "the machine can do, and write a trace for Perfetto or chrome://tracing (default: paceline-trace.json)."},
    {"--no-fuse", NULL, OPT_FLAG, AT(no_fuse),
     "Compute every operator of the graph on its own: the same results, slower."},
};
GROUP(group_inspect, "Inspection", inspect_rows);

static const option_row graph_rows[] = {
    {"--dump-graph", "[=FORMAT]", OPT_STR, AT(dump_graph),
     "Print the model's graph and end: operator, shape, type, place and fused group of each node, for one token, or "
     "for -ub N "
     "of a prompt. FORMAT is text, or dot for Graphviz (default: text)."},
};
GROUP(group_graph, "Graph", graph_rows);

static const option_row key_rows[] = {
    {"--key", "FILE", OPT_STR, AT(key),
     "This machine's secret key (default: ~/.config/paceline/key, made when it is not there)."},
    {"--peers", "FILE", OPT_STR, AT(peers),
     "Public keys that may connect, one per line with a name behind it (default: ~/.config/paceline/peers)."},
    {"--allow", "KEY", OPT_LIST, AT(allow), "One more public key that may connect. May be given several times."},
    {"--plain", NULL, OPT_FLAG, AT(plain), "No encryption and no keys on links; only for loopback addresses."},
};
GROUP(group_keys, "Keys", key_rows);

static const option_row http_rows[] = {
    {"--host", "HOST", OPT_STR, AT(host), "Address of the HTTP API (default: 127.0.0.1)."},
    {"--port", "PORT", OPT_I32, AT(port), "Its port; 0 takes a free one (default: 8080)."},
    {"--api-key", "KEY", OPT_LIST, AT(api_keys), "Clients must send this as Bearer token. May be given several times."},
    {"--api-key-file", "FILE", OPT_STR, AT(api_key_file), "The same, one key per line; # begins a comment."},
    {"--cors-origin", "ORIGIN", OPT_LIST, AT(cors_origins),
     "Let pages of this origin (https://example.org) read the answers, beside those of this machine; * lets all. May "
     "be given "
     "several times."},
    {"--ssl-cert-file", "FILE", OPT_STR, AT(cert), "TLS: certificate chain, PEM."},
    {"--ssl-key-file", "FILE", OPT_STR, AT(ssl_key), "TLS: secret key, PEM."},
    {"-a, --alias", "NAME", OPT_STR, AT(alias), "The model's name in answers (default: the file's name)."},
};
GROUP(group_http, "HTTP", http_rows);

static const option_row general_rows[] = {
    {"-v, --verbose", NULL, OPT_FLAG, AT(verbose), "Log more: the level debug."},
    {"-q, --quiet", NULL, OPT_FLAG, AT(quiet), "Log errors only, and show no progress."},
    {"--log-level", "LEVEL", OPT_STR, AT(log_level),
     "error, warn, info, debug or trace (default: info; warn for run)."},
    {"--log-format", "FORMAT", OPT_STR, AT(log_format), "text, or json for one object a line (default: text)."},
    {"-h, --help", NULL, OPT_FLAG, AT(help), "Explain the command."},
    {"--version", NULL, OPT_FLAG, AT(version), "Print the version."},
};
GROUP(group_general, "General", general_rows);
