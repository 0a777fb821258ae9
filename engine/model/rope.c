#include "engine/model/rope.h"

#include <inttypes.h>
#include <math.h>

#include "engine/base/alloc.h"
#include "engine/base/fmath.h"

#define PI        3.14159265358979323846
#define ANGLE_MAX (double)(1 << 30) /* pl_sin's domain */

/* YaRN (Peng et al. 2023, "Find correction dim"): the couple that turns n_turns times over the original context. */
static double turns_to_couple(const pl_rope_params *p, double n_turns)
{
    return p->n_rot * pl_ln(p->n_ctx_orig / (n_turns * 2.0 * PI)) / (2.0 * pl_ln((double)p->freq_base));
}

/* floor and ceil without libm. Anything beyond a billion is far outside a head, where the caller clamps. */
static double floor_of(double x)
{
    if (!(x > -1e9)) return -1e9;
    if (!(x < 1e9)) return 1e9;
    double t = (double)(int32_t)x;
    return t > x ? t - 1 : t;
}
static double ceil_of(double x)
{
    return -floor_of(-x);
}

pl_status pl_rope_table_init(pl_rope_table *t, const pl_rope_params *p, const float *factors, int32_t n_ctx,
                             pl_error *err)
{
    int32_t n = p->n_rot / 2;
    *t = (pl_rope_table){.n = n, .magnitude = (double)p->attn_factor};
    if (n == 0) return PL_OK;
    t->freq = pl_calloc((size_t)n, sizeof *t->freq);
    if (t->freq == NULL) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %" PRId32 " rotary frequencies", n);

    bool yarn = p->scaling == PL_ROPE_SCALING_YARN;
    double low = 0, high = 0;
    if (yarn) {
        low = turns_to_couple(p, (double)p->beta_fast);
        high = turns_to_couple(p, (double)p->beta_slow);
        if (!p->exact_ramp) {
            low = floor_of(low);
            high = ceil_of(high);
        }
        if (low < 0) low = 0;
        if (high > p->n_rot - 1) high = p->n_rot - 1;
        /* Stretched attention is a little too flat: the paper's temperature, on both of q and k. */
        double ln_factor = pl_ln((double)p->factor);
        if (p->ext_factor != 0.0f) t->magnitude *= 1.0 + 0.1 * ln_factor;
        if (p->log_multiplier != 0.0f) t->magnitude /= 1.0 + 0.1 * (double)p->log_multiplier * ln_factor;
    }

    for (int32_t i = 0; i < n; i++) {
        double freq = pl_pow((double)p->freq_base, -2.0 * i / p->n_rot);
        if (factors) {
            if (!(factors[i] > 0.0f) || !isfinite(factors[i])) {
                pl_rope_table_fini(t);
                return pl_fail(err, PL_ERR_FORMAT,
                               "tensor rope_freqs.weight: element %" PRId32 " is not a positive number", i);
            }
            freq /= (double)factors[i];
        }
        double stretched = freq / (double)p->factor;
        if (yarn) {
            /* Fast couples keep their frequency, slow ones are stretched, a ramp in between ("NTK by parts"). */
            double width = high - low > 0.001 ? high - low : 0.001;
            double y = (i - low) / width;
            double keep = (1.0 - (y < 0 ? 0 : y > 1 ? 1 : y)) * (double)p->ext_factor;
            stretched = stretched * (1.0 - keep) + freq * keep;
        }
        t->freq[i] = stretched;
        if (!(stretched * n_ctx < ANGLE_MAX && stretched * n_ctx > -ANGLE_MAX)) {
            pl_rope_table_fini(t);
            return pl_fail(err, PL_ERR_FORMAT, "rotary frequency %" PRId32 " turns too fast for %" PRId32 " positions",
                           i, n_ctx);
        }
    }
    return PL_OK;
}

void pl_rope_table_fini(pl_rope_table *t)
{
    pl_free(t->freq);
    *t = (pl_rope_table){0};
}

void pl_rope_table_row(const pl_rope_table *t, int32_t pos, float *out)
{
    for (int32_t i = 0; i < t->n; i++) {
        double angle = pos * t->freq[i];
        out[2 * i] = (float)(pl_cos(angle) * t->magnitude);
        out[2 * i + 1] = (float)(pl_sin(angle) * t->magnitude);
    }
}
