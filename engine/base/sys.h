/* What the machine has: memory, processors, clocks. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"

/* Nanoseconds of CLOCK_MONOTONIC. State machines take their time from pl_loop instead. */
uint64_t pl_now_ns(void);
/* Microseconds since 1970, for people and file names only. */
int64_t pl_wall_us(void);

/* Bytes that this process could still take: MemAvailable of /proc/meminfo, and less where a cgroup or an
 * rlimit says so. (sysfs NUMA counts are wrong on guests with hot-plugged memory.) */
uint64_t pl_sys_memory_available(void);
uint64_t pl_sys_memory_total(void);
/* Processors that this process may run on, from its affinity mask and cgroup quota; at least 1. */
int pl_sys_cpus(void);
/* The host's name and the processor's model name, into out, terminated. */
void pl_sys_hostname(char *out, size_t size);
void pl_sys_cpu_name(char *out, size_t size);
/* Peak resident bytes of this process. */
uint64_t pl_sys_peak_rss(void);

/* "200MiB", "1.5G", "4096": K/M/G/T and KiB/MiB/GiB/TiB are powers of 1024, KB/MB/GB/TB of 1000. */
PL_MUST_CHECK pl_status pl_parse_size(pl_str text, uint64_t *out, pl_error *err);
/* "312.4 MiB" into a rotating thread-local buffer that lasts for the next 8 calls. */
const char *pl_format_size(uint64_t bytes);

/* $XDG_CACHE_HOME/paceline or ~/.cache/paceline; $XDG_CONFIG_HOME/paceline or ~/.config/paceline. */
PL_MUST_CHECK pl_status pl_cache_dir(char *out, size_t size, pl_error *err);
PL_MUST_CHECK pl_status pl_config_dir(char *out, size_t size, pl_error *err);
