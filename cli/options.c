#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/sys.h"
#include "engine/sample/sampler.h"

#define NAMES_MAX 256

void cli_defaults(cli_options *o)
{
    const pl_sample_params p = pl_sample_defaults();
    *o = (cli_options){
        .n_predict = -1,
        .temperature = p.temperature,
        .top_k = p.top_k,
        .top_p = p.top_p,
        .min_p = p.min_p,
        .dynatemp_exponent = p.dynatemp_exponent,
        .typical_p = p.typical_p,
        .top_n_sigma = p.top_n_sigma,
        .xtc_threshold = p.xtc_threshold,
        .repeat_penalty = p.repeat_penalty,
        .repeat_last_n = p.repeat_last_n,
        .dry_base = p.dry_base,
        .dry_allowed_length = p.dry_allowed_length,
        .dry_last_n = p.dry_last_n,
        .mirostat_tau = p.mirostat_tau,
        .mirostat_eta = p.mirostat_eta,
        .poll = -1,
        .port = 8080,
        .show_timings = true,
        .log_format = "text",
        .kv_type = "f16",
        .n_draft = 8,
        .draft_p_min = 0.75f,
        .grace_ms = 1000,
    };
}

/* --- names ----------------------------------------------------------------------------------------------------------
 */

typedef struct name {
    char text[48]; /* with its dashes */
    const option_row *row;
} name;

static int split_names(const option_row *row, name *out)
{
    int n = 0;
    const char *p = row->names;
    while (*p) {
        size_t len = strcspn(p, ", ");
        PL_ASSERT(len < sizeof out[n].text);
        memcpy(out[n].text, p, len);
        out[n].text[len] = 0;
        out[n++].row = row;
        p += len;
        p += strspn(p, ", ");
    }
    return n;
}

static int all_names(const command *c, name *out)
{
    int n = 0;
    for (int g = 0; c->groups[g]; g++)
        for (int i = 0; i < c->groups[g]->n; i++) {
            PL_ASSERT(n + 8 < NAMES_MAX);
            n += split_names(&c->groups[g]->rows[i], out + n);
        }
    return n;
}

static size_t edit_distance(const char *a, const char *b)
{
    size_t row[64], nb = strlen(b);
    if (nb >= 64) return 64;
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; *a; a++, i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t change = diagonal + (tolower(*a) != tolower(b[j - 1]));
            diagonal = row[j];
            if (row[j] + 1 < change) change = row[j] + 1;
            if (row[j - 1] + 1 < change) change = row[j - 1] + 1;
            row[j] = change;
        }
    }
    return row[nb];
}

const char *cli_nearest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t least = strlen(word) / 3 + 2;
    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(word, candidates[i]);
        if (d < least) {
            least = d;
            best = candidates[i];
        }
    }
    return best;
}

/* --- parsing --------------------------------------------------------------------------------------------------------
 */

static pl_status set_value(const name *n, cli_options *o, const char *arg, pl_error *err)
{
    void *at = (char *)o + n->row->offset;
    char *end = NULL;
    errno = 0;
    switch (n->row->kind) {
    case OPT_FLAG: *(bool *)at = true; return PL_OK;
    case OPT_NO_FLAG: *(bool *)at = false; return PL_OK;
    case OPT_STR: *(const char **)at = arg ? arg : ""; return PL_OK;
    case OPT_I32: {
        long v = strtol(arg, &end, 10);
        if (end == arg || *end || errno || v < INT32_MIN || v > INT32_MAX)
            return pl_fail(err, PL_ERR_INVALID, "%s %s: not an integer", n->text, arg);
        *(int32_t *)at = (int32_t)v;
        return PL_OK;
    }
    case OPT_U64: {
        if (strcmp(arg, "-1") == 0) return PL_OK; /* llama.cpp's word for "draw one" */
        unsigned long long v = strtoull(arg, &end, 10);
        if (end == arg || *end || errno || *arg == '-')
            return pl_fail(err, PL_ERR_INVALID, "%s %s: not a number of 64 bits", n->text, arg);
        *(uint64_t *)at = v;
        *(bool *)((char *)at + sizeof(uint64_t)) = true;
        return PL_OK;
    }
    case OPT_F32: {
        float v = strtof(arg, &end);
        if (end == arg || *end || !isfinite(v))
            return pl_fail(err, PL_ERR_INVALID, "%s %s: not a number", n->text, arg);
        *(float *)at = v;
        return PL_OK;
    }
    case OPT_SIZE: {
        pl_status s = pl_parse_size(pl_str_from(arg), at, err);
        return s == PL_OK ? PL_OK : pl_note(err, s, "%s", n->text);
    }
    case OPT_LIST: {
        str_list *l = at;
        if (l->n == LIST_MAX) return pl_fail(err, PL_ERR_INVALID, "%s is given more than %d times", n->text, LIST_MAX);
        l->items[l->n++] = arg;
        return PL_OK;
    }
    }
    return pl_fail(err, PL_ERR_INTERNAL, "%s has no kind", n->text);
}

static pl_status unknown_option(const command *c, const char *word, const name *names, int n, pl_error *err)
{
    const char *candidates[NAMES_MAX];
    for (int i = 0; i < n; i++) candidates[i] = names[i].text;
    const char *nearest = cli_nearest(word, candidates, (size_t)n);
    if (nearest) return pl_fail(err, PL_ERR_INVALID, "%s: unknown option %s; did you mean %s?", c->name, word, nearest);
    return pl_fail(err, PL_ERR_INVALID, "%s: unknown option %s (paceline %s --help lists them)", c->name, word,
                   c->name);
}

/* getopt_long_only, because llama.cpp has names such as -np and -ub. */
pl_status cli_parse(const command *c, cli_options *o, int argc, char **argv, int *rest, pl_error *err)
{
    name names[NAMES_MAX];
    struct option longs[NAMES_MAX] = {0};
    char shorts[NAMES_MAX] = ":";
    int n = all_names(c, names), n_longs = 0;
    for (int i = 0; i < n; i++) {
        const char *text = names[i].text;
        bool takes = names[i].row->arg != NULL, may_take = takes && names[i].row->arg[0] == '[';
        if (text[0] == '-' && text[1] != '-' && text[2] == 0) {
            strncat(shorts, text + 1, 1);
            if (takes) strcat(shorts, ":");
        }
        longs[n_longs++] = (struct option){text + (text[1] == '-' ? 2 : 1),
                                           may_take ? optional_argument
                                           : takes  ? required_argument
                                                    : no_argument,
                                           NULL, 1000 + i};
    }
    opterr = 0;
    optind = 1;
    int v, index;
    while ((v = getopt_long_only(argc, argv, shorts, longs, &index)) != -1) {
        if (v == ':') return pl_fail(err, PL_ERR_INVALID, "%s: %s needs a value", c->name, argv[optind - 1]);
        if (v == '?') return unknown_option(c, argv[optind - 1], names, n, err);
        const name *hit = NULL;
        if (v >= 1000) hit = &names[v - 1000];
        for (int i = 0; !hit && i < n; i++)
            if (names[i].text[1] == v && names[i].text[2] == 0) hit = &names[i];
        PL_TRY(set_value(hit, o, optarg, err));
    }
    *rest = optind;
    return PL_OK;
}

int cli_fail(const pl_error *err)
{
    fprintf(stderr, "paceline: %s\n", err->text);
    return pl_status_exit_code(err->status);
}

/* --- help -----------------------------------------------------------------------------------------------------------
 */

/* text broken at spaces before column 100; every line after the first is indented; line breaks in the text stay. */
static void print_wrapped(FILE *f, const char *text, int column, int indent)
{
    while (*text) {
        size_t word = strcspn(text, " \n");
        if (column + (int)word > 100 && column > indent) {
            fprintf(f, "\n%*s", indent, "");
            column = indent;
        }
        fwrite(text, 1, word, f);
        column += (int)word;
        text += word;
        if (*text == '\n') {
            fprintf(f, "\n%*s", text[1] && text[1] != '\n' ? indent : 0, "");
            column = indent;
            text++;
        } else if (*text == ' ') {
            fputc(' ', f);
            column++;
            text++;
        }
    }
    fputc('\n', f);
}

void cli_print(FILE *f, pl_str text)
{
    if (text.size > 0) fwrite(text.data, 1, text.size, f);
}

void cli_print_commands(FILE *f)
{
    fputs("paceline runs one large language model across several machines.\n\nUsage: paceline COMMAND "
          "[OPTIONS]\n\nCommands:\n",
          f);
    for (int i = 0; commands[i]; i++) fprintf(f, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\nOne machine:     paceline run -m model.gguf\n"
          "Several:         paceline serve -m model.gguf --listen 0.0.0.0:7077     and on every other machine\n"
          "                 paceline node --join HOST:7077#PUBLIC_KEY\n\n"
          "`paceline COMMAND --help` explains a command, `paceline --version` names the version.\n",
          f);
}

void cli_print_help(const command *c, FILE *f)
{
    fprintf(f, "paceline %s: %s\n\nUsage: paceline %s [OPTIONS]%s%s\n\n", c->name, c->summary, c->name,
            *c->synopsis ? " " : "", c->synopsis);
    print_wrapped(f, c->details, 0, 0);
    for (int g = 0; c->groups[g]; g++) {
        fprintf(f, "\n%s:\n", c->groups[g]->title);
        for (int i = 0; i < c->groups[g]->n; i++) {
            const option_row *row = &c->groups[g]->rows[i];
            int width =
                fprintf(f, "  %s%s%s", row->names, row->arg && row->arg[0] != '[' ? " " : "", row->arg ? row->arg : "");
            if (width > 34)
                fprintf(f, "\n%36s", "");
            else
                fprintf(f, "%*s", 36 - width, "");
            print_wrapped(f, row->help, 36, 36);
        }
    }
    fprintf(f, "\nExamples:\n");
    fprintf(f, "%s\n", c->examples); /* as they are: they get copied */
}

/* --- man pages (man(7))
 * ----------------------------------------------------------------------------------------------- */

static void man_text(FILE *f, const char *text)
{
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\'')) fputs("\\&", f);
        if (*text == '\\')
            fputs("\\e", f);
        else if (*text == '-')
            fputs("\\-", f);
        else if (*text == '\n' && text[1] == '\n') {
            fputs("\n.PP", f);
        } else
            fputc(*text, f);
        line_start = *text == '\n';
    }
    fputc('\n', f);
}

void cli_print_man(const command *c, FILE *f)
{
    if (!c) {
        fputs(".TH PACELINE 1 \"\" \"paceline " PL_VERSION
              "\" \"User Commands\"\n.SH NAME\npaceline \\- one large language model, run across several machines\n"
              ".SH SYNOPSIS\n.B paceline\n.I COMMAND\n[\\fIOPTIONS\\fR]\n.SH COMMANDS\n",
              f);
        for (int i = 0; commands[i]; i++) {
            fprintf(f, ".TP\n.BR paceline\\-%s (1)\n", commands[i]->name);
            man_text(f, commands[i]->summary);
        }
        fputs(".SH EXIT STATUS\n0 for success; 64 for a wrong command line; 66 for a file that is not there; 73 for a "
              "model that does not fit; 130 when interrupted.\n"
              ".SH FILES\n~/.config/paceline/key, ~/.config/paceline/peers, ~/.cache/paceline\n",
              f);
        return;
    }
    fprintf(f, ".TH PACELINE\\-");
    for (const char *p = c->name; *p; p++) fputc(toupper(*p), f);
    fprintf(f,
            " 1 \"\" \"paceline %s\" \"User Commands\"\n.SH NAME\npaceline\\-%s \\- %s\n.SH SYNOPSIS\n.B paceline "
            "%s\n[\\fIOPTIONS\\fR]",
            PL_VERSION, c->name, c->summary, c->name);
    if (*c->synopsis) fprintf(f, "\n\\fI%s\\fR", c->synopsis);
    fputs("\n.SH DESCRIPTION\n", f);
    man_text(f, c->details);
    for (int g = 0; c->groups[g]; g++) {
        fputs(".SH ", f);
        for (const char *p = c->groups[g]->title; *p; p++) fputc(toupper(*p), f);
        fputc('\n', f);
        for (int i = 0; i < c->groups[g]->n; i++) {
            const option_row *row = &c->groups[g]->rows[i];
            fputs(".TP\n\\fB", f);
            for (const char *p = row->names; *p; p++) fputs(*p == '-' ? "\\-" : (char[]){*p, 0}, f);
            fprintf(f, "\\fR%s%s%s\n",
                    !row->arg            ? ""
                    : row->arg[0] == '[' ? "\\fI"
                                         : " \\fI",
                    row->arg ? row->arg : "", row->arg ? "\\fR" : "");
            man_text(f, row->help);
        }
    }
    fputs(".SH EXAMPLES\n.nf\n", f);
    man_text(f, c->examples);
    fputs(".fi\n.SH SEE ALSO\n.BR paceline (1)\n", f);
}

/* --- completion
 * ------------------------------------------------------------------------------------------------------- */

static void completion_bash(FILE *f)
{
    fputs("_paceline() {\n    local cur=${COMP_WORDS[COMP_CWORD]} words=\n    if ((COMP_CWORD == 1)); then\n        "
          "words='",
          f);
    for (int i = 0; commands[i]; i++) fprintf(f, "%s ", commands[i]->name);
    fputs("--help --version'\n    else\n        case ${COMP_WORDS[1]} in\n", f);
    for (int i = 0; commands[i]; i++) {
        name names[NAMES_MAX];
        int n = all_names(commands[i], names);
        fprintf(f, "        %s) words='", commands[i]->name);
        for (int j = 0; j < n; j++) fprintf(f, "%s ", names[j].text);
        fputs("' ;;\n", f);
    }
    fputs("        esac\n    fi\n    if [[ $cur == -* || $COMP_CWORD -eq 1 ]]; then\n        mapfile -t COMPREPLY < "
          "<(compgen -W \"$words\" -- \"$cur\")\n"
          "    else\n        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n    fi\n}\ncomplete -o filenames -F "
          "_paceline paceline\n",
          f);
}

/* Single quotes close, escape and open again. */
static void quoted(FILE *f, const char *text)
{
    fputc('\'', f);
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", f);
        else
            fputc(*text == '\n' ? ' ' : *text, f);
    }
    fputc('\'', f);
}

static void completion_zsh(FILE *f)
{
    fputs("#compdef paceline\n_paceline() {\n    if ((CURRENT == 2)); then\n        local -a cmds=(\n", f);
    for (int i = 0; commands[i]; i++) {
        char line[512];
        snprintf(line, sizeof line, "%s:%s", commands[i]->name, commands[i]->summary);
        fputs("            ", f);
        quoted(f, line);
        fputc('\n', f);
    }
    fputs("        )\n        _describe command cmds\n        return\n    fi\n    case ${words[2]} in\n", f);
    for (int i = 0; commands[i]; i++) {
        name names[NAMES_MAX];
        int n = all_names(commands[i], names);
        fprintf(f, "    %s) compadd -- ", commands[i]->name);
        for (int j = 0; j < n; j++) fprintf(f, "%s ", names[j].text);
        fputs("; _files ;;\n", f);
    }
    fputs("    esac\n}\n_paceline \"$@\"\n", f);
}

static void completion_fish(FILE *f)
{
    for (int i = 0; commands[i]; i++) {
        fprintf(f, "complete -c paceline -n __fish_use_subcommand -a %s -d ", commands[i]->name);
        quoted(f, commands[i]->summary);
        fputc('\n', f);
        name names[NAMES_MAX];
        int n = all_names(commands[i], names);
        for (int j = 0; j < n; j++) {
            const char *text = names[j].text;
            const char *flag = text[1] == '-' ? "-l" : text[2] ? "-o" : "-s";
            fprintf(f, "complete -c paceline -n '__fish_seen_subcommand_from %s' %s %s%s -d ", commands[i]->name, flag,
                    text + (text[1] == '-' ? 2 : 1), names[j].row->arg && names[j].row->arg[0] != '[' ? " -r" : "");
            quoted(f, names[j].row->help);
            fputc('\n', f);
        }
    }
}

pl_status cli_print_completion(const char *shell, FILE *f, pl_error *err)
{
    if (strcmp(shell, "bash") == 0)
        completion_bash(f);
    else if (strcmp(shell, "zsh") == 0)
        completion_zsh(f);
    else if (strcmp(shell, "fish") == 0)
        completion_fish(f);
    else
        return pl_fail(err, PL_ERR_INVALID, "completion for %s is not known: bash, zsh or fish", shell);
    return PL_OK;
}
