#include "transport/envelope.h"

pl_status pl_msg_of_envelope(pl_msg **out, const Paceline__Envelope *m, pl_error *err)
{
    pl_msg *msg;
    *out = NULL;
    PL_TRY(pl_msg_new(&msg, err));
    msg->header = pl_part_new(pl_envelope_size(m));
    if (!msg->header) {
        pl_msg_free(msg);
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a %s", pl_envelope_kind(m));
    }
    pl_envelope_pack(m, msg->header->data);
    *out = msg;
    return PL_OK;
}

pl_status pl_envelope_of_msg(pl_envelope *e, const pl_msg *m, const pl_check_limits *limits, pl_error *err)
{
    PL_TRY(pl_envelope_unpack(e, (pl_bytes){m->header->data, m->header->size}, err));
    size_t sizes[PL_MSG_PARTS_MAX];
    for (int i = 0; i < m->n_parts; i++) sizes[i] = m->parts[i]->size;
    pl_status s = pl_envelope_check(e->m, sizes, (size_t)m->n_parts, limits, err);
    if (s != PL_OK) e->m = NULL;
    return s;
}
