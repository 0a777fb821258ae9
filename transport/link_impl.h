/* What every implementation of links does alike. */
#pragma once

#include "transport/link.h"

/* limits with the defaults of link.h in place of zeros. */
pl_net_limits pl_net_limits_or_default(pl_net_limits limits);

/* Whether m may cross a link of these limits. PL_ERR_INVALID names what is missing or too large. */
PL_MUST_CHECK pl_status pl_msg_check(const pl_msg *m, const pl_net_limits *limits, pl_error *err);
