/* Random numbers: a stream (xoshiro256**, Blackman and Vigna 2018) for simulation and tests, and draws that are
 * a pure function of their key, for sampling. Neither is for secrets; keys come from libsodium. */
#pragma once

#include <stdint.h>

typedef struct pl_rng {
    uint64_t s[4];
} pl_rng;

void pl_rng_seed(pl_rng *r, uint64_t seed);
uint64_t pl_rng_u64(pl_rng *r);
/* Below n, without bias; n > 0. */
uint64_t pl_rng_below(pl_rng *r, uint64_t n);
/* In [0, 1), 53 bits. */
double pl_rng_f64(pl_rng *r);
/* Mean 0, deviation 1 (polar method). */
double pl_rng_gauss(pl_rng *r);

/* In [0, 1), 53 bits: the draw for (seed, choice, position), the same on every machine (splitmix64 rounds). */
double pl_draw(uint64_t seed, uint32_t choice, uint64_t position);
/* 64 bits from the system, for seeds that nobody chose. */
uint64_t pl_random_seed(void);
