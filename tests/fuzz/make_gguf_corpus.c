/* Writes the seeds of the GGUF corpus into a folder: each version whole, and each way of being broken. Run once when
 * the ways change; the result is committed. */
#include <stdio.h>

#include "engine/base/file.h"
#include "tests/fixtures/fixtures.h"

static void put(const char *dir, const char *name, pl_buf file)
{
    char path[4096];
    pl_error err = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    pl_status s = pl_file_write(path, pl_buf_bytes(&file), 0644, &err);
    PL_ASSERT(s == PL_OK);
    pl_buf_fini(&file);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_gguf_corpus FOLDER\n");
        return 64;
    }
    char name[64];
    for (int version = 1; version <= 3; version++) {
        snprintf(name, sizeof name, "version-%d", version);
        put(argv[1], name, tiny_gguf(.version = version));
    }
    for (int i = 1; i < GGUF_BROKEN_COUNT; i++) {
        if (i == GGUF_KEY_TOO_LONG) continue; /* 64 KiB of nothing new */
        pl_buf file = tiny_gguf(.broken = (gguf_broken)i);
        snprintf(name, sizeof name, "broken-%02d", i);
        put(argv[1], name, file);
    }
    return 0;
}
