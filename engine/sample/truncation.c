/* Which tokens stay in the draw. Heaps, because a full sort of 150,000 candidates costs more than the model's last
 * layer of a small model, and because the order is total, so the result does not depend on the algorithm. */
#include <math.h>

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

/* Takes the best out of a heap of n. */
static pl_candidate pop_best(pl_candidate *c, int32_t n)
{
    pl_candidate best = c[0];
    c[0] = c[n - 1];
    sink(c, n - 1, 0, true);
    return best;
}

/* A heap of the k best, worst at the root, to a list, best first. */
static void sort_heap(pl_candidate *out, int32_t k)
{
    for (int32_t left = k - 1; left > 0; left--) { /* the worst goes to the end */
        pl_candidate worst = out[0];
        out[0] = out[left];
        out[left] = worst;
        sink(out, left, 0, false);
    }
}

int32_t pl_best_of(const float *logits, int32_t n)
{
    /* The maxima of lanes first, which compilers make vectors of: a vocabulary is searched after each token. */
    enum { LANES = 16 };
    float lanes[LANES], max = -INFINITY;
    int32_t i = 0;
    for (int j = 0; j < LANES; j++) lanes[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
    for (int j = 0; j < LANES; j++) max = lanes[j] > max ? lanes[j] : max;
    for (; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (i = 0; logits[i] != max;) i++;
    return i;
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
    sort_heap(out, k);
}

/* --- the chain's state --- */

static pl_candidate *other(const pl_chain *h)
{
    return h->c == h->a ? h->b : h->a;
}

void pl_chain_list(pl_chain *h)
{
    if (h->c) return;
    h->c = h->a;
    for (int32_t i = 0; i < h->n; i++) h->c[i] = (pl_candidate){h->logits[i], i};
    h->sorted = false;
}

void pl_chain_refresh(pl_chain *h)
{
    if (!h->c) {
        h->max = h->logits[pl_best_of(h->logits, h->n)];
        return;
    }
    h->max = -INFINITY;
    for (int32_t i = 0; i < h->n; i++) {
        h->c[i].logit = h->logits[h->c[i].id];
        if (h->c[i].logit > h->max) h->max = h->c[i].logit;
    }
    h->sorted = false;
}

double pl_chain_sum(const pl_chain *h)
{
    const pl_candidate *c = h->c;
    const float max = h->max, scale = h->scale;
    double sum = 0;
    for (int32_t i = 0; i < h->n; i++) sum += (double)pl_expf((c[i].logit - max) / scale);
    return sum;
}

double pl_chain_entropy(const pl_chain *h)
{
    double sum = pl_chain_sum(h), entropy = 0;
    for (int32_t i = 0; i < h->n; i++) {
        double p = (double)pl_chain_weight(h, i) / sum;
        if (p > 0) entropy -= p * pl_ln(p);
    }
    return entropy;
}

/* The k best of the list, best first. */
static void sort_best(pl_chain *h, int32_t k)
{
    pl_candidate *out = other(h);
    memcpy(out, h->c, (size_t)k * sizeof *out);
    heapify(out, k, false);
    for (int32_t i = k; i < h->n; i++) {
        if (!pl_candidate_better(h->c[i], out[0])) continue;
        out[0] = h->c[i];
        sink(out, k, 0, false);
    }
    sort_heap(out, k);
    h->c = out;
    h->n = k;
    h->sorted = true;
}

/* --- what stays --- */

void pl_keep_top_k(pl_chain *h, int32_t k)
{
    if (k <= 0 || k >= h->n) return;
    if (h->c && h->sorted) {
        h->n = k;
    } else if (h->c) {
        sort_best(h, k);
    } else {
        h->c = h->a;
        h->n = k;
        h->sorted = true;
        pl_best_k(h->logits, h->n_vocab, k, h->c);
    }
}

void pl_keep_top_p(pl_chain *h, float top_p)
{
    if (top_p >= 1) return;
    pl_chain_list(h);
    double sum = pl_chain_sum(h), kept = 0;
    int32_t k = 0;
    if (h->sorted) {
        do kept += (double)pl_chain_weight(h, k);
        while (++k < h->n && kept < (double)top_p * sum);
    } else {
        pl_candidate *heap = h->c, *out = other(h);
        int32_t n = h->n;
        heapify(heap, n, true);
        h->c = out;
        do {
            out[k] = pop_best(heap, n - k);
            kept += (double)pl_chain_weight(h, k);
        } while (++k < n && kept < (double)top_p * sum);
        h->sorted = true;
    }
    h->n = k;
}

void pl_keep_min_p(pl_chain *h, float min_p)
{
    if (min_p <= 0) return;
    pl_chain_list(h);
    int32_t k = 0;
    for (int32_t i = 0; i < h->n; i++) {
        if (pl_chain_weight(h, i) >= min_p) h->c[k++] = h->c[i];
    }
    h->n = k;
}

void pl_keep_top_n_sigma(pl_chain *h, float n)
{
    if (n <= 0) return;
    pl_chain_list(h);
    double sum = 0, squares = 0;
    int32_t finite = 0, k = 0;
    for (int32_t i = 0; i < h->n; i++) {
        if (h->c[i].logit == -INFINITY) continue;
        sum += (double)h->c[i].logit;
        finite++;
    }
    double mean = sum / finite;
    for (int32_t i = 0; i < h->n; i++) {
        if (h->c[i].logit == -INFINITY) continue;
        double d = (double)h->c[i].logit - mean;
        squares += d * d;
    }
    double least = (double)h->max - (double)n * sqrt(squares / finite);
    for (int32_t i = 0; i < h->n; i++) {
        if ((double)h->c[i].logit >= least) h->c[k++] = h->c[i];
    }
    h->n = k;
}

void pl_keep_typical(pl_chain *h, float typical_p)
{
    if (typical_p <= 0 || typical_p >= 1) return;
    pl_chain_list(h);
    double sum = pl_chain_sum(h), entropy = pl_chain_entropy(h), kept = 0;
    /* A heap by nearness; the logits are got back by their ids. */
    pl_candidate *heap = h->c, *out = other(h);
    int32_t n = h->n, k = 0;
    for (int32_t i = 0; i < n; i++) {
        double p = (double)pl_chain_weight(h, i) / sum;
        heap[i].logit = p > 0 ? -(float)fabs(-pl_ln(p) - entropy) : -INFINITY;
    }
    heapify(heap, n, true);
    h->c = out;
    do {
        out[k] = pop_best(heap, n - k);
        out[k].logit = h->logits[out[k].id];
        kept += (double)pl_chain_weight(h, k);
    } while (++k < n && kept < (double)typical_p * sum);
    h->n = k;
    pl_chain_refresh(h);
}

void pl_exclude_top(pl_chain *h, float threshold)
{
    if (threshold > 0.5f) return;
    pl_chain_list(h);
    double sum = pl_chain_sum(h);
    int32_t n_top = 0, last = 0, k = 0;
    for (int32_t i = 0; i < h->n; i++) {
        if ((double)pl_chain_weight(h, i) < (double)threshold * sum) continue;
        if (n_top++ == 0 || pl_candidate_better(h->c[last], h->c[i])) last = i;
    }
    if (n_top < 2) return;
    for (int32_t i = 0; i < h->n; i++) {
        if (i == last || (double)pl_chain_weight(h, i) < (double)threshold * sum) h->c[k++] = h->c[i];
    }
    bool sorted = h->sorted;
    h->n = k;
    pl_chain_refresh(h);
    h->sorted = sorted; /* their order is what it was */
}

void pl_keep_surprise(pl_chain *h, double mu)
{
    pl_chain_list(h);
    double sum = pl_chain_sum(h);
    int32_t k = 0;
    pl_candidate best = h->c[0];
    for (int32_t i = 0; i < h->n; i++) {
        double p = (double)pl_chain_weight(h, i) / sum;
        if (pl_candidate_better(h->c[i], best)) best = h->c[i];
        if (p > 0 && -pl_ln(p) <= mu * pl_ln(2)) h->c[k++] = h->c[i];
    }
    if (k == 0) h->c[k++] = best;
    h->n = k;
}

void pl_keep_zipf(pl_chain *h, double mu)
{
    enum { M = 100 }; /* the paper's: the exponent is estimated from so many */
    int32_t n = h->n, m = n < M ? n : M;
    if (m < 2) return;
    pl_chain_list(h);
    pl_chain all = *h;
    sort_best(h, m);
    double tb = 0, tt = 0;
    for (int32_t i = 0; i + 1 < m; i++) {
        double p = (double)pl_chain_weight(h, i), q = (double)pl_chain_weight(h, i + 1);
        if (q <= 0) break;
        double t = pl_ln((double)(i + 2) / (i + 1));
        tb += t * pl_ln(p / q);
        tt += t * t;
    }
    double s = tt > 0 ? tb / tt : 0, e = s - 1, k = 1;
    if (s > 0) {
        /* e / (1 - n^-e), whose limit at 0 is 1 / ln n. */
        double share = fabs(e) < 1e-9 ? 1 / pl_ln((double)n) : e / (1 - pl_pow((double)n, -e));
        k = pl_pow(share * pl_pow(2, mu), 1 / s);
    } else {
        k = n; /* all are equally likely */
    }
    *h = all;
    if (k < n) pl_keep_top_k(h, k < 1 ? 1 : (int32_t)k);
}
