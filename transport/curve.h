/* Key pairs for links: made, read and written. The text of a key is 64 hexadecimal digits.
 *
 * Files: secret key mode 0600, public key beside it with the ending .pub; a list of allowed peers has one public key
 * per line and a name behind it,
 * `#` begins a comment. */
#pragma once

#include "engine/base/buf.h"
#include "transport/link.h"

PL_MUST_CHECK pl_status pl_key_pair_new(pl_key *public_key, pl_key *secret_key, pl_error *err);
PL_MUST_CHECK pl_status pl_key_public_of(pl_key *public_key, const pl_key *secret_key, pl_error *err);
void pl_key_text(const pl_key *k, char out[2 * PL_KEY_SIZE + 1]);
PL_MUST_CHECK pl_status pl_key_parse(pl_key *out, pl_str text, pl_error *err);
static inline bool pl_key_eq(const pl_key *a, const pl_key *b)
{
    return memcmp(a->b, b->b, PL_KEY_SIZE) == 0;
}

/* PL_ERR_NOT_FOUND when there is none; a secret that others can read is refused. */
PL_MUST_CHECK pl_status pl_key_load(pl_key *public_key, pl_key *secret_key, const char *path, pl_error *err);
/* Refuses to overwrite unless force. */
PL_MUST_CHECK pl_status pl_key_save(const pl_key *public_key, const pl_key *secret_key, const char *path, bool force,
                                    pl_error *err);

typedef struct pl_key_list {
    struct {
        pl_key key;
        char name[64];
    } * items;
    size_t n;
} pl_key_list;
PL_MUST_CHECK pl_status pl_key_list_load(pl_key_list *out, const char *path, pl_error *err);
PL_MUST_CHECK pl_status pl_key_list_add(pl_key_list *l, const pl_key *key, const char *name, pl_error *err);
const char *pl_key_list_find(const pl_key_list *l, const pl_key *key); /* its name, or NULL */
void pl_key_list_fini(pl_key_list *l);
