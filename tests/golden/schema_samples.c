/* Random texts of the grammars that schemas become: reads a corpus (an array of {name, schema}) and prints a JSON array
 * of {name, texts}. schema.py gives them to an independent validator.
 *
 *   schema-samples CORPUS [COUNT [SEED]] */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/sample/grammar.h"
#include "engine/sample/json_schema.h"

#define TEXT_MAX 4000

/* One text, by steps that lean towards its end. False: it became too long. */
static bool draw_text(pl_grammar_run *r, pl_rng *rng, pl_buf *out)
{
    int32_t at = pl_grammar_start(r);
    while (out->size < TEXT_MAX) {
        uint8_t may[256], ends[256];
        int n = 0, n_ends = 0;
        for (int b = 0; b < 256; b++) {
            if (pl_grammar_step(r, at, (uint8_t)b) == PL_PLACE_DEAD) continue;
            may[n++] = (uint8_t)b;
            if (strchr("\"}]", b) && b) ends[n_ends++] = (uint8_t)b;
        }
        if (pl_grammar_accepts(r, at) && (n == 0 || pl_rng_below(rng, 3) == 0)) return true;
        if (n == 0) return false;
        bool end = n_ends > 0 && pl_rng_below(rng, 100) < 10 + out->size / 4;
        uint8_t b = end ? ends[pl_rng_below(rng, (uint64_t)n_ends)] : may[pl_rng_below(rng, (uint64_t)n)];
        pl_buf_add_u8(out, b);
        at = pl_grammar_step(r, at, b);
    }
    return false;
}

static pl_status draw_texts(const pl_json *schema, int count, pl_rng *rng, pl_json *texts, pl_error *err)
{
    pl_buf gbnf = {0}, text = {0};
    pl_grammar *g = NULL;
    pl_grammar_run *r = NULL;
    pl_status s = pl_json_schema_grammar(schema, &gbnf, err);
    if (s == PL_OK) s = pl_grammar_new(&g, pl_buf_str(&gbnf), err);
    if (s == PL_OK) s = pl_grammar_run_new(&r, g, 0, err);
    for (int i = 0, tries = 0; s == PL_OK && i < count && tries < 50 * count; tries++) {
        pl_buf_reset(&text);
        pl_grammar_tidy(r);
        if (!draw_text(r, rng, &text)) continue;
        pl_json_append(texts, pl_json_string(pl_buf_str(&text)));
        i++;
    }
    pl_grammar_run_free(r);
    pl_grammar_free(g);
    pl_buf_fini(&gbnf);
    pl_buf_fini(&text);
    return s;
}

int main(int argc, char **argv)
{
    pl_buf file = {0}, out = {0};
    pl_json *corpus = NULL, *all = pl_json_array();
    pl_error err = {0};
    pl_rng rng;
    int count = argc > 2 ? atoi(argv[2]) : 3;
    pl_rng_seed(&rng, argc > 3 ? strtoull(argv[3], NULL, 10) : 1);
    if (argc < 2 || pl_file_read(&file, argv[1], 1 << 24, &err) != PL_OK ||
        pl_json_parse(&corpus, pl_buf_str(&file), &err) != PL_OK) {
        fprintf(stderr, "schema-samples: %s\n", argc < 2 ? "which corpus?" : err.text);
        return 1;
    }
    for (size_t i = 0; i < pl_json_size(corpus); i++) {
        const pl_json *c = pl_json_at(corpus, i);
        pl_json *texts = pl_json_array(), *v = pl_json_object();
        pl_status s = draw_texts(pl_json_get(c, "schema"), count, &rng, texts, &err);
        if (s != PL_OK) fprintf(stderr, "%.*s: %s\n", PL_STR_ARG(pl_json_str(pl_json_get(c, "name"))), err.text);
        pl_json_set(v, "name", pl_json_ref(pl_json_get(c, "name")));
        pl_json_set(v, "texts", texts);
        pl_json_append(all, v);
    }
    if (pl_json_write(all, 1, &out, &err) == PL_OK) fwrite(out.data, 1, out.size, stdout);
    putchar('\n');
    pl_json_free(all);
    pl_json_free(corpus);
    pl_buf_fini(&file);
    pl_buf_fini(&out);
    return 0;
}
