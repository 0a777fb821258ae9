/* Encodes floats as a tensor type and decodes them again, for bench/encode_error.
 *
 *   paceline-bench-encode TYPE COLUMNS [WEIGHTS] <floats >floats
 *
 * stdin has rows of COLUMNS float32, little-endian; WEIGHTS is a file of COLUMNS of them, the importance of each
 * column. The exit status is that of the command line when the type has no such encoder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/types/types.h"

static int refuse(const char *what)
{
    fprintf(stderr, "paceline-bench-encode: %s\n", what);
    return pl_status_exit_code(PL_ERR_INVALID);
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) return refuse("usage: paceline-bench-encode TYPE COLUMNS [WEIGHTS] <floats >floats");
    pl_type type;
    int64_t columns = strtoll(argv[2], NULL, 10);
    if (!pl_type_parse(pl_str_from(argv[1]), &type)) return refuse("no such type");
    const pl_type_info *t = pl_type_get(type);
    if (columns <= 0 || columns % t->block != 0) return refuse("the columns are not whole blocks");
    if (argc == 4 ? t->from_float_imatrix == NULL : t->from_float == NULL)
        return refuse("the type has no such encoder");
    pl_buf weights = {0};
    pl_error err = {0};
    if (argc == 4 && pl_file_read(&weights, argv[3], (size_t)columns * sizeof(float), &err) != PL_OK)
        return refuse(err.text);
    if (argc == 4 && weights.size != (size_t)columns * sizeof(float)) return refuse("the weights are not a row");
    float *row = pl_alloc((size_t)columns * sizeof *row);
    void *blocks = pl_alloc(pl_type_row_size(type, columns));
    if (row == NULL || blocks == NULL) return refuse("no memory");
    while (fread(row, sizeof *row, (size_t)columns, stdin) == (size_t)columns) {
        if (argc == 4)
            t->from_float_imatrix(row, blocks, columns, columns, (const float *)(const void *)weights.data);
        else
            t->from_float(row, blocks, columns);
        t->to_float(blocks, row, columns);
        if (fwrite(row, sizeof *row, (size_t)columns, stdout) != (size_t)columns) return refuse("cannot write");
    }
    pl_free(blocks);
    pl_free(row);
    pl_buf_fini(&weights);
    return 0;
}
