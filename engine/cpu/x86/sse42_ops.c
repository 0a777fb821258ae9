#include "engine/cpu/ops_impl.h"

void pl_cpu_ops_sse42(pl_cpu_kernels *k)
{
    v_install(k);
}
