#include "engine/cpu/ops_impl.h"

void pl_cpu_ops_avx2(pl_cpu_kernels *k)
{
    v_install(k);
}
