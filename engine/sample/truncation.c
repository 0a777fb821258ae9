/* Which tokens stay in the draw. Heaps, because a full sort of 150,000 candidates costs more than the model's last
 * layer of a small model, and because the order is total, so the result does not depend on the algorithm. */
#include "engine/base/fmath.h"
#include "engine/sample/sample_impl.h"

/* Lets c[i] sink in a heap whose root is the best (best_root) or the worst candidate. */
static void sink(pl_candidate *c, int32_t n, int32_t i, bool best_root)
{
    pl_candidate x = c[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && pl_candidate_better(c[child + 1], c[child]) == best_root) child++;
        if (pl_candidate_better(c[child], x) != best_root) break;
        c[i] = c[child];
    }
    c[i] = x;
}

static void heapify(pl_candidate *c, int32_t n, bool best_root)
{
    for (int32_t i = n / 2 - 1; i >= 0; i--) sink(c, n, i, best_root);
}

void pl_best_k(const float *logits, int32_t n, int32_t k, pl_candidate *out)
{
    for (int32_t i = 0; i < k; i++) out[i] = (pl_candidate){logits[i], i};
    heapify(out, k, false);
    for (int32_t i = k; i < n; i++) {
        if (logits[i] <= out[0].logit) continue; /* a later id loses among equals */
        out[0] = (pl_candidate){logits[i], i};
        sink(out, k, 0, false);
    }
    for (int32_t left = k - 1; left > 0; left--) { /* the worst goes to the end */
        pl_candidate worst = out[0];
        out[0] = out[left];
        out[left] = worst;
        sink(out, left, 0, false);
    }
}

int32_t pl_keep_top_p(pl_candidate *c, int32_t n, bool sorted, float max, float top_p, pl_candidate *out)
{
    double sum = 0, kept = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)pl_expf(c[i].logit - max);
    if (!sorted) heapify(c, n, true);
    int32_t k = 0;
    do {
        if (sorted) {
            out[k] = c[k];
        } else {
            out[k] = c[0];
            c[0] = c[n - 1 - k];
            sink(c, n - 1 - k, 0, true);
        }
        kept += (double)pl_expf(out[k++].logit - max);
    } while (k < n && kept < (double)top_p * sum);
    return k;
}

int32_t pl_keep_min_p(pl_candidate *c, int32_t n, float max, float min_p)
{
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) {
        if (pl_expf(c[i].logit - max) >= min_p) c[k++] = c[i];
    }
    return k;
}
