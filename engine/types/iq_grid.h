/* The grids of the IQ types: the sets of small vectors out of which their blocks choose.
 *
 * An entry is kept as codes, the places of its values in the grid's set of values, which is a quarter of the bytes and
 * what the kernels' tables are made of:
 *
 *   grid      entries  values per entry  bits of a code  values by code
 *   iq2_xxs   256      8                 2               8 25 43
 *   iq2_xs    512      8                 2               8 25 43
 *   iq2_s     1024     8                 2               8 25 43
 *   iq3_xxs   256      4                 4               4 12 20 28 36 44 52 62
 *   iq3_s     512      4                 4               1 3 5 7 9 11 13 15
 *   iq1       2048     8                 2               -1 0 1
 *
 * The code of value j stands at bit 2 j, or at bit 4 j, of an entry. */
#pragma once

#include <stdint.h>

extern const uint16_t pl_grid_iq2_xxs[256], pl_grid_iq2_xs[512], pl_grid_iq2_s[1024];
extern const uint16_t pl_grid_iq3_xxs[256], pl_grid_iq3_s[512];
extern const uint16_t pl_grid_iq1[2048];

/* The values of the codes: of the three IQ2 grids, of IQ3_XXS, of IQ3_S, and of IQ1. */
extern const int8_t pl_values_iq2[4], pl_values_iq3_xxs[8], pl_values_iq3_s[8], pl_values_iq1[4];
