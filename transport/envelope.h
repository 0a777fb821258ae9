/* Messages whose header is an Envelope: made from one, and read with everything checked.
 *
 * Threads: any. */
#pragma once

#include "proto/check.h"
#include "proto/codec.h"
#include "transport/msg.h"

/* A message with m as its header and no parts yet (pl_msg_add). PL_ERR_NO_MEMORY. */
PL_MUST_CHECK pl_status pl_msg_of_envelope(pl_msg **out, const Paceline__Envelope *m, pl_error *err);

/* Unpacks the header of m into e and checks it, together with the sizes of m's parts, by the rules of check.h: after
 * PL_OK every field may be used. limits NULL: the defaults. On failure e holds nothing. e points nowhere into m. */
PL_MUST_CHECK pl_status pl_envelope_of_msg(pl_envelope *e, const pl_msg *m, const pl_check_limits *limits,
                                           pl_error *err);
