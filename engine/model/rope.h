/* Rotary position tables (Su et al. 2021): the angles of one position, with scaling, as (cos, sin) pairs.
 *
 * Computed with engine/base/fmath in double precision, so that every machine gives the same bits. */
#pragma once

#include "engine/model/hparams.h"

typedef struct pl_rope_table {
    double *freq;     /* [n_rot/2]: radians per position */
    int32_t n;        /* n_rot/2 */
    double magnitude; /* YaRN's factor on cos and sin, else 1 */
} pl_rope_table;

/* factors: rope_freqs.weight [n_rot/2], by which each frequency is divided, or NULL. n_ctx: positions stay below it.
 * PL_ERR_FORMAT when a factor is not a positive number, or an angle leaves the range in which sine and cosine are exact
 * enough. */
PL_MUST_CHECK pl_status pl_rope_table_init(pl_rope_table *t, const pl_rope_params *p, const float *factors,
                                           int32_t n_ctx, pl_error *err);
void pl_rope_table_fini(pl_rope_table *t);
/* n_rot floats for this position. */
void pl_rope_table_row(const pl_rope_table *t, int32_t pos, float *out);
