#include "engine/cpu/ops_impl.h"

void pl_cpu_ops_avx512(pl_cpu_kernels *k)
{
    v_install(k);
}
