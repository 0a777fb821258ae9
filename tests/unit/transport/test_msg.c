#include "engine/base/alloc.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fixtures/messages.h"
#include "transport/envelope.h"

static int n_released;
static void released(void *user)
{
    n_released++;
    ck_assert_ptr_eq(user, &n_released);
}

START_TEST(a_part_is_released_at_its_last_reference)
{
    static const uint8_t bytes[3] = {1, 2, 3};
    pl_part *p = pl_part_borrow(bytes, 3, released, &n_released);
    ck_assert_ptr_nonnull(p);
    ck_assert_ptr_eq(p->data, bytes);
    ck_assert_ptr_eq(pl_part_ref(p), p);
    pl_part_unref(p);
    ck_assert_int_eq(n_released, 0);
    pl_part_unref(p);
    ck_assert_int_eq(n_released, 1);
    pl_part_unref(NULL);
}
END_TEST

START_TEST(a_part_from_the_heap_is_aligned_and_a_copy_is_its_own)
{
    uint8_t bytes[5] = {1, 2, 3, 4, 5};
    pl_part *p = pl_part_copy((pl_bytes){bytes, 5});
    ck_assert_ptr_nonnull(p);
    bytes[0] = 9;
    ck_assert_int_eq(p->data[0], 1);
    ck_assert_uint_eq((uintptr_t)p->data % 64, 0);
    pl_part_unref(p);
    ck_assert_ptr_null(pl_part_new(SIZE_MAX));
    p = pl_part_new(0);
    ck_assert_ptr_nonnull(p);
    pl_part_unref(p);
}
END_TEST

START_TEST(a_ninth_part_is_refused_and_freed)
{
    pl_error err = {0};
    pl_msg *m;
    ck_ok(pl_msg_new(&m, &err), err);
    for (int i = 0; i < PL_MSG_PARTS_MAX; i++) ck_ok(pl_msg_add(m, pl_part_new(1), &err), err);
    ck_status(pl_msg_add(m, pl_part_borrow("x", 1, released, &n_released), &err), PL_ERR_INVALID, err);
    ck_assert_int_eq(n_released, 1);
    ck_status(pl_msg_add(m, NULL, &err), PL_ERR_NO_MEMORY, err);
    pl_msg_free(m);
}
END_TEST

START_TEST(an_envelope_survives_being_a_message)
{
    pl_error err = {0};
    message v = message_valid(_i);
    pl_msg *m;
    ck_ok(pl_msg_of_envelope(&m, v.m, &err), err);
    for (size_t i = 0; i < v.n_parts; i++) ck_ok(pl_msg_add(m, pl_part_new(v.part_sizes[i]), &err), err);
    pl_envelope e = {0};
    ck_ok(pl_envelope_of_msg(&e, m, NULL, &err), err);
    ck_assert_int_eq((int)e.m->body_case, _i);
    /* With a part too many it is another message. */
    ck_ok(pl_msg_add(m, pl_part_new(1), &err), err);
    ck_status(pl_envelope_of_msg(&e, m, NULL, &err), PL_ERR_FORMAT, err);
    ck_assert_ptr_null(e.m);
    pl_envelope_fini(&e);
    pl_msg_free(m);
}
END_TEST

Suite *msg_suite(void);
Suite *msg_suite(void)
{
    Suite *s = suite_create("transport/msg");
    TCase *t = tcase_create("msg");
    tcase_add_test(t, a_part_is_released_at_its_last_reference);
    tcase_add_test(t, a_part_from_the_heap_is_aligned_and_a_copy_is_its_own);
    tcase_add_test(t, a_ninth_part_is_refused_and_freed);
    tcase_add_loop_test(t, an_envelope_survives_being_a_message, MESSAGE_KIND_FIRST, MESSAGE_KIND_LAST + 1);
    suite_add_tcase(s, t);
    return s;
}
