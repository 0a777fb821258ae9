/* Files and what the machine has. */
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/sys.h"
#include "engine/base/sys_impl.h"
#include "tests/unit/base/suites.h"

START_TEST(a_file_is_written_whole_or_not_at_all)
{
    char dir[64], path[160];
    temp_dir(dir);
    snprintf(path, sizeof path, "%s/f", dir);
    pl_error err = {0};
    pl_buf b = {0};
    ck_ok(pl_file_write(path, (pl_bytes){(const uint8_t *)"old", 3}, 0600, &err), err);
    struct stat st;
    ck_assert(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    pl_file_writer w;
    ck_ok(pl_file_writer_open(&w, path, 0600, &err), err);
    ck_ok(pl_file_writer_add(&w, (pl_bytes){(const uint8_t *)"new", 3}, &err), err);
    pl_file_writer_abort(&w);
    pl_file_writer_abort(&w);
    ck_ok(pl_file_read(&b, path, 3, &err), err);
    ck_assert(pl_str_is(pl_buf_str(&b), "old"));
    ck_ok(pl_file_writer_open(&w, path, 0600, &err), err);
    ck_ok(pl_file_writer_add(&w, (pl_bytes){(const uint8_t *)"ne", 2}, &err), err);
    ck_ok(pl_file_writer_add(&w, (pl_bytes){(const uint8_t *)"w!", 2}, &err), err);
    ck_ok(pl_file_writer_commit(&w, &err), err);
    pl_file_writer_abort(&w);
    ck_status(pl_file_read(&b, path, 3, &err), PL_ERR_INVALID, err);
    ck_says(err, path);
    ck_assert(pl_str_is(pl_buf_str(&b), "old")); /* appended nothing */
    pl_mapped m;
    ck_ok(pl_mapped_open(&m, path, &err), err);
    ck_assert(m.bytes.size == 4 && memcmp(m.bytes.data, "new!", 4) == 0);
    pl_mapped_willneed(m.bytes);
    pl_mapped_dontneed(m.bytes);
    pl_mapped_close(&m);
    pl_mapped_close(&m);
    pl_mapped_close(NULL);
    /* Nothing is left beside it. */
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(dir), 0);
    pl_buf_fini(&b);
}
END_TEST

START_TEST(files_that_cannot_be_had_say_why)
{
    char dir[64], path[160];
    temp_dir(dir);
    pl_error err = {0};
    pl_mapped m;
    pl_buf b = {0};
    snprintf(path, sizeof path, "%s/absent", dir);
    ck_status(pl_mapped_open(&m, path, &err), PL_ERR_NOT_FOUND, err);
    ck_says(err, "absent");
    ck_status(pl_file_read(&b, path, 100, &err), PL_ERR_NOT_FOUND, err);
    ck_status(pl_mapped_open(&m, dir, &err), PL_ERR_IO, err);
    ck_status(pl_file_read(&b, dir, 100, &err), PL_ERR_IO, err);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_status(pl_mapped_open(&m, path, &err), PL_ERR_IO, err); /* and does not hang */
    snprintf(path, sizeof path, "%s/no/such/f", dir);
    ck_status(pl_file_write(path, (pl_bytes){0}, 0600, &err), PL_ERR_NOT_FOUND, err);
    snprintf(path, sizeof path, "%s/a/b//c/", dir);
    ck_ok(pl_mkdirs(path, &err), err);
    ck_ok(pl_mkdirs(path, &err), err);
    ck_assert(pl_file_exists(path));
    snprintf(path, sizeof path, "%s/a/empty", dir);
    ck_ok(pl_file_write(path, (pl_bytes){0}, 0600, &err), err);
    ck_ok(pl_mapped_open(&m, path, &err), err);
    ck_assert_uint_eq(m.bytes.size, 0);
    pl_mapped_close(&m);
    snprintf(path, sizeof path, "%s/a/empty/x", dir);
    ck_assert_int_ne(pl_mkdirs(path, &err), PL_OK);
    ck_assert(!pl_file_exists(path));
    temp_dir_remove(dir);
    pl_buf_fini(&b);
}
END_TEST

/* Writes a file below a folder that stands for the root. */
static void put(const char *root, const char *name, const char *text)
{
    char path[512];
    pl_error err = {0};
    snprintf(path, sizeof path, "%s%s", root, name);
    *strrchr(path, '/') = 0;
    ck_ok(pl_mkdirs(path, &err), err);
    snprintf(path, sizeof path, "%s%s", root, name);
    ck_ok(pl_file_write(path, (pl_bytes){(const uint8_t *)text, strlen(text)}, 0600, &err), err);
}

#define MIB ((uint64_t)1 << 20)

START_TEST(memory_is_what_the_tightest_cgroup_leaves)
{
    char root[64];
    temp_dir(root);
    put(root, "/proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\n");
    ck_assert_uint_eq(pl_sys_memory_total_at(root), 1024 * MIB);
    ck_assert_uint_eq(pl_sys_memory_available_at(root), 512 * MIB);
    ck_assert_int_eq(pl_sys_cpu_quota_at(root), INT32_MAX);

    /* Version 2: the limit stands one level above, and pages of files are given back. */
    put(root, "/proc/self/cgroup", "0::/outer/inner\n");
    put(root, "/sys/fs/cgroup/outer/inner/memory.max", "max\n");
    put(root, "/sys/fs/cgroup/outer/memory.max", "104857600\n");
    put(root, "/sys/fs/cgroup/outer/memory.current", "52428800\n");
    put(root, "/sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 10485760\n");
    put(root, "/sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
    put(root, "/sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
    ck_assert_uint_eq(pl_sys_memory_total_at(root), 100 * MIB);
    ck_assert_uint_eq(pl_sys_memory_available_at(root), 60 * MIB);
    ck_assert_int_eq(pl_sys_cpu_quota_at(root), 2);

    /* Version 1, with the path of the host, which is not mounted here: the mount point answers. */
    put(root, "/proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n");
    put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "209715200\n");
    put(root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n");
    put(root, "/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 0\n");
    put(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
    put(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    ck_assert_uint_eq(pl_sys_memory_total_at(root), 200 * MIB);
    ck_assert_uint_eq(pl_sys_memory_available_at(root), 100 * MIB);
    ck_assert_int_eq(pl_sys_cpu_quota_at(root), 1);
    put(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    ck_assert_int_eq(pl_sys_cpu_quota_at(root), INT32_MAX);
    /* "No limit" of version 1 is a number near 2^63. */
    put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    ck_assert_uint_eq(pl_sys_memory_available_at(root), 512 * MIB);
    temp_dir_remove(root);
}
END_TEST

START_TEST(this_machine_has_something)
{
    ck_assert_uint_gt(pl_sys_memory_total(), 16 * MIB);
    uint64_t available = pl_sys_memory_available();
    ck_assert(available > 0 && available <= pl_sys_memory_total());
    ck_assert_int_ge(pl_sys_cpus(), 1);
    char name[8], cpu[128];
    pl_sys_hostname(name, sizeof name);
    pl_sys_cpu_name(cpu, sizeof cpu);
    ck_assert(name[0] && cpu[0]);
    ck_assert_uint_gt(pl_sys_peak_rss(), 100000);
    uint64_t t = pl_now_ns();
    ck_assert(pl_now_ns() >= t && pl_wall_us() > 1600000000000000);
}
END_TEST

START_TEST(an_rlimit_bounds_memory)
{
#if PL_TEST_SANITIZED
    return; /* their shadow memory is address space as well */
#endif
    struct rlimit r;
    getrlimit(RLIMIT_AS, &r);
    r.rlim_cur = 2048 * MIB;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &r), 0);
    ck_assert_uint_lt(pl_sys_memory_available(), 2048 * MIB);
}
END_TEST

START_TEST(sizes_are_read_as_people_write_them)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"4096", 4096},
                {"0", 0},
                {"200MiB", 200 * MIB},
                {"1.5G", 1536 * MIB},
                {"2 GB", 2000000000},
                {"1kb", 1000},
                {"1k", 1024},
                {"0.5 KiB", 512},
                {"10B", 10},
                {".5M", MIB / 2},
                {"3T", 3072 * 1024 * MIB},
                {"18446744073709551615", UINT64_MAX}};
    static const char *const bad[] = {
        "", "MiB", "-1", "1x", "1 Mi", "1.2.3", "0x10", "18446744073709551616", "99999999999T", "1e3", "."};
    pl_error err = {0};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t v = 1;
        ck_ok(pl_parse_size(pl_str_from(good[i].text), &v, &err), err);
        ck_assert_uint_eq(v, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t v;
        ck_status(pl_parse_size(pl_str_from(bad[i]), &v, &err), PL_ERR_INVALID, err);
        ck_says(err, bad[i]);
    }
    ck_assert_str_eq(pl_format_size(0), "0 B");
    ck_assert_str_eq(pl_format_size(1023), "1023 B");
    ck_assert_str_eq(pl_format_size(1024), "1.0 KiB");
    ck_assert_str_eq(pl_format_size(327575142), "312.4 MiB");
    ck_assert_str_eq(pl_format_size(1024 * MIB - 1), "1.0 GiB");
    ck_assert_str_eq(pl_format_size(UINT64_MAX), "16.0 EiB");
}
END_TEST

START_TEST(folders_follow_the_environment)
{
    char path[64];
    pl_error err = {0};
    setenv("HOME", "/home/u", 1);
    unsetenv("XDG_CACHE_HOME");
    setenv("XDG_CONFIG_HOME", "/etc/u", 1);
    ck_ok(pl_cache_dir(path, sizeof path, &err), err);
    ck_assert_str_eq(path, "/home/u/.cache/paceline");
    ck_ok(pl_config_dir(path, sizeof path, &err), err);
    ck_assert_str_eq(path, "/etc/u/paceline");
    setenv("XDG_CONFIG_HOME", "relative", 1);
    ck_ok(pl_config_dir(path, sizeof path, &err), err);
    ck_assert_str_eq(path, "/home/u/.config/paceline");
    ck_status(pl_config_dir(path, 5, &err), PL_ERR_INVALID, err);
}
END_TEST

Suite *system_suite(void)
{
    Suite *s = suite_create("engine/base system");
    TCase *t = tcase_create("system");
    suite_add_tcase(s, t);
    tcase_add_test(t, a_file_is_written_whole_or_not_at_all);
    tcase_add_test(t, files_that_cannot_be_had_say_why);
    tcase_add_test(t, memory_is_what_the_tightest_cgroup_leaves);
    tcase_add_test(t, this_machine_has_something);
    tcase_add_test(t, an_rlimit_bounds_memory);
    tcase_add_test(t, sizes_are_read_as_people_write_them);
    tcase_add_test(t, folders_follow_the_environment);
    return s;
}
