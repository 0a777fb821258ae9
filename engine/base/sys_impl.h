/* What sys.c reads from /proc and /sys, under another root: "" for the real one, a folder for tests. */
#pragma once

#include <stdint.h>

/* MemTotal and MemAvailable of /proc/meminfo, cut down to what the cgroups (v1 or v2, this one and all above it) leave.
 * UINT64_MAX where nothing is said. */
uint64_t pl_sys_memory_total_at(const char *root);
uint64_t pl_sys_memory_available_at(const char *root);
/* Processors by the cgroups' quotas, rounded up; INT32_MAX where there is none. */
int pl_sys_cpu_quota_at(const char *root);
