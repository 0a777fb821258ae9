#include "transport/curve.h"

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <zmq.h>

#define KEY_TEXT     (2 * PL_KEY_SIZE)
#define KEY_FILE_MAX 4096       /* of a file with one key: comments included */
#define KEY_LIST_MAX (1u << 20) /* of a list: some ten thousand keys */

/* libzmq writes keys in Z85, ours are hexadecimal: it is what hashes look like everywhere else here, and survives every
 * shell. */
pl_status pl_key_pair_new(pl_key *public_key, pl_key *secret_key, pl_error *err)
{
    char public_text[41], secret_text[41];
    if (zmq_curve_keypair(public_text, secret_text) != 0)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "no key pair: %s", zmq_strerror(zmq_errno()));
    PL_ASSERT(zmq_z85_decode(public_key->b, public_text) && zmq_z85_decode(secret_key->b, secret_text));
    return PL_OK;
}

pl_status pl_key_public_of(pl_key *public_key, const pl_key *secret_key, pl_error *err)
{
    char public_text[41], secret_text[41];
    zmq_z85_encode(secret_text, secret_key->b, PL_KEY_SIZE);
    if (zmq_curve_public(public_text, secret_text) != 0)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "no public key: %s", zmq_strerror(zmq_errno()));
    PL_ASSERT(zmq_z85_decode(public_key->b, public_text));
    return PL_OK;
}

void pl_key_text(const pl_key *k, char out[2 * PL_KEY_SIZE + 1])
{
    for (int i = 0; i < PL_KEY_SIZE; i++) snprintf(out + 2 * i, 3, "%02x", k->b[i]);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static pl_str trim(pl_str s)
{
    while (s.size && is_space(s.data[0])) s.data++, s.size--;
    while (s.size && is_space(s.data[s.size - 1])) s.size--;
    return s;
}

/* Never quotes the text: it may be a secret. */
pl_status pl_key_parse(pl_key *out, pl_str text, pl_error *err)
{
    text = trim(text);
    if (text.size != KEY_TEXT)
        return pl_fail(err, PL_ERR_FORMAT, "a key has %d hexadecimal digits, not %zu characters", KEY_TEXT, text.size);
    pl_key k;
    for (int i = 0; i < PL_KEY_SIZE; i++) {
        int high = hex_digit(text.data[2 * i]), low = hex_digit(text.data[2 * i + 1]);
        if (high < 0 || low < 0)
            return pl_fail(err, PL_ERR_FORMAT, "a key has hexadecimal digits only; see character %d", 2 * i);
        k.b[i] = (uint8_t)(high << 4 | low);
    }
    *out = k;
    return PL_OK;
}

/* The next line of *rest without its comment, and trimmed; false at the end. */
static bool next_line(pl_str *rest, pl_str *line)
{
    if (rest->size == 0) return false;
    const char *end = memchr(rest->data, '\n', rest->size);
    size_t n = end ? (size_t)(end - rest->data) : rest->size;
    *line = (pl_str){rest->data, n};
    rest->data += n + (end != NULL);
    rest->size -= n + (end != NULL);
    const char *comment = memchr(line->data, '#', line->size);
    if (comment) line->size = (size_t)(comment - line->data);
    *line = trim(*line);
    return true;
}

pl_status pl_key_load(pl_key *public_key, pl_key *secret_key, const char *path, pl_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return pl_fail(err, errno == ENOENT ? PL_ERR_NOT_FOUND : PL_ERR_IO, "%s: %s", path, strerror(errno));
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return pl_fail(err, PL_ERR_AUTH, "%s: others may read this secret key (mode %03o); chmod 600", path,
                       (unsigned)(st.st_mode & 0777));
    pl_buf text = {0};
    pl_key secret = {0};
    pl_status s = pl_file_read(&text, path, KEY_FILE_MAX, err);
    if (s != PL_OK) goto done;
    pl_str rest = pl_buf_str(&text), line = {0};
    while (next_line(&rest, &line) && line.size == 0) {}
    if ((s = pl_key_parse(&secret, line, err)) != PL_OK) {
        pl_note(err, s, "%s", path);
        goto done;
    }
    if ((s = pl_key_public_of(public_key, &secret, err)) != PL_OK) goto done;
    *secret_key = secret;
done:
    explicit_bzero(&secret, sizeof secret);
    if (text.data) explicit_bzero(text.data, text.size);
    pl_buf_fini(&text);
    return s;
}

pl_status pl_key_save(const pl_key *public_key, const pl_key *secret_key, const char *path, bool force, pl_error *err)
{
    char public_path[4096], text[KEY_TEXT + 2];
    int n = snprintf(public_path, sizeof public_path, "%s.pub", path);
    if (n < 0 || (size_t)n >= sizeof public_path) return pl_fail(err, PL_ERR_INVALID, "%s: too long a path", path);
    if (!force && pl_file_exists(path)) return pl_fail(err, PL_ERR_INVALID, "%s: there is a key already", path);
    if (!force && pl_file_exists(public_path))
        return pl_fail(err, PL_ERR_INVALID, "%s: there is a key already", public_path);
    pl_key_text(secret_key, text);
    text[KEY_TEXT] = '\n';
    pl_status s = pl_file_write(path, (pl_bytes){(const uint8_t *)text, KEY_TEXT + 1}, 0600, err);
    explicit_bzero(text, sizeof text);
    if (s != PL_OK) return s;
    pl_key_text(public_key, text);
    text[KEY_TEXT] = '\n';
    return pl_file_write(public_path, (pl_bytes){(const uint8_t *)text, KEY_TEXT + 1}, 0644, err);
}

pl_status pl_key_list_add(pl_key_list *l, const pl_key *key, const char *name, pl_error *err)
{
    void *items = pl_realloc(l->items, (l->n + 1) * sizeof *l->items);
    if (!items) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a key");
    l->items = items;
    l->items[l->n].key = *key;
    snprintf(l->items[l->n].name, sizeof l->items[l->n].name, "%s", name ? name : "");
    l->n++;
    return PL_OK;
}

pl_status pl_key_list_load(pl_key_list *out, const char *path, pl_error *err)
{
    *out = (pl_key_list){0};
    pl_buf text = {0};
    pl_status s = pl_file_read(&text, path, KEY_LIST_MAX, err);
    pl_str rest = pl_buf_str(&text), line;
    for (int number = 1; s == PL_OK && next_line(&rest, &line); number++) {
        if (line.size == 0) continue;
        size_t n = 0;
        while (n < line.size && !is_space(line.data[n])) n++;
        pl_str name = trim((pl_str){line.data + n, line.size - n});
        char terminated[64];
        snprintf(terminated, sizeof terminated, "%.*s", PL_STR_ARG(name));
        pl_key key;
        if ((s = pl_key_parse(&key, (pl_str){line.data, n}, err)) == PL_OK)
            s = pl_key_list_add(out, &key, terminated, err);
        if (s != PL_OK) pl_note(err, s, "%s: line %d", path, number);
    }
    pl_buf_fini(&text);
    if (s != PL_OK) pl_key_list_fini(out);
    return s;
}

const char *pl_key_list_find(const pl_key_list *l, const pl_key *key)
{
    for (size_t i = 0; i < l->n; i++)
        if (pl_key_eq(&l->items[i].key, key)) return l->items[i].name;
    return NULL;
}

void pl_key_list_fini(pl_key_list *l)
{
    pl_free(l->items);
    *l = (pl_key_list){0};
}
