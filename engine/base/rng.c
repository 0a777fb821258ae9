#include "engine/base/rng.h"

#include <math.h>
#include <sys/random.h>

#include "engine/base/fmath.h"
#include "engine/base/status.h"
#include "engine/base/sys.h"

/* The output function of splitmix64 (Steele, Lea and Flood 2014): a bijection that mixes every bit into every other. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

#define GOLDEN 0x9E3779B97F4A7C15u /* 2^64 / phi: the step of splitmix64 */

void pl_rng_seed(pl_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) r->s[i] = mix(seed += GOLDEN);
}

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t pl_rng_u64(pl_rng *r)
{
    uint64_t *s = r->s;
    uint64_t out = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return out;
}

uint64_t pl_rng_below(pl_rng *r, uint64_t n)
{
    PL_ASSERT(n > 0);
    /* The lowest 2^64 mod n values would make some results likelier than others. */
    uint64_t rest = (0 - n) % n, x;
    do x = pl_rng_u64(r);
    while (x < rest);
    return x % n;
}

static double unit(uint64_t x)
{
    return (double)(x >> 11) * 0x1p-53;
}

double pl_rng_f64(pl_rng *r)
{
    return unit(pl_rng_u64(r));
}

double pl_rng_gauss(pl_rng *r)
{
    double x, y, q;
    do {
        x = 2 * pl_rng_f64(r) - 1;
        y = 2 * pl_rng_f64(r) - 1;
        q = x * x + y * y;
    } while (q >= 1 || q == 0);
    /* The second value, y * ..., is given up, so that the stream's state is the four words and nothing else. */
    return x * sqrt(-2 * pl_ln(q) / q);
}

double pl_draw(uint64_t seed, uint32_t choice, uint64_t position)
{
    uint64_t z = mix(seed + GOLDEN);
    z = mix(z ^ (choice + GOLDEN));
    z = mix(z ^ (position + GOLDEN));
    return unit(mix(z + GOLDEN));
}

uint64_t pl_random_seed(void)
{
    uint64_t seed;
    /* Up to 256 bytes come whole or not at all. Without them (a very early boot) the clock has to do. */
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = mix(pl_now_ns() ^ (uint64_t)pl_wall_us() << 20);
    return seed;
}
