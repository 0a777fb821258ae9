/* What the products of the IQ types share on x86: where things are in their packed blocks (pack.h), and the form in
 * which a block stands expanded. */
#pragma once

#include "engine/cpu/kernels.h"
#include "engine/types/iq_grid.h"

/* An expanded block of 16 rows: [64][16][4] bytes q + 64, then f32 d * f, then the int32 scales of each 16 or 32
 * columns. */
enum { EXPANDED_D = 64 * 64, EXPANDED_SCALES = EXPANDED_D + 64 };
_Static_assert(EXPANDED_SCALES + 16 * 64 == PL_CPU_EXPANDED, "an expanded block has the size that scratch has for it");

typedef enum kind { IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M } kind;

typedef struct format {
    kind kind;
    int bytes;   /* of a packed block of 16 rows */
    int entries; /* of the grid */
    bool fine;   /* a scale for each 16 columns, not 32 */
    float f;
} format;

static const format iq2_xxs = {IQ2_XXS, 1056, 256, false, 0.125f};
static const format iq2_xs = {IQ2_XS, 1184, 512, true, 0.125f};
static const format iq2_s = {IQ2_S, 1312, 1024, true, 0.125f};
static const format iq3_xxs = {IQ3_XXS, 1568, 256, false, 0.25f};
static const format iq3_s = {IQ3_S, 1760, 512, false, 1};
static const format iq1_s = {IQ1_S, 800, 2048, false, 0.125f};
static const format iq1_m = {IQ1_M, 896, 2048, true, 0.125f};

static inline __attribute__((always_inline)) const uint16_t *grid_of(const kind of)
{
    switch (of) {
    case IQ2_XXS: return pl_grid_iq2_xxs;
    case IQ2_XS: return pl_grid_iq2_xs;
    case IQ2_S: return pl_grid_iq2_s;
    case IQ3_XXS: return pl_grid_iq3_xxs;
    case IQ3_S: return pl_grid_iq3_s;
    default: return pl_grid_iq1;
    }
}

static inline __attribute__((always_inline)) bool is_by_4(const kind of)
{
    return of == IQ3_XXS || of == IQ3_S;
}
