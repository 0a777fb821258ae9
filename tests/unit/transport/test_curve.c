#include "engine/base/file.h"
#include "tests/fixtures/fixtures.h"
#include "transport/curve.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];

static void dir_make(void)
{
    snprintf(dir, sizeof dir, "/tmp/paceline-curve-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void dir_remove(void)
{
    static const char *const names[] = {"key", "key.pub", "list"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static const char *in_dir(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    pl_error err = {0};
    ck_ok(pl_file_write(in_dir(name), (pl_bytes){(const uint8_t *)text, strlen(text)}, 0600, &err), err);
}

START_TEST(a_key_survives_its_text)
{
    pl_error err = {0};
    pl_key pub, secret, again;
    char text[2 * PL_KEY_SIZE + 1];
    ck_ok(pl_key_pair_new(&pub, &secret, &err), err);
    ck_assert(!pl_key_eq(&pub, &secret));
    pl_key_text(&pub, text);
    ck_assert_uint_eq(strlen(text), 64);
    ck_ok(pl_key_parse(&again, pl_str_from(text), &err), err);
    ck_assert(pl_key_eq(&pub, &again));
    ck_ok(pl_key_public_of(&again, &secret, &err), err);
    ck_assert(pl_key_eq(&pub, &again));
    text[63] = 'g';
    ck_status(pl_key_parse(&again, pl_str_from(text), &err), PL_ERR_FORMAT, err);
    text[63] = '\0';
    ck_status(pl_key_parse(&again, pl_str_from(text), &err), PL_ERR_FORMAT, err);
    ck_says(err, "63");
}
END_TEST

START_TEST(a_saved_pair_is_loaded_and_not_overwritten)
{
    pl_error err = {0};
    pl_key pub, secret, pub2, secret2;
    struct stat st;
    dir_make();
    ck_status(pl_key_load(&pub, &secret, in_dir("key"), &err), PL_ERR_NOT_FOUND, err);
    ck_ok(pl_key_pair_new(&pub, &secret, &err), err);
    ck_ok(pl_key_save(&pub, &secret, in_dir("key"), false, &err), err);
    ck_assert_int_eq(stat(in_dir("key"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_ok(pl_key_load(&pub2, &secret2, in_dir("key"), &err), err);
    ck_assert(pl_key_eq(&pub, &pub2) && pl_key_eq(&secret, &secret2));
    ck_status(pl_key_save(&pub, &secret, in_dir("key"), false, &err), PL_ERR_INVALID, err);
    ck_ok(pl_key_save(&pub, &secret, in_dir("key"), true, &err), err);
    dir_remove();
}
END_TEST

START_TEST(a_secret_that_others_can_read_is_refused)
{
    pl_error err = {0};
    pl_key pub, secret;
    dir_make();
    ck_ok(pl_key_pair_new(&pub, &secret, &err), err);
    ck_ok(pl_key_save(&pub, &secret, in_dir("key"), false, &err), err);
    ck_assert_int_eq(chmod(in_dir("key"), 0640), 0);
    ck_status(pl_key_load(&pub, &secret, in_dir("key"), &err), PL_ERR_AUTH, err);
    ck_says(err, "640");
    dir_remove();
}
END_TEST

START_TEST(a_broken_key_file_is_named_and_not_quoted)
{
    pl_error err = {0};
    pl_key pub, secret;
    dir_make();
    write_text("key", "# mine\nsecretsecret\n");
    ck_status(pl_key_load(&pub, &secret, in_dir("key"), &err), PL_ERR_FORMAT, err);
    ck_says(err, "key");
    ck_assert_ptr_null(strstr(err.text, "secretsecret"));
    write_text("key", "");
    ck_status(pl_key_load(&pub, &secret, in_dir("key"), &err), PL_ERR_FORMAT, err);
    dir_remove();
}
END_TEST

START_TEST(a_list_has_names_comments_and_blank_lines)
{
    pl_error err = {0};
    pl_key a = {{1}}, b = {{2}}, c = {{3}};
    char ta[65], tb[65], text[512];
    pl_key_list l;
    dir_make();
    pl_key_text(&a, ta);
    pl_key_text(&b, tb);
    snprintf(text, sizeof text, "# peers\n\n%s  desk top  # mine\n\t%s", ta, tb);
    write_text("list", text);
    ck_ok(pl_key_list_load(&l, in_dir("list"), &err), err);
    ck_assert_uint_eq(l.n, 2);
    ck_assert_str_eq(pl_key_list_find(&l, &a), "desk top");
    ck_assert_str_eq(pl_key_list_find(&l, &b), "");
    ck_assert_ptr_null(pl_key_list_find(&l, &c));
    ck_ok(pl_key_list_add(&l, &c, "third", &err), err);
    ck_assert_str_eq(pl_key_list_find(&l, &c), "third");
    pl_key_list_fini(&l);
    snprintf(text, sizeof text, "%s\nnot-a-key\n", ta);
    write_text("list", text);
    ck_status(pl_key_list_load(&l, in_dir("list"), &err), PL_ERR_FORMAT, err);
    ck_says(err, "line 2");
    ck_assert_ptr_null(l.items);
    dir_remove();
}
END_TEST

Suite *curve_suite(void);
Suite *curve_suite(void)
{
    Suite *s = suite_create("transport/curve");
    TCase *t = tcase_create("curve");
    tcase_add_test(t, a_key_survives_its_text);
    tcase_add_test(t, a_saved_pair_is_loaded_and_not_overwritten);
    tcase_add_test(t, a_secret_that_others_can_read_is_refused);
    tcase_add_test(t, a_broken_key_file_is_named_and_not_quoted);
    tcase_add_test(t, a_list_has_names_comments_and_blank_lines);
    suite_add_tcase(s, t);
    return s;
}
