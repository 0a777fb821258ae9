/* Runs a fuzz target over files, and over seeded damage to each of them: the corpus's test where there is no libFuzzer.
 * Arguments: files and folders; before them optionally -n ROUNDS, how many damaged copies of each file to try [200]. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "tests/fuzz/fuzz.h"

static long rounds = 200;
static long n_files, n_inputs;

/* Each input is a block of exactly its size, so that a sanitizer sees a read behind it. */
static void try_copy(const uint8_t *data, size_t size)
{
    uint8_t *copy = pl_alloc(size);
    PL_ASSERT(copy);
    if (size) memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    n_inputs++;
    pl_free(copy);
}

/* What parsers trip over: a changed byte, an extreme number, a piece lost, doubled or moved, an early end. */
static size_t damage(pl_rng *r, uint8_t *data, size_t size)
{
    static const uint64_t extremes[] = {0,      1,          0x7F,       0x80,       0xFF,      0x7FFF,
                                        0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, INT64_MAX, UINT64_MAX};
    for (uint64_t n = 1 + pl_rng_below(r, 4); n && size; n--) {
        size_t at = (size_t)pl_rng_below(r, size), left = size - at,
               length = 1 + (size_t)pl_rng_below(r, left < 64 ? left : 64);
        switch (pl_rng_below(r, 6)) {
        case 0: data[at] = (uint8_t)pl_rng_u64(r); break;
        case 1: data[at] ^= (uint8_t)(1u << pl_rng_below(r, 8)); break;
        case 2: {
            uint64_t v = extremes[pl_rng_below(r, sizeof extremes / sizeof *extremes)];
            size_t width = (size_t)1 << pl_rng_below(r, 4);
            memcpy(data + at, &v, width < left ? width : left);
            break;
        }
        case 3:
            memmove(data + at, data + at + length, left - length);
            size -= length;
            break;
        case 4: memmove(data + pl_rng_below(r, size - length + 1), data + at, length); break;
        default: size = at;
        }
    }
    return size;
}

static void replay_file(const char *path)
{
    pl_buf file = {0};
    pl_error err = {0};
    if (pl_file_read(&file, path, (size_t)1 << 26, &err) != PL_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    n_files++;
    try_copy(file.data, file.size);
    pl_rng r;
    pl_rng_seed(&r, file.size);
    uint8_t *copy = pl_alloc(file.size);
    PL_ASSERT(copy);
    for (long i = 0; i < rounds; i++) {
        if (file.size) memcpy(copy, file.data, file.size);
        try_copy(copy, damage(&r, copy, file.size));
    }
    pl_free(copy);
    pl_buf_fini(&file);
}

static void replay(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        replay_file(path);
        return;
    }
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort);
    if (n < 0) {
        perror(path);
        exit(1);
    }
    for (int i = 0; i < n; i++) {
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.') replay(inner);
        free(names[i]);
    }
    free(names);
}

int main(int argc, char **argv)
{
    int i = 1;
    if (argc > 2 && strcmp(argv[1], "-n") == 0) {
        rounds = strtol(argv[2], NULL, 10);
        i = 3;
    }
    for (; i < argc; i++) replay(argv[i]);
    printf("%ld files, %ld inputs\n", n_files, n_inputs);
    return n_files ? 0 : 1;
}
