/* The words, letters and numbers of a chain's steps. */
#include "engine/sample/sampler.h"

/* As llama.cpp names them. */
static const struct {
    const char *name, *also;
    char letter;
} steps[PL_STEP_COUNT] = {
    [PL_STEP_END] = {"", "", 0},
    [PL_STEP_PENALTIES] = {"penalties", "penalties", 'e'},
    [PL_STEP_DRY] = {"dry", "dry", 'd'},
    [PL_STEP_TOP_N_SIGMA] = {"top_n_sigma", "top-n-sigma", 's'},
    [PL_STEP_TOP_K] = {"top_k", "top-k", 'k'},
    [PL_STEP_TYPICAL] = {"typ_p", "typical", 'y'},
    [PL_STEP_TOP_P] = {"top_p", "top-p", 'p'},
    [PL_STEP_MIN_P] = {"min_p", "min-p", 'm'},
    [PL_STEP_XTC] = {"xtc", "xtc", 'x'},
    [PL_STEP_TEMPERATURE] = {"temperature", "temp", 't'},
};

const uint8_t pl_sample_chain_default[PL_STEPS_MAX] = {
    PL_STEP_PENALTIES, PL_STEP_DRY,   PL_STEP_TOP_N_SIGMA, PL_STEP_TOP_K,       PL_STEP_TYPICAL,
    PL_STEP_TOP_P,     PL_STEP_MIN_P, PL_STEP_XTC,         PL_STEP_TEMPERATURE,
};

const char *pl_step_name(pl_step step)
{
    return steps[step].name;
}

static pl_status add_step(uint8_t chain[PL_STEPS_MAX], int *n, int step, pl_error *err)
{
    if (*n == PL_STEPS_MAX) return pl_fail(err, PL_ERR_INVALID, "samplers: more than %d of them", PL_STEPS_MAX);
    chain[(*n)++] = (uint8_t)step;
    return PL_OK;
}

static pl_status check_empty(int n, pl_error *err)
{
    return n > 0 ? PL_OK : pl_fail(err, PL_ERR_INVALID, "samplers: names none; \"temperature\" alone draws from all");
}

pl_status pl_sample_chain_parse(uint8_t chain[PL_STEPS_MAX], pl_str text, pl_error *err)
{
    uint8_t out[PL_STEPS_MAX] = {PL_STEP_END};
    int n = 0;
    for (size_t from = 0; from < text.size;) {
        size_t end = from;
        while (end < text.size && text.data[end] != ';' && text.data[end] != ',') end++;
        pl_str word = {text.data + from, end - from};
        from = end + 1;
        if (word.size == 0) continue;
        int step = 1;
        while (step < PL_STEP_COUNT && !pl_str_is(word, steps[step].name) && !pl_str_is(word, steps[step].also)) step++;
        if (step == PL_STEP_COUNT)
            return pl_fail(err, PL_ERR_INVALID,
                           "samplers: \"%.*s\" is not known; there are penalties, dry, top_n_sigma, top_k, typ_p, "
                           "top_p, min_p, xtc and temperature",
                           (int)(word.size < 64 ? word.size : 64), word.data);
        PL_TRY(add_step(out, &n, step, err));
    }
    PL_TRY(check_empty(n, err));
    memcpy(chain, out, sizeof out);
    return PL_OK;
}

pl_status pl_sample_chain_letters(uint8_t chain[PL_STEPS_MAX], pl_str letters, pl_error *err)
{
    uint8_t out[PL_STEPS_MAX] = {PL_STEP_END};
    int n = 0;
    for (size_t i = 0; i < letters.size; i++) {
        int step = 1;
        while (step < PL_STEP_COUNT && steps[step].letter != letters.data[i]) step++;
        if (step == PL_STEP_COUNT)
            return pl_fail(err, PL_ERR_INVALID, "samplers: the letter at %zu is none of e d s k y p m x t", i + 1);
        PL_TRY(add_step(out, &n, step, err));
    }
    PL_TRY(check_empty(n, err));
    memcpy(chain, out, sizeof out);
    return PL_OK;
}
