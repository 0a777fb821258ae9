#include "engine/base/hash.h"

#include <sodium.h>
#include <xxhash.h>

_Static_assert(sizeof(crypto_generichash_state) <= sizeof(pl_hasher), "pl_hasher is too small");
_Static_assert(_Alignof(pl_hasher) >= _Alignof(crypto_generichash_state), "pl_hasher is aligned too loosely");

/* The functions of libsodium that are used here need no sodium_init: they have no state, and cannot fail for these
 * sizes. */

static crypto_generichash_state *state(pl_hasher *h)
{
    return (crypto_generichash_state *)(void *)h->opaque;
}

pl_hash pl_hash_of(pl_bytes data)
{
    pl_hash out;
    crypto_generichash(out.b, sizeof out.b, data.data, data.size, NULL, 0);
    return out;
}

void pl_hash_hex(const pl_hash *h, char out[2 * PL_HASH_SIZE + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < PL_HASH_SIZE; i++) {
        out[2 * i] = digits[h->b[i] >> 4];
        out[2 * i + 1] = digits[h->b[i] & 15];
    }
    out[2 * PL_HASH_SIZE] = 0;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool pl_hash_parse(pl_str hex, pl_hash *out)
{
    if (hex.size != 2 * PL_HASH_SIZE) return false;
    pl_hash h;
    for (size_t i = 0; i < PL_HASH_SIZE; i++) {
        int high = digit(hex.data[2 * i]), low = digit(hex.data[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        h.b[i] = (uint8_t)(high << 4 | low);
    }
    *out = h;
    return true;
}

void pl_hasher_init(pl_hasher *h)
{
    crypto_generichash_init(state(h), NULL, 0, PL_HASH_SIZE);
}

void pl_hasher_add(pl_hasher *h, pl_bytes data)
{
    crypto_generichash_update(state(h), data.data, data.size);
}

pl_hash pl_hasher_done(pl_hasher *h)
{
    pl_hash out;
    crypto_generichash_final(state(h), out.b, sizeof out.b);
    return out;
}

uint64_t pl_checksum(pl_bytes data, uint64_t seed)
{
    return XXH3_64bits_withSeed(data.data, data.size, seed);
}

uint64_t pl_keyed_hash(pl_bytes data, uint64_t k0, uint64_t k1)
{
    uint8_t key[crypto_shorthash_KEYBYTES], out[crypto_shorthash_BYTES];
    pl_put_u64(key, k0);
    pl_put_u64(key + 8, k1);
    crypto_shorthash(out, data.data, data.size, key);
    return pl_get_u64(out);
}
