#include "engine/base/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/bytes.h"
#include "engine/base/sys.h"

static _Atomic int max_level = PL_LOG_INFO;
static _Atomic int line_format = PL_LOG_TEXT;

static const char *const words[] = {"error", "warn", "info", "debug", "trace"};

#define LINE_MAX_BYTES 4096 /* PIPE_BUF: up to here a write to a pipe is not mixed with others */

void pl_log_setup(pl_log_level level, pl_log_format format)
{
    atomic_store(&max_level, (int)level);
    atomic_store(&line_format, (int)format);
}

bool pl_log_level_parse(const char *word, pl_log_level *out)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        *out = (pl_log_level)i;
        return true;
    }
    return false;
}

bool pl_log_on(pl_log_level level)
{
    return (int)level <= atomic_load_explicit(&max_level, memory_order_relaxed);
}

/* A line in the making. What does not fit is dropped; the line's end always fits. */
typedef struct line {
    char text[LINE_MAX_BYTES];
    size_t size;
} line;

static void put(line *l, const char *s, size_t n)
{
    size_t room = sizeof l->text - 8 - l->size;
    if (n > room) n = room;
    memcpy(l->text + l->size, s, n);
    l->size += n;
}

/* One byte or character of text, escaped as in a JSON string. Returns the bytes of s that were used; *n of out. */
static size_t escape(const char *s, size_t left, char out[8], size_t *n)
{
    unsigned char c = (unsigned char)*s;
    if (c == '"' || c == '\\') {
        out[0] = '\\';
        out[1] = (char)c;
        *n = 2;
        return 1;
    }
    if (c < 0x20 || c == 0x7F) {
        *n = (size_t)snprintf(out, 8, "\\u%04x", c);
        return 1;
    }
    if (c < 0x80) {
        out[0] = (char)c;
        *n = 1;
        return 1;
    }
    size_t whole = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (whole > left || !pl_utf8_valid((pl_str){s, whole})) {
        memcpy(out, "\\ufffd", 6);
        *n = 6;
        return 1;
    }
    memcpy(out, s, whole);
    *n = whole;
    return whole;
}

static void put_quoted(line *l, const char *s, size_t size)
{
    put(l, "\"", 1);
    for (size_t i = 0; i < size;) {
        char out[8];
        size_t n;
        i += escape(s + i, size - i, out, &n);
        put(l, out, n);
    }
    put(l, "\"", 1);
}

/* A number as JSON writes it, so that it may stand without quotes. */
static bool is_json_number(const char *s, size_t n)
{
    size_t i = 0;
    if (i < n && s[i] == '-') i++;
    if (i == n || !isdigit((unsigned char)s[i])) return false;
    if (s[i] == '0' && i + 1 < n && isdigit((unsigned char)s[i + 1])) return false;
    while (i < n && isdigit((unsigned char)s[i])) i++;
    if (i < n && s[i] == '.') {
        i++;
        if (i == n || !isdigit((unsigned char)s[i])) return false;
        while (i < n && isdigit((unsigned char)s[i])) i++;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        if (i == n || !isdigit((unsigned char)s[i])) return false;
        while (i < n && isdigit((unsigned char)s[i])) i++;
    }
    return i == n;
}

/* The end of the quoted text that begins at s: behind the closing quote. */
static const char *quoted_end(const char *s)
{
    for (s++; *s && *s != '"'; s++) {
        if (*s == '\\' && s[1]) s++;
    }
    return *s ? s + 1 : s;
}

static void put_pairs_json(line *l, const char *s)
{
    while (*s) {
        while (*s == ' ') s++;
        const char *key = s;
        while (*s && *s != '=' && *s != ' ') s++;
        if (s == key) break;
        put(l, ",", 1);
        put_quoted(l, key, (size_t)(s - key));
        put(l, ":", 1);
        if (*s != '=') {
            put(l, "true", 4);
            continue;
        }
        const char *value = ++s;
        if (*s == '"') {
            s = quoted_end(s);
            put(l, value, (size_t)(s - value)); /* escaped by pl_log_quote as JSON wants it */
            continue;
        }
        while (*s && *s != ' ') s++;
        size_t n = (size_t)(s - value);
        if (is_json_number(value, n) || (n == 4 && !memcmp(value, "true", 4)) || (n == 5 && !memcmp(value, "false", 5)))
            put(l, value, n);
        else
            put_quoted(l, value, n);
    }
}

void pl_log(pl_log_level level, const char *message, const char *pairs, ...)
{
    if (!pl_log_on(level)) return;
    char text[LINE_MAX_BYTES / 2];
    va_list ap;
    va_start(ap, pairs);
    vsnprintf(text, sizeof text, pairs, ap);
    va_end(ap);
    /* One pair must not end the line and begin a forged one. */
    for (char *c = text; *c; c++) {
        if ((unsigned char)*c < 0x20) *c = ' ';
    }

    char when[40];
    int64_t now = pl_wall_us();
    time_t seconds = (time_t)(now / 1000000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t at = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + at, sizeof when - at, ".%03dZ", (int)(now / 1000 % 1000));

    line l;
    l.size = 0;
    if (atomic_load_explicit(&line_format, memory_order_relaxed) == PL_LOG_JSON) {
        put(&l, "{\"time\":", 8);
        put_quoted(&l, when, strlen(when));
        put(&l, ",\"level\":", 9);
        put_quoted(&l, words[level], strlen(words[level]));
        put(&l, ",\"message\":", 11);
        put_quoted(&l, message, strlen(message));
        put_pairs_json(&l, text);
        put(&l, "}", 1);
    } else {
        put(&l, when, strlen(when));
        put(&l, " ", 1);
        put(&l, words[level], strlen(words[level]));
        put(&l, " ", 1);
        put(&l, message, strlen(message));
        if (*text) put(&l, " ", 1);
        put(&l, text, strlen(text));
    }
    l.text[l.size++] = '\n';
    for (size_t done = 0; done < l.size;) {
        ssize_t n = write(STDERR_FILENO, l.text + done, l.size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* there is nowhere left to complain */
        done += (size_t)n;
    }
}

const char *pl_log_quote(const char *s)
{
    static _Thread_local char ring[8][512];
    static _Thread_local unsigned turn;
    char *out = ring[turn++ % 8];
    size_t size = 0, len = s ? strlen(s) : 0;
    out[size++] = '"';
    for (size_t i = 0; i < len;) {
        char piece[8];
        size_t n;
        i += escape(s + i, len - i, piece, &n);
        if (size + n + 5 > sizeof ring[0]) { /* the dots, the quote and the zero */
            memcpy(out + size, "...", 3);
            size += 3;
            break;
        }
        memcpy(out + size, piece, n);
        size += n;
    }
    out[size++] = '"';
    out[size] = 0;
    return out;
}
