/* The three hashes of the project.
 *
 * Identity: BLAKE2b with 32 bytes (RFC 7693, through libsodium): what a tensor, a model header or a cache
 * file is known by between machines that need not trust each other's disks.
 * Keyed: SipHash-2-4 (Aumasson and Bernstein 2012, through libsodium): for tables whose keys come from outside.
 * Checksum: XXH3 with 64 bits (through libxxhash): against damage, never against an attacker. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"

#define PL_HASH_SIZE 32
typedef struct pl_hash {
    uint8_t b[PL_HASH_SIZE];
} pl_hash;

pl_hash pl_hash_of(pl_bytes data);
static inline bool pl_hash_eq(const pl_hash *a, const pl_hash *b)
{
    return memcmp(a->b, b->b, PL_HASH_SIZE) == 0;
}
/* 64 hexadecimal digits and a zero. */
void pl_hash_hex(const pl_hash *h, char out[2 * PL_HASH_SIZE + 1]);
bool pl_hash_parse(pl_str hex, pl_hash *out);

/* Piece by piece; state is opaque and on the caller's stack. */
typedef struct pl_hasher {
    _Alignas(64) uint8_t opaque[448];
} pl_hasher;
void pl_hasher_init(pl_hasher *h);
void pl_hasher_add(pl_hasher *h, pl_bytes data);
pl_hash pl_hasher_done(pl_hasher *h);

uint64_t pl_checksum(pl_bytes data, uint64_t seed);

/* Under the 128-bit key (k0, k1). Without it nobody can choose inputs that collide. */
uint64_t pl_keyed_hash(pl_bytes data, uint64_t k0, uint64_t k1);
