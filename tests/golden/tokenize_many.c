/* tokenize-many MODEL.gguf: texts from standard input, each a length (u32) and its bytes; their ids to standard output, each
 * a count (u32) and that many i32. Control tokens in the texts are parsed; nothing is added. For compare_tokenizers.py. */
#include <stdio.h>

#include "engine/base/buf.h"
#include "engine/text/vocab.h"

static int fail(const pl_error *err)
{
    fprintf(stderr, "tokenize-many: %s\n", err->text);
    return 1;
}

int main(int argc, char **argv)
{
    pl_error err = {0};
    pl_gguf *g;
    pl_vocab *v;
    pl_buf text = {0}, out = {0};
    uint8_t head[4];
    if (argc != 2) return 64;
    if (pl_gguf_open(&g, argv[1], &err) != PL_OK || pl_vocab_open(&v, g, &err) != PL_OK) return fail(&err);
    while (fread(head, 1, 4, stdin) == 4) {
        size_t n = pl_get_u32(head);
        pl_buf_reset(&text);
        pl_buf_reset(&out);
        if (!pl_buf_reserve(&text, n + 1) || (n && fread(text.data, 1, n, stdin) != n)) return 1;
        pl_buf_add_u32(&out, 0);
        if (pl_tokenize(v, (pl_str){(char *)text.data, n}, false, true, &out, &err) != PL_OK) return fail(&err);
        pl_put_u32(out.data, (uint32_t)(out.size / 4 - 1));
        fwrite(out.data, 1, out.size, stdout);
    }
    pl_buf_fini(&text);
    pl_buf_fini(&out);
    pl_vocab_close(v);
    pl_gguf_close(g);
    return 0;
}
