/* Writes the seeds of the envelope corpus into a folder: one valid message of every kind. Run once when the messages
 * change; the result is committed. */
#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "tests/fixtures/messages.h"
#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_envelope_corpus FOLDER\n");
        return 64;
    }
    for (int body = MESSAGE_KIND_FIRST; body <= (int)MESSAGE_KIND_LAST; body++) {
        message v = message_valid(body);
        pl_buf out = {0};
        pl_error err = {0};
        char path[4096];
        pl_buf_add_u8(&out, (uint8_t)v.n_parts);
        for (size_t i = 0; i < v.n_parts; i++) pl_buf_add_u16(&out, (uint16_t)v.part_sizes[i]);
        size_t n = pl_envelope_size(v.m);
        PL_ASSERT(pl_buf_reserve(&out, n) && !out.failed);
        pl_envelope_pack(v.m, out.data + out.size);
        out.size += n;
        for (int tight = 0; tight < 2; tight++) {
            out.data[0] = (uint8_t)(v.n_parts | (tight ? 0x80 : 0));
            snprintf(path, sizeof path, "%s/%s%s", argv[1], pl_envelope_kind(v.m), tight ? "-tight" : "");
            pl_status s = pl_file_write(path, pl_buf_bytes(&out), 0644, &err);
            PL_ASSERT(s == PL_OK);
        }
        pl_buf_fini(&out);
    }
    return 0;
}
