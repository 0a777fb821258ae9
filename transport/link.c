#include "transport/link_impl.h"

pl_net_limits pl_net_limits_or_default(pl_net_limits limits)
{
    if (!limits.header_bytes_max) limits.header_bytes_max = (size_t)4 << 20;
    if (!limits.part_bytes_max) limits.part_bytes_max = (size_t)256 << 20;
    if (limits.queue_msgs_max <= 0) limits.queue_msgs_max = 1000;
    if (limits.links_max <= 0) limits.links_max = 1024;
    return limits;
}

pl_status pl_msg_check(const pl_msg *m, const pl_net_limits *limits, pl_error *err)
{
    if (!m->header) return pl_fail(err, PL_ERR_INVALID, "a message without a header");
    if (m->header->size > limits->header_bytes_max)
        return pl_fail(err, PL_ERR_INVALID, "a header of %zu bytes, more than %zu", m->header->size,
                       limits->header_bytes_max);
    if (m->n_parts > PL_MSG_PARTS_MAX)
        return pl_fail(err, PL_ERR_INVALID, "%d parts, more than %d", m->n_parts, PL_MSG_PARTS_MAX);
    for (int i = 0; i < m->n_parts; i++)
        if (m->parts[i]->size > limits->part_bytes_max)
            return pl_fail(err, PL_ERR_INVALID, "a part of %zu bytes, more than %zu", m->parts[i]->size,
                           limits->part_bytes_max);
    return PL_OK;
}
