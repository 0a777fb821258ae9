#include <float.h>

#include "engine/base/fmath.h"
#include "engine/sample/sample_impl.h"

/* A penalty must not make a logit infinite: minus infinity means "banned", which stays. */
static float bounded(float x, float before)
{
    if (before == -INFINITY) return before;
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

void pl_penalize_repeats(float *logits, int32_t n, const pl_sample_params *p, const int32_t *tokens, int32_t n_tokens,
                         uint32_t *count)
{
    for (int32_t i = 0; i < n_tokens; i++)
        if (tokens[i] >= 0 && tokens[i] < n) count[tokens[i]]++;
    for (int32_t i = 0; i < n_tokens; i++) {
        int32_t t = tokens[i];
        if (t < 0 || t >= n || count[t] == 0) continue;
        float x = logits[t] > 0 ? logits[t] / p->repeat_penalty : logits[t] * p->repeat_penalty;
        x -= (float)count[t] * p->frequency_penalty + p->presence_penalty;
        logits[t] = bounded(x, logits[t]);
        count[t] = 0;
    }
}

/* The lengths of the longest common prefixes of the whole and of each of its ends (Gusfield 1997, section 1.4), with
 * the text read backwards: so of common suffixes. z[0] is not used. */
static void common_suffixes(const int32_t *tokens, int32_t n, int32_t *z)
{
#define BACK(i) tokens[n - 1 - (i)]
    int32_t left = 0, right = 0;
    for (int32_t i = 1; i < n; i++) {
        int32_t k = i < right ? (z[i - left] < right - i ? z[i - left] : right - i) : 0;
        while (i + k < n && BACK(k) == BACK(i + k)) k++;
        z[i] = k;
        if (i + k > right) {
            left = i;
            right = i + k;
        }
    }
#undef BACK
}

void pl_penalize_dry(float *logits, int32_t n, const pl_sample_params *p, const int32_t *tokens, int32_t n_tokens,
                     int32_t limit, int32_t *scratch, uint32_t *longest)
{
    if (n_tokens < 2 || limit < 1 || limit < p->dry_allowed_length) return;
    common_suffixes(tokens, n_tokens, scratch);
    for (int32_t i = 1; i < n_tokens; i++) {
        int32_t length = scratch[i] < limit ? scratch[i] : limit, t = tokens[n_tokens - i];
        if (length < 1 || length < p->dry_allowed_length || t < 0 || t >= n) continue;
        if (longest[t] < (uint32_t)length) longest[t] = (uint32_t)length;
    }
    for (int32_t i = 1; i < n_tokens; i++) {
        int32_t t = tokens[n_tokens - i];
        if (t < 0 || t >= n || longest[t] == 0) continue;
        double over = (double)longest[t] - p->dry_allowed_length;
        double penalty = (double)p->dry_multiplier * pl_pow((double)p->dry_base, over);
        logits[t] = bounded(logits[t] - (penalty < 1e30 ? (float)penalty : 1e30f), logits[t]);
        longest[t] = 0;
    }
}

int32_t pl_dry_limit(const pl_vocab *v, const pl_sample_params *p, const int32_t *tokens, int32_t n_tokens,
                     pl_buf *text)
{
    if (!v || p->n_breakers == 0) return n_tokens;
    /* Backwards, token by token. Of the text behind, only what a breaker can still reach into is kept, and which of the
     * tokens its bytes are of: ends[k] is the number of tokens behind the token of byte k. */
    uint8_t behind[PL_BREAKER_BYTES_MAX];
    int32_t after[PL_BREAKER_BYTES_MAX];
    size_t n_behind = 0;
    for (int32_t i = 0; i < n_tokens; i++) {
        pl_buf_reset(text);
        pl_detokenize(v, tokens[n_tokens - 1 - i], true, text);
        size_t own = text->size;
        if (own == 0) continue;
        if (n_behind > 0) pl_buf_add(text, behind, n_behind);
        int32_t limit = -1;
        for (int32_t k = 0; k < p->n_breakers; k++) {
            pl_str b = p->breakers[k];
            for (size_t at = 0; at < own && at + b.size <= text->size; at++) {
                if (memcmp(text->data + at, b.data, b.size) != 0) continue;
                size_t last = at + b.size - 1;
                int32_t behind_it = last < own ? i : after[last - own];
                if (limit < 0 || behind_it < limit) limit = behind_it;
            }
        }
        if (limit >= 0) return limit;
        size_t keep = text->size < sizeof behind ? text->size : sizeof behind;
        for (size_t k = keep; k-- > 0;) after[k] = k < own ? i : after[k - own];
        memcpy(behind, text->data, keep);
        n_behind = keep;
    }
    return n_tokens;
}
