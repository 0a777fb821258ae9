#include <float.h>

#include "engine/sample/sample_impl.h"

void pl_penalize_repeats(float *logits, int32_t n, float penalty, const int32_t *tokens, int32_t n_tokens,
                         uint32_t *seen, uint32_t mark)
{
    for (int32_t i = 0; i < n_tokens; i++) {
        int32_t t = tokens[i];
        if (t < 0 || t >= n || seen[t] == mark) continue;
        seen[t] = mark;
        float x = logits[t] > 0 ? logits[t] / penalty : logits[t] * penalty;
        logits[t] = x > FLT_MAX ? FLT_MAX : x; /* a penalty far below 1 must not make it infinite */
    }
}
