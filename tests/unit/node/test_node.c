#include "tests/unit/node/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static rig r;

static void start(void)
{
    rig_init(&r, NULL);
}
static void stop(void)
{
    rig_fini(&r);
}

static const char *state(void)
{
    pl_node_report report;
    pl_node_get_report(r.node, &report);
    return report.state;
}

static pl_node_report report(void)
{
    pl_node_report rep;
    pl_node_get_report(r.node, &rep);
    return rep;
}

/* The next Failure that the coordinator hears, as an error. */
static pl_error failure(uint64_t epoch)
{
    const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_FAILURE, 200 * S);
    ck_assert_msg(m != NULL, "no Failure came");
    ck_assert_uint_eq(m->e.m->epoch, epoch);
    pl_error e;
    pl_fail(&e, (pl_status)m->e.m->failure->status, "%s", m->e.m->failure->text);
    return e;
}

static void fails(uint64_t epoch, pl_status status, const char *words)
{
    pl_error e = failure(epoch);
    ck_status(e.status, status, e);
    ck_says(e, words);
}

/* What an undisturbed model gives for the prompt 1..n. */
static int32_t oracle_token(int32_t n)
{
    int32_t prompt[64], out[1];
    bool stopped;
    for (int32_t i = 0; i < n; i++) prompt[i] = i + 1;
    ck_assert_int_eq(hash_oracle(r.model.profile, &r.model.weights, &(pl_sample_params){.n_logprobs = -1}, true, prompt,
                                 n, 1, 128, out, &stopped),
                     1);
    return out[0];
}

static uint64_t stage_blob_bytes(int32_t first, int32_t end)
{
    size_t index[128], n = pl_model_stage_tensors(r.model.profile, first, end, index);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += pl_gguf_tensor_at(r.model.gguf, index[i])->size;
    return sum;
}

/* --- Meeting --- */

START_TEST(a_dialed_node_says_who_it_is_and_what_it_has)
{
    actor *a = &r.coordinator;
    actor_dial(a, "sim://node", &r.key);
    rig_run(&r, 200 * MS);
    Paceline__Hello h = PACELINE__HELLO__INIT;
    h.role = PACELINE__HELLO__ROLE__COORDINATOR;
    h.protocol = PL_PROTOCOL;
    h.name = (char *)"c1";
    actor_send(a, a->link, 0, ENVELOPE(HELLO, hello, &h), NULL);
    const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_HELLO, S);
    ck_assert_ptr_nonnull(m);
    const Paceline__Hello *n = m->e.m->hello;
    ck_assert_int_eq(n->role, PACELINE__HELLO__ROLE__NODE);
    ck_assert_uint_eq(n->protocol, PL_PROTOCOL);
    ck_assert_str_eq(n->name, "n1");
    ck_assert_str_eq(n->profile, "hash-1");
    ck_assert_uint_eq(n->budget_bytes, UINT64_C(1) << 30);
    ck_assert_str_eq(n->data_address, "sim://node");
    ck_assert_uint_eq(n->n_archs, 1);
    ck_assert_uint_gt(n->n_types, 5);
    ck_assert_uint_eq(n->incarnation, 5);
}
END_TEST

START_TEST(a_node_that_joins_says_hello_first_and_comes_back_after_a_loss)
{
    pl_error err = {0};
    ck_ok(pl_node_join(r.node, "sim://coordinator", &r.coordinator.key, &err), err);
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_HELLO, S));
    pl_sim_break(r.process, r.coordinator.process);
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_HELLO, 5 * S));
    ck_assert_int_eq(r.coordinator.n_up, 2);
}
END_TEST

START_TEST(a_coordinator_that_never_answers_is_dialed_again)
{
    pl_error err = {0};
    ck_ok(pl_node_join(r.node, "sim://coordinator", &r.coordinator.key, &err), err);
    rig_run(&r, 30 * S);
    ck_assert_int_ge(r.coordinator.n_up, 3);
    ck_assert_int_le(r.coordinator.n_up, 8); /* and not in a hurry */
}
END_TEST

START_TEST(a_second_coordinator_is_refused_by_the_name_of_the_first)
{
    rig_join(&r);
    Paceline__Hello h = PACELINE__HELLO__INIT;
    h.role = PACELINE__HELLO__ROLE__COORDINATOR;
    h.protocol = PL_PROTOCOL;
    h.name = (char *)"c2";
    actor_dial(&r.up, "sim://node", &r.key);
    rig_run(&r, 100 * MS);
    actor_send(&r.up, r.up.link, 0, ENVELOPE(HELLO, hello, &h), NULL);
    const actor_message *m = actor_take(&r.up, PACELINE__ENVELOPE__BODY_FAILURE, S);
    ck_assert_ptr_nonnull(m);
    ck_assert_ptr_nonnull(strstr(m->e.m->failure->text, "c1"));
    rig_run(&r, S);
    ck_assert_int_eq(r.up.n_down, 1);
    ck_assert_str_eq(state(), "joined");
}
END_TEST

static bool nobody(void *user, const pl_key *key)
{
    (void)user;
    (void)key;
    return false;
}

START_TEST(a_coordinator_whose_key_is_not_known_is_refused)
{
    pl_node_set_coordinator_check(r.node, nobody, NULL);
    Paceline__Hello h = PACELINE__HELLO__INIT;
    h.role = PACELINE__HELLO__ROLE__COORDINATOR;
    h.protocol = PL_PROTOCOL;
    actor_dial(&r.coordinator, "sim://node", &r.key);
    rig_run(&r, 100 * MS);
    actor_send(&r.coordinator, r.coordinator.link, 0, ENVELOPE(HELLO, hello, &h), NULL);
    fails(0, PL_ERR_AUTH, "n1");
    ck_assert_str_eq(state(), "alone");
}
END_TEST

START_TEST(another_protocol_is_refused_with_both_numbers)
{
    Paceline__Hello h = PACELINE__HELLO__INIT;
    h.role = PACELINE__HELLO__ROLE__COORDINATOR;
    h.protocol = 77;
    actor_dial(&r.coordinator, "sim://node", &r.key);
    rig_run(&r, 100 * MS);
    actor_send(&r.coordinator, r.coordinator.link, 0, ENVELOPE(HELLO, hello, &h), NULL);
    fails(0, PL_ERR_UNSUPPORTED, "77");
}
END_TEST

START_TEST(heartbeats_go_both_ways_and_silence_ends_the_link)
{
    rig_join(&r);
    rig_run(&r, 2 * S);
    ck_assert_int_ge(r.coordinator.n_heartbeats, 15);
    r.coordinator.heartbeat_ns = 0; /* its timer comes, but it says nothing */
    rig_run(&r, 900 * MS);
    ck_assert_str_eq(state(), "joined");
    rig_run(&r, 400 * MS);
    ck_assert_str_eq(state(), "alone");
}
END_TEST

START_TEST(a_node_that_was_stopped_does_not_take_its_own_sleep_for_its_peers_silence)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    pl_sim_pause(r.process);
    rig_run(&r, 5 * S);
    pl_sim_resume(r.process);
    rig_run(&r, 50 * MS);
    ck_assert_str_eq(state(), "ready");
}
END_TEST

/* --- Loading --- */

START_TEST(what_is_missing_is_fetched_and_a_second_time_nothing)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    uint64_t all = r.model.header.size + stage_blob_bytes(0, RIG_LAYERS);
    ck_assert_uint_eq(r.coordinator.bytes_served, all);
    ck_assert_uint_eq(r.disk.bytes_put, all);
    ck_assert_str_eq(state(), "ready");
    rig_ready(&r, 2, 0, RIG_LAYERS);
    ck_assert_uint_eq(r.coordinator.bytes_served, all);
}
END_TEST

START_TEST(ready_says_the_bytes_that_the_profile_says)
{
    rig_join(&r);
    rig_plan(&r, 0, 3);
    rig_load(&r, 1);
    rig_neighbour(&r, &r.down, PACELINE__HELLO__ROLE__DOWNSTREAM, 1);
    const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, 20 * S);
    ck_assert_ptr_nonnull(m);
    pl_stage_shape shape = {0, 3, 16, 128, 4, 32, 1, {PL_TYPE_F32, PL_TYPE_F32}};
    pl_stage_memory mem = pl_model_stage_memory(r.model.profile, &shape);
    ck_assert_uint_eq(m->e.m->ready->weights_bytes, mem.weights);
    ck_assert_uint_eq(m->e.m->ready->kv_bytes, mem.kv);
    ck_assert_uint_eq(m->e.m->ready->compute_bytes, mem.compute);
    ck_assert_uint_eq(m->e.m->ready->link_bytes, 3 * 32 * 4 * (uint64_t)pl_model_n_embd(r.model.profile));
    ck_assert_uint_eq(m->e.m->ready->fetched_bytes, r.disk.bytes_put);
    ck_assert_uint_eq(report().memory_bytes, mem.weights + mem.kv + mem.compute + m->e.m->ready->link_bytes);
}
END_TEST

static bool less_served(void *user)
{
    return r.coordinator.bytes_served < *(uint64_t *)user;
}

START_TEST(an_interrupted_fetch_goes_on_where_it_was)
{
    rig_join(&r);
    rig_plan(&r, 0, RIG_LAYERS);
    rig_load(&r, 1);
    uint64_t all = r.model.header.size + stage_blob_bytes(0, RIG_LAYERS), half = all / 2;
    ck_assert(pl_sim_run_while(r.sim, less_served, &half, pl_sim_now(r.sim) + 20 * S));
    pl_sim_break(r.process, r.coordinator.process);
    rig_run(&r, S);
    ck_assert_str_eq(state(), "alone");
    actor_forget(&r.coordinator);
    rig_join(&r);
    rig_ready(&r, 2, 0, RIG_LAYERS);
    ck_assert_uint_eq(r.disk.bytes_put, all);                      /* no byte was stored twice */
    ck_assert_uint_le(r.coordinator.bytes_served, all + 4 * 1000); /* but those under way were lost */
}
END_TEST

START_TEST(a_new_load_in_the_middle_of_a_fetch_ends_the_old_epoch)
{
    rig_join(&r);
    rig_plan(&r, 0, RIG_LAYERS);
    rig_load(&r, 1);
    uint64_t half = stage_blob_bytes(0, RIG_LAYERS) / 2;
    ck_assert(pl_sim_run_while(r.sim, less_served, &half, pl_sim_now(r.sim) + 20 * S));
    rig_load(&r, 2);
    const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, 20 * S);
    ck_assert_ptr_nonnull(m);
    ck_assert_uint_eq(m->e.m->epoch, 2);
    ck_assert(!actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_FAILURE));
    ck_assert_uint_eq(r.disk.bytes_put, r.model.header.size + stage_blob_bytes(0, RIG_LAYERS));
}
END_TEST

START_TEST(progress_comes_but_not_too_often)
{
    rig_join(&r);
    rig_plan(&r, 0, RIG_LAYERS);
    rig_load(&r, 1);
    uint64_t since = pl_sim_now(r.sim);
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, 20 * S));
    uint64_t took = pl_sim_now(r.sim) - since;
    int n = 0;
    for (size_t i = 0; i < r.coordinator.n_log; i++)
        n += r.coordinator.log[i].e.m->body_case == PACELINE__ENVELOPE__BODY_PROGRESS;
    ck_assert_int_ge(n, 2);
    ck_assert_int_le(n, 4 + (int)(took / (200 * MS)));
}
END_TEST

START_TEST(a_coordinator_that_sends_other_bytes_is_named_with_the_blob)
{
    rig_join(&r);
    r.coordinator.corrupt_blobs = true;
    rig_plan(&r, 0, RIG_LAYERS);
    rig_load(&r, 1);
    fails(1, PL_ERR_FORMAT, "model header");
    ck_assert_uint_eq(r.coordinator.bytes_served, 3 * r.model.header.size);
}
END_TEST

START_TEST(a_blob_that_the_coordinator_does_not_have_fails_the_load)
{
    rig_join(&r);
    rig_plan(&r, 0, RIG_LAYERS);
    pl_hash other = r.model.hashes[0];
    other.b[0] ^= 1;
    r.refs[0].hash.data = other.b;
    rig_load(&r, 1);
    fails(1, PL_ERR_NOT_FOUND, "tensor");
}
END_TEST

START_TEST(a_plan_beyond_the_budget_is_refused_with_the_numbers)
{
    rig_fini(&r);
    rig_init(&r, &(rig_options){.budget = 150000});
    rig_join(&r);
    rig_plan(&r, 0, RIG_LAYERS);
    r.plan.stage_bytes = 150001;
    rig_load(&r, 1);
    fails(1, PL_ERR_BUDGET, "146.5 KiB");
    /* The coordinator counts too little: the node counts for itself, before it fetches. */
    r.plan.stage_bytes = 1;
    rig_load(&r, 2);
    fails(2, PL_ERR_BUDGET, "KV");
    ck_assert_uint_eq(r.coordinator.bytes_served, r.model.header.size);
    ck_assert_uint_eq(report().memory_bytes, 0);
}
END_TEST

START_TEST(a_budget_that_fits_to_the_byte_is_enough_and_one_less_is_not)
{
    pl_stage_shape shape = {0, RIG_LAYERS, 16, 128, 4, 32, 1, {PL_TYPE_F32, PL_TYPE_F32}};
    pl_stage_memory m = pl_model_stage_memory(r.model.profile, &shape);
    uint64_t need = m.weights + m.kv + m.compute;
    for (int less = 0; less < 2; less++) {
        rig_fini(&r);
        rig_init(&r, &(rig_options){.budget = need - (uint64_t)less});
        rig_join(&r);
        rig_plan(&r, 0, RIG_LAYERS);
        rig_load(&r, 1);
        if (less)
            fails(1, PL_ERR_BUDGET, "budget");
        else
            ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, 20 * S));
    }
}
END_TEST

START_TEST(plans_that_do_not_match_the_header_are_refused)
{
    rig_join(&r);
    uint64_t epoch = 1;
    rig_plan(&r, 0, RIG_LAYERS);
    r.plan.n_tensors--;
    rig_load(&r, epoch);
    fails(epoch++, PL_ERR_FORMAT, "tensors");
    rig_plan(&r, 0, RIG_LAYERS);
    r.refs[3].index = 1;
    r.refs[0].index = 0;
    r.refs[1].index = 0;
    rig_plan(&r, 0, RIG_LAYERS - 1);
    r.plan.n_tensors--;
    rig_load(&r, epoch);
    fails(epoch++, PL_ERR_FORMAT, "tensors");
    rig_plan(&r, 0, 5);
    r.plan.n_layer = 5;
    r.plan.n_stages = 1;
    r.plan.downstream = NULL;
    rig_load(&r, epoch);
    fails(epoch++, PL_ERR_FORMAT, "layers");
    rig_plan(&r, 0, RIG_LAYERS);
    r.plan.wire_type = PL_TYPE_F16;
    rig_load(&r, epoch);
    fails(epoch++, PL_ERR_UNSUPPORTED, "F16");
    rig_ready(&r, epoch, 0, RIG_LAYERS);
}
END_TEST

START_TEST(a_load_that_is_not_newer_is_stale)
{
    rig_join(&r);
    rig_ready(&r, 5, 0, RIG_LAYERS);
    rig_load(&r, 5);
    fails(5, PL_ERR_STALE, "5");
    rig_load(&r, 4);
    fails(4, PL_ERR_STALE, "4");
    ck_assert_str_eq(state(), "ready");
}
END_TEST

START_TEST(unload_frees_the_stage_unless_it_is_of_an_older_epoch)
{
    rig_join(&r);
    rig_ready(&r, 5, 0, RIG_LAYERS);
    Paceline__Unload u = PACELINE__UNLOAD__INIT;
    actor_send(&r.coordinator, r.to_node, 4, ENVELOPE(UNLOAD, unload, &u), NULL);
    rig_run(&r, 100 * MS);
    ck_assert_str_eq(state(), "ready");
    actor_send(&r.coordinator, r.to_node, 5, ENVELOPE(UNLOAD, unload, &u), NULL);
    rig_run(&r, 100 * MS);
    ck_assert_str_eq(state(), "joined");
    ck_assert_uint_eq(report().memory_bytes, 0);
    ck_assert_uint_eq(fake_compute_stage_bytes(r.compute), 0);
    rig_ready(&r, 6, 0, RIG_LAYERS);
}
END_TEST

/* --- Neighbours --- */

START_TEST(a_neighbour_with_another_key_is_refused_and_the_right_one_is_still_awaited)
{
    rig_join(&r);
    rig_plan(&r, 2, RIG_LAYERS);
    rig_load(&r, 1);
    rig_run(&r, S);
    rig_neighbour(&r, &r.down, PACELINE__HELLO__ROLE__UPSTREAM, 1);
    const actor_message *m = actor_take(&r.down, PACELINE__ENVELOPE__BODY_FAILURE, S);
    ck_assert_ptr_nonnull(m);
    ck_assert_uint_eq(m->e.m->failure->status, PL_ERR_AUTH);
    ck_assert(!actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_READY));
    rig_neighbour(&r, &r.up, PACELINE__HELLO__ROLE__UPSTREAM, 1);
    m = actor_take(&r.up, PACELINE__ENVELOPE__BODY_HELLO, S);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(m->e.m->hello->role, PACELINE__HELLO__ROLE__DOWNSTREAM);
    ck_assert_uint_eq(m->e.m->epoch, 1);
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, 5 * S));
}
END_TEST

START_TEST(a_neighbour_on_the_side_that_has_none_is_refused)
{
    rig_join(&r);
    rig_plan(&r, 2, RIG_LAYERS);
    rig_load(&r, 1);
    rig_run(&r, S);
    rig_neighbour(&r, &r.up, PACELINE__HELLO__ROLE__DOWNSTREAM, 1);
    ck_assert_ptr_nonnull(actor_take(&r.up, PACELINE__ENVELOPE__BODY_FAILURE, S));
}
END_TEST

START_TEST(a_neighbour_that_is_early_waits_for_the_load)
{
    rig_join(&r);
    rig_neighbour(&r, &r.up, PACELINE__HELLO__ROLE__UPSTREAM, 3);
    rig_run(&r, 2 * S);
    rig_plan(&r, 2, RIG_LAYERS);
    rig_load(&r, 3);
    ck_assert_ptr_nonnull(actor_take(&r.up, PACELINE__ENVELOPE__BODY_HELLO, S));
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, 5 * S));
}
END_TEST

START_TEST(a_neighbour_whose_load_never_comes_is_let_go)
{
    rig_join(&r);
    rig_neighbour(&r, &r.up, PACELINE__HELLO__ROLE__UPSTREAM, 3);
    rig_run(&r, 4 * S);
    ck_assert_int_eq(r.up.n_down, 0);
    rig_run(&r, 2 * S);
    ck_assert_int_eq(r.up.n_down, 1);
    ck_assert(actor_has(&r.up, PACELINE__ENVELOPE__BODY_FAILURE));
}
END_TEST

START_TEST(no_more_than_sixteen_neighbours_wait)
{
    rig_join(&r);
    for (int i = 0; i < 16; i++) rig_neighbour(&r, &r.up, PACELINE__HELLO__ROLE__UPSTREAM, 3);
    rig_run(&r, 100 * MS);
    ck_assert(!actor_has(&r.up, PACELINE__ENVELOPE__BODY_FAILURE));
    ck_assert_uint_eq(r.node->n_parked, 16);
    rig_neighbour(&r, &r.down, PACELINE__HELLO__ROLE__UPSTREAM, 3);
    ck_assert_ptr_nonnull(actor_take(&r.down, PACELINE__ENVELOPE__BODY_FAILURE, S));
}
END_TEST

START_TEST(a_neighbour_of_an_epoch_that_is_over_is_told_so)
{
    rig_join(&r);
    rig_ready(&r, 7, 0, RIG_LAYERS);
    rig_neighbour(&r, &r.up, PACELINE__HELLO__ROLE__UPSTREAM, 6);
    const actor_message *m = actor_take(&r.up, PACELINE__ENVELOPE__BODY_FAILURE, S);
    ck_assert_ptr_nonnull(m);
    ck_assert_uint_eq(m->e.m->failure->status, PL_ERR_STALE);
}
END_TEST

START_TEST(a_node_dials_its_neighbour_until_it_is_there)
{
    rig_join(&r);
    rig_plan(&r, 0, 3);
    r.plan_down.dial = true;
    pl_sim_set_dial_failure(r.sim, 1);
    rig_load(&r, 1);
    rig_run(&r, 8 * S);
    ck_assert(!actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_READY));
    pl_sim_set_dial_failure(r.sim, 0);
    const actor_message *m = actor_take(&r.down, PACELINE__ENVELOPE__BODY_HELLO, 20 * S);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(m->e.m->hello->role, PACELINE__HELLO__ROLE__UPSTREAM);
    ck_assert_uint_eq(m->e.m->epoch, 1);
    rig_run(&r, S);
    ck_assert(!actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_READY)); /* not before it answered */
    Paceline__Hello h = PACELINE__HELLO__INIT;
    h.role = PACELINE__HELLO__ROLE__DOWNSTREAM;
    h.protocol = PL_PROTOCOL;
    actor_send(&r.down, r.down.link, 1, ENVELOPE(HELLO, hello, &h), NULL);
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, S));
}
END_TEST

START_TEST(a_neighbour_that_is_dialed_in_vain_is_named_in_the_failure)
{
    rig_join(&r);
    rig_plan(&r, 2, RIG_LAYERS);
    r.plan_up.dial = true;
    pl_sim_set_dial_failure(r.sim, 1);
    rig_load(&r, 1);
    fails(1, PL_ERR_TIMEOUT, "upstream neighbour");
}
END_TEST

START_TEST(a_neighbour_that_loads_for_long_may_dial_late)
{
    rig_join(&r);
    rig_plan(&r, 2, RIG_LAYERS);
    rig_load(&r, 1);
    rig_run(&r, 100 * S);
    ck_assert(!actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_FAILURE));
    rig_neighbour(&r, &r.up, PACELINE__HELLO__ROLE__UPSTREAM, 1);
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, S));
}
END_TEST

START_TEST(a_neighbour_lost_is_reported_with_its_side)
{
    rig_join(&r);
    rig_ready(&r, 1, 2, 4);
    pl_sim_break(r.process, r.down.process);
    const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_LINK_STATE, 2 * S);
    ck_assert_ptr_nonnull(m);
    ck_assert(m->e.m->link_state->downstream);
    ck_assert(!m->e.m->link_state->up);
    ck_assert_ptr_nonnull(strstr(m->e.m->link_state->failure->text, "downstream neighbour"));
    ck_assert_uint_eq(m->e.m->epoch, 1);
    rig_ready(&r, 2, 2, 4);
}
END_TEST

START_TEST(a_silent_neighbour_is_a_lost_one)
{
    rig_join(&r);
    rig_ready(&r, 1, 2, 4);
    pl_sim_kill(r.up.process, true);
    const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_LINK_STATE, 2 * S);
    ck_assert_ptr_nonnull(m);
    ck_assert(!m->e.m->link_state->downstream);
}
END_TEST

/* --- Frames --- */

START_TEST(one_stage_gives_the_tokens_of_the_model)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    rig_send_frame(&r, r.to_node, 1, 1, 0, 10, true);
    const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_RESULT, S);
    ck_assert_ptr_nonnull(m);
    const Paceline__Result *res = m->e.m->result;
    ck_assert_uint_eq(res->frame, 1);
    ck_assert_uint_eq(res->n_tokens, 1);
    ck_assert_int_eq(res->tokens[0]->seq, 0);
    ck_assert_int_eq(res->tokens[0]->pos, 10);
    ck_assert_int_eq(res->tokens[0]->token, oracle_token(10));
    /* The same in two pieces, the second one row; a frame without a token to sample has a Result too. */
    rig_ready(&r, 2, 0, RIG_LAYERS);
    rig_send_frame(&r, r.to_node, 2, 1, 0, 9, false);
    rig_send_frame(&r, r.to_node, 2, 2, 9, 1, true);
    m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_RESULT, S);
    ck_assert_ptr_nonnull(m);
    ck_assert_uint_eq(m->e.m->result->n_tokens, 0);
    m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_RESULT, S);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(m->e.m->result->tokens[0]->token, oracle_token(10));
}
END_TEST

START_TEST(each_frame_gives_one_credit_back)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    for (uint64_t id = 1; id <= 3; id++) rig_send_frame(&r, r.to_node, 1, id, (int32_t)(id - 1), 1, true);
    for (int i = 0; i < 3; i++) {
        const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_CREDIT, S);
        ck_assert_ptr_nonnull(m);
        ck_assert_uint_eq(m->e.m->credit->frames, 1);
        ck_assert_uint_eq(m->e.m->epoch, 1);
    }
    rig_run(&r, S);
    ck_assert(!actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_CREDIT));
    ck_assert_uint_eq(report().frames, 3);
    ck_assert_uint_eq(report().rows, 3);
    ck_assert_uint_eq(r.coordinator.stats.frames, 3);
}
END_TEST

START_TEST(a_middle_stage_passes_the_header_on_with_its_own_hidden)
{
    rig_join(&r);
    rig_ready(&r, 1, 2, 4);
    rig_send_frame(&r, r.up.link, 1, 1, 0, 5, true);
    const actor_message *m = actor_take(&r.down, PACELINE__ENVELOPE__BODY_FRAME, S);
    ck_assert_ptr_nonnull(m);
    const Paceline__Frame *f = m->e.m->frame;
    ck_assert_uint_eq(f->n_ops, 2);
    ck_assert_str_eq(f->ops[0]->sequence->request_id, "r1");
    ck_assert_uint_eq(f->n_seq, 5);
    ck_assert_uint_eq(f->n_logits, 1);
    ck_assert_int_eq(f->token[4], 5);
    ck_assert_uint_eq(f->n_tensors, 1);
    ck_assert_str_eq(f->tensors[0]->name, "hidden");
    /* What it sent is what layers 0 to 3 give, which is what a stage of layers 4 and 5 turns into the model's token:
     * played by a stage of the fixture. */
    pl_stage_shape shape = {4, RIG_LAYERS, 16, 128, 4, 32, 1, {PL_TYPE_F32, PL_TYPE_F32}};
    hash_stage *last = hash_stage_new(&shape, r.model.profile, &r.model.weights);
    pl_sample_params greedy = {0};
    int32_t blocks[] = {3};
    pl_kv_op ops[] = {{.kind = PL_KV_OPEN, .params = &greedy}, {.kind = PL_KV_EXTEND, .blocks = blocks, .n_blocks = 1}};
    pl_row rows[5] = {0};
    for (int i = 0; i < 5; i++) rows[i] = (pl_row){.pos = i, .token = i + 1, .logits = i == 4};
    pl_sampled sampled;
    pl_error err = {0};
    ck_ok(hash_stage_run(last,
                         &(pl_micro_batch){.ops = ops,
                                           .n_ops = 2,
                                           .rows = rows,
                                           .n_rows = 5,
                                           .hidden_in = (const float *)(const void *)m->m->parts[0]->data,
                                           .sampled = &sampled},
                         &err),
          err);
    ck_assert_int_eq(sampled.token, oracle_token(5));
    hash_stage_free(last);
    ck_assert_ptr_nonnull(actor_take(&r.up, PACELINE__ENVELOPE__BODY_CREDIT, S));
}
END_TEST

START_TEST(the_last_stage_samples_and_answers_the_coordinator)
{
    rig_join(&r);
    rig_ready(&r, 1, 4, RIG_LAYERS);
    rig_send_frame(&r, r.up.link, 1, 1, 0, 7, true);
    const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_RESULT, S);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(m->e.m->result->tokens[0]->token, oracle_token(7));
}
END_TEST

START_TEST(a_stage_does_not_compute_what_the_next_one_cannot_take)
{
    rig_join(&r);
    rig_ready(&r, 1, 2, 4);
    for (uint64_t id = 1; id <= 3; id++) rig_send_frame(&r, r.up.link, 1, id, (int32_t)(id - 1), 1, false);
    rig_run(&r, S);
    ck_assert_uint_eq(report().frames, 3);
    for (uint64_t id = 4; id <= 6; id++) rig_send_frame(&r, r.up.link, 1, id, (int32_t)(id - 1), 1, false);
    rig_run(&r, S);
    ck_assert_uint_eq(report().frames, 3); /* three are with the next stage, which gave nothing back */
    ck_assert_ptr_nonnull(actor_take(&r.down, PACELINE__ENVELOPE__BODY_FRAME, 0));
    Paceline__Credit c = PACELINE__CREDIT__INIT;
    c.frames = 1;
    actor_send(&r.down, r.down.link, 1, ENVELOPE(CREDIT, credit, &c), NULL);
    rig_run(&r, S);
    ck_assert_uint_eq(report().frames, 4);
    ck_assert(!actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_FAILURE));
}
END_TEST

START_TEST(credits_that_nobody_took_are_a_broken_format)
{
    rig_join(&r);
    rig_ready(&r, 1, 2, 4);
    Paceline__Credit c = PACELINE__CREDIT__INIT;
    c.frames = 1;
    actor_send(&r.down, r.down.link, 1, ENVELOPE(CREDIT, credit, &c), NULL);
    fails(1, PL_ERR_FORMAT, "credits");
}
END_TEST

START_TEST(more_frames_than_credits_are_a_broken_format)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    fake_compute_pause(r.compute, true);
    for (uint64_t id = 1; id <= 4; id++) rig_send_frame(&r, r.to_node, 1, id, (int32_t)(id - 1), 1, false);
    fails(1, PL_ERR_FORMAT, "more frames than the 3 credits");
    fake_compute_pause(r.compute, false);
    rig_run(&r, S);
    rig_ready(&r, 2, 0, RIG_LAYERS);
}
END_TEST

START_TEST(a_gap_in_the_ids_is_a_broken_format)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    rig_send_frame(&r, r.to_node, 1, 2, 0, 1, false);
    fails(1, PL_ERR_FORMAT, "expected frame 1");
}
END_TEST

START_TEST(a_frame_before_ready_is_a_broken_format)
{
    rig_join(&r);
    rig_plan(&r, 0, RIG_LAYERS);
    rig_load(&r, 1);
    rig_send_frame(&r, r.to_node, 1, 1, 0, 1, false);
    fails(1, PL_ERR_FORMAT, "before");
}
END_TEST

START_TEST(a_frame_of_an_older_epoch_is_dropped_and_counted)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    rig_load(&r, 2);
    rig_send_frame(&r, r.to_node, 1, 1, 0, 1, true);
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, 5 * S));
    ck_assert_uint_eq(report().stale_frames, 1);
    ck_assert(!actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_RESULT));
    ck_assert_str_eq(state(), "ready");
}
END_TEST

START_TEST(a_frame_that_runs_when_its_epoch_ends_gives_nothing)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    fake_compute_pause(r.compute, true);
    rig_send_frame(&r, r.to_node, 1, 1, 0, 3, true);
    rig_run(&r, 100 * MS);
    rig_load(&r, 2);
    rig_run(&r, 100 * MS);
    fake_compute_pause(r.compute, false);
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_READY, 5 * S));
    ck_assert(!actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_RESULT));
    rig_send_frame(&r, r.to_node, 2, 1, 0, 3, true);
    const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_RESULT, S);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(m->e.m->result->tokens[0]->token, oracle_token(3));
}
END_TEST

START_TEST(what_the_stage_refuses_is_a_failure_that_names_stage_and_frame)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    rig_send_frame(&r, r.to_node, 1, 1, 4, 1, false); /* sequence 0 was never opened */
    fails(1, PL_ERR_INVALID, "frame 1");
    rig_ready(&r, 2, 0, RIG_LAYERS);
    fake_compute_fail_run(r.compute, PL_ERR_IO);
    rig_send_frame(&r, r.to_node, 2, 1, 0, 1, false);
    fails(2, PL_ERR_IO, "stage 1 of 1");
}
END_TEST

START_TEST(rows_beyond_the_plan_and_hidden_of_another_shape_are_a_broken_format)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    rig_send_frame(&r, r.to_node, 1, 1, 0, 33, false);
    fails(1, PL_ERR_FORMAT, "33");
    rig_ready(&r, 2, 2, 4);
    int32_t first = (int32_t)r.plan.layer_first;
    r.plan.layer_first = 0; /* a frame without hidden */
    rig_send_frame(&r, r.up.link, 2, 1, 0, 3, false);
    fails(2, PL_ERR_FORMAT, "tensors");
    r.plan.layer_first = (uint32_t)first;
}
END_TEST

START_TEST(frames_from_the_wrong_neighbour_are_not_run)
{
    rig_join(&r);
    rig_ready(&r, 1, 2, 4);
    rig_send_frame(&r, r.down.link, 1, 1, 0, 1, false);
    rig_run(&r, S);
    ck_assert_uint_eq(report().frames, 0);
    ck_assert(actor_has(&r.coordinator, PACELINE__ENVELOPE__BODY_LINK_STATE));
    rig_ready(&r, 2, 2, 4);
    rig_send_frame(&r, r.to_node, 2, 1, 0, 1, false);
    fails(2, PL_ERR_FORMAT, "upstream");
}
END_TEST

START_TEST(the_timeline_has_a_line_for_each_frame)
{
    char path[] = "/tmp/paceline-trace-XXXXXX", text[512];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    rig_fini(&r);
    rig_init(&r, &(rig_options){.trace_path = path});
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    rig_send_frame(&r, r.to_node, 1, 1, 0, 4, true);
    rig_send_frame(&r, r.to_node, 1, 2, 4, 1, true);
    rig_run(&r, S);
    ssize_t n = read(fd, text, sizeof text - 1);
    ck_assert_int_gt(n, 0);
    text[n] = 0;
    unsigned long long v[4];
    int rows;
    ck_assert_int_eq(sscanf(text,
                            "{\"node\":\"n1\",\"epoch\":1,\"frame\":1,\"rows\":%d,\"recv_ns\":%llu,\"start_ns\":%llu,"
                            "\"end_ns\":%llu,\"sent_ns\":%llu}",
                            &rows, &v[0], &v[1], &v[2], &v[3]),
                     5);
    ck_assert_int_eq(rows, 4);
    ck_assert_uint_le(v[0], v[1]);
    ck_assert_uint_lt(v[1], v[2]);
    ck_assert_uint_le(v[2], v[3]);
    ck_assert_ptr_nonnull(strstr(text, "\"frame\":2"));
    close(fd);
    unlink(path);
}
END_TEST

/* --- The coordinator goes --- */

START_TEST(a_lost_coordinators_stage_is_kept_for_its_lease_and_nobody_else_gets_the_node)
{
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    uint64_t bytes = report().memory_bytes;
    ck_assert_uint_gt(bytes, 0);
    pl_sim_break(r.process, r.coordinator.process);
    rig_run(&r, 2 * S);
    ck_assert_str_eq(state(), "alone");
    ck_assert_uint_eq(report().memory_bytes, bytes);
    Paceline__Hello h = PACELINE__HELLO__INIT;
    h.role = PACELINE__HELLO__ROLE__COORDINATOR;
    h.protocol = PL_PROTOCOL;
    h.name = (char *)"c2";
    actor_dial(&r.up, "sim://node", &r.key);
    rig_run(&r, 100 * MS);
    actor_send(&r.up, r.up.link, 0, ENVELOPE(HELLO, hello, &h), NULL);
    ck_assert_ptr_nonnull(actor_take(&r.up, PACELINE__ENVELOPE__BODY_FAILURE, S));
    rig_run(&r, 5 * S);
    ck_assert_uint_eq(report().memory_bytes, 0);
    ck_assert_uint_eq(fake_compute_stage_bytes(r.compute), 0);
    r.up.link = NULL;
    actor_dial(&r.up, "sim://node", &r.key);
    rig_run(&r, 100 * MS);
    actor_send(&r.up, r.up.link, 0, ENVELOPE(HELLO, hello, &h), NULL);
    ck_assert_ptr_nonnull(actor_take(&r.up, PACELINE__ENVELOPE__BODY_HELLO, S));
}
END_TEST

START_TEST(a_coordinator_that_comes_back_loads_again)
{
    rig_join(&r);
    rig_ready(&r, 3, 0, RIG_LAYERS);
    pl_sim_break(r.process, r.coordinator.process);
    rig_run(&r, S);
    rig_join(&r);
    rig_send_frame(&r, r.to_node, 3, 1, 0, 1, true);
    rig_run(&r, 100 * MS);
    ck_assert_uint_eq(report().stale_frames, 1); /* the epoch was over with the link */
    rig_load(&r, 3);
    fails(3, PL_ERR_STALE, "3");
    rig_ready(&r, 4, 0, RIG_LAYERS);
}
END_TEST

static int n_left;
static void left(void *user)
{
    (void)user;
    n_left++;
}

START_TEST(leaving_waits_for_the_coordinators_word)
{
    n_left = 0;
    rig_join(&r);
    rig_ready(&r, 1, 0, RIG_LAYERS);
    pl_node_leave(r.node, left, NULL);
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_LEAVE, S));
    ck_assert_str_eq(state(), "leaving");
    rig_send_frame(&r, r.to_node, 1, 1, 0, 2, true); /* it works until then */
    ck_assert_ptr_nonnull(actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_RESULT, S));
    ck_assert_int_eq(n_left, 0);
    Paceline__Leave l = PACELINE__LEAVE__INIT;
    actor_send(&r.coordinator, r.to_node, 0, ENVELOPE(LEAVE, leave, &l), NULL);
    rig_run(&r, S);
    ck_assert_int_eq(n_left, 1);
    ck_assert_int_eq(r.coordinator.n_down, 1);
    rig_run(&r, 60 * S);
    ck_assert_int_eq(n_left, 1);
}
END_TEST

START_TEST(leaving_alone_or_unanswered_ends_too)
{
    n_left = 0;
    pl_node_leave(r.node, left, NULL);
    ck_assert_int_eq(n_left, 0); /* never from inside */
    rig_run(&r, S);
    ck_assert_int_eq(n_left, 1);
    rig_fini(&r);
    rig_init(&r, NULL);
    rig_join(&r);
    pl_node_leave(r.node, left, NULL);
    rig_run(&r, 40 * S);
    ck_assert_int_eq(n_left, 2);
}
END_TEST

/* --- Anything at any time --- */

enum {
    STATE_ALONE,
    STATE_JOINED,
    STATE_LOADING,
    STATE_CONNECTING,
    STATE_READY,
    STATE_RUNNING,
    STATE_BROKEN,
    STATE_LEASE,
    STATE_LEAVING,
    N_STATES
};
enum { FROM_COORDINATOR, FROM_UPSTREAM, FROM_STRANGER, N_SENDERS };

static void enter(int s)
{
    if (s == STATE_ALONE) return;
    rig_join(&r);
    if (s == STATE_JOINED) return;
    if (s == STATE_LOADING || s == STATE_CONNECTING) {
        rig_plan(&r, 2, 4);
        rig_load(&r, 5);
        rig_run(&r, s == STATE_LOADING ? 5 * MS : 2 * S);
        return;
    }
    rig_ready(&r, 5, 2, 4);
    if (s == STATE_RUNNING) {
        fake_compute_pause(r.compute, true);
        rig_send_frame(&r, r.up.link, 5, 1, 0, 3, true);
        rig_run(&r, 50 * MS);
    }
    if (s == STATE_BROKEN) {
        rig_send_frame(&r, r.up.link, 5, 9, 0, 3, true);
        rig_run(&r, 50 * MS);
    }
    if (s == STATE_LEASE) {
        pl_sim_break(r.process, r.coordinator.process);
        rig_run(&r, 100 * MS);
    }
    if (s == STATE_LEAVING) pl_node_leave(r.node, left, NULL);
}

static void send_kind(int kind, pl_link *link, uint64_t epoch)
{
    uint8_t key[32] = {0};
    ProtobufCBinaryData hash = {32, r.model.header_hash.b}, none = {32, key};
    Paceline__Hello hello = PACELINE__HELLO__INIT;
    Paceline__Welcome welcome = PACELINE__WELCOME__INIT;
    Paceline__Heartbeat heartbeat = PACELINE__HEARTBEAT__INIT;
    Paceline__Progress progress = PACELINE__PROGRESS__INIT;
    Paceline__Ready ready = PACELINE__READY__INIT;
    Paceline__Unload unload = PACELINE__UNLOAD__INIT;
    Paceline__Result result = PACELINE__RESULT__INIT;
    Paceline__Credit credit = PACELINE__CREDIT__INIT;
    Paceline__BlobGet get = PACELINE__BLOB_GET__INIT;
    Paceline__Blob blob = PACELINE__BLOB__INIT;
    Paceline__LinkState link_state = PACELINE__LINK_STATE__INIT;
    Paceline__Leave leave = PACELINE__LEAVE__INIT;
    Paceline__Failure f = PACELINE__FAILURE__INIT;
    hello.protocol = PL_PROTOCOL;
    hello.role = PACELINE__HELLO__ROLE__COORDINATOR;
    welcome.heartbeat_ns = 100 * MS;
    welcome.dead_after_ns = S;
    result.frame = 1;
    credit.frames = 1;
    get.hash = hash;
    get.size = 1;
    blob.hash = hash;
    blob.total = 1;
    f.status = PL_ERR_IO;
    f.text = (char *)"sent";
    link_state.failure = &f;
    (void)none;
    actor *a = &r.coordinator;
    switch (kind) {
    case PACELINE__ENVELOPE__BODY_HELLO: actor_send(a, link, epoch, ENVELOPE(HELLO, hello, &hello), NULL); break;
    case PACELINE__ENVELOPE__BODY_WELCOME:
        actor_send(a, link, epoch, ENVELOPE(WELCOME, welcome, &welcome), NULL);
        break;
    case PACELINE__ENVELOPE__BODY_HEARTBEAT:
        actor_send(a, link, epoch, ENVELOPE(HEARTBEAT, heartbeat, &heartbeat), NULL);
        break;
    case PACELINE__ENVELOPE__BODY_LOAD:
        rig_plan(&r, 2, 4);
        actor_send(a, link, epoch, ENVELOPE(LOAD, load, &r.plan), NULL);
        break;
    case PACELINE__ENVELOPE__BODY_PROGRESS:
        actor_send(a, link, epoch, ENVELOPE(PROGRESS, progress, &progress), NULL);
        break;
    case PACELINE__ENVELOPE__BODY_READY: actor_send(a, link, epoch, ENVELOPE(READY, ready, &ready), NULL); break;
    case PACELINE__ENVELOPE__BODY_UNLOAD: actor_send(a, link, epoch, ENVELOPE(UNLOAD, unload, &unload), NULL); break;
    case PACELINE__ENVELOPE__BODY_FRAME:
        rig_plan(&r, 2, 4);
        rig_send_frame(&r, link, epoch, 1, 0, 2, true);
        break;
    case PACELINE__ENVELOPE__BODY_RESULT: actor_send(a, link, epoch, ENVELOPE(RESULT, result, &result), NULL); break;
    case PACELINE__ENVELOPE__BODY_CREDIT: actor_send(a, link, epoch, ENVELOPE(CREDIT, credit, &credit), NULL); break;
    case PACELINE__ENVELOPE__BODY_BLOB_GET: actor_send(a, link, epoch, ENVELOPE(BLOB_GET, blob_get, &get), NULL); break;
    case PACELINE__ENVELOPE__BODY_BLOB: actor_send(a, link, epoch, ENVELOPE(BLOB, blob, &blob), pl_part_new(1)); break;
    case PACELINE__ENVELOPE__BODY_LINK_STATE:
        actor_send(a, link, epoch, ENVELOPE(LINK_STATE, link_state, &link_state), NULL);
        break;
    case PACELINE__ENVELOPE__BODY_LEAVE: actor_send(a, link, epoch, ENVELOPE(LEAVE, leave, &leave), NULL); break;
    case PACELINE__ENVELOPE__BODY_FAILURE: actor_send(a, link, epoch, ENVELOPE(FAILURE, failure, &f), NULL); break;
    default: { /* not a message at all */
        pl_error err = {0};
        pl_msg *m;
        ck_ok(pl_msg_new(&m, &err), err);
        m->header = pl_part_copy((pl_bytes){(const uint8_t *)"\xff\x01garbage", 9});
        ck_ok(pl_link_send(link, &m, &err), err);
    }
    }
}

enum { GARBAGE = PACELINE__ENVELOPE__BODY_FAILURE + 1 };

/* Whatever comes, from whomever, whenever: no invariant breaks (checked after each event), nothing is run that should
 * not be, and the node is of use afterwards. */
START_TEST(any_message_in_any_state_leaves_a_node_that_works)
{
    int s = _i / N_SENDERS, from = _i % N_SENDERS;
    for (int kind = PACELINE__ENVELOPE__BODY_HELLO; kind <= GARBAGE; kind++)
        for (uint64_t epoch = 4; epoch <= 6; epoch++) {
            enter(s);
            uint64_t frames = report().frames;
            pl_link *link = from == FROM_COORDINATOR ? r.coordinator.link : from == FROM_UPSTREAM ? r.up.link : NULL;
            if (from == FROM_STRANGER) {
                r.down.link = NULL;
                actor_dial(&r.down, "sim://node", &r.key);
                rig_run(&r, 100 * MS);
                link = r.down.link;
            }
            if (link) {
                send_kind(kind, link, epoch);
                if (from == FROM_STRANGER && kind == GARBAGE) rig_run(&r, MS);
            }
            rig_run(&r, 500 * MS);
            fake_compute_pause(r.compute, false);
            rig_run(&r, 500 * MS);
            bool may_run = s == STATE_RUNNING || ((s == STATE_READY || s == STATE_LEAVING) && from == FROM_UPSTREAM &&
                                                  kind == PACELINE__ENVELOPE__BODY_FRAME && epoch == 5);
            if (!may_run) ck_assert_uint_eq(report().frames, frames);
            if (s != STATE_LEAVING && !r.node->left) {
                rig_run(&r, 7 * S); /* leases and silences end */
                actor_forget(&r.coordinator);
                actor_forget(&r.up);
                actor_forget(&r.down);
                r.coordinator.link = NULL;
                if (strcmp(state(), "alone") != 0) {
                    pl_sim_break(r.process, r.coordinator.process);
                    rig_run(&r, 10 * S);
                }
                r.node->coordinator.incarnation = 99; /* epochs start anew, as for a restarted coordinator */
                rig_join(&r);
                rig_ready(&r, 8, 0, RIG_LAYERS);
                rig_send_frame(&r, r.to_node, 8, 1, 0, 3, true);
                const actor_message *m = actor_take(&r.coordinator, PACELINE__ENVELOPE__BODY_RESULT, S);
                ck_assert_ptr_nonnull(m);
                ck_assert_int_eq(m->e.m->result->tokens[0]->token, oracle_token(3));
            }
            rig_fini(&r);
            rig_init(&r, NULL);
        }
}
END_TEST

Suite *node_suite(void);
Suite *node_suite(void)
{
    Suite *s = suite_create("node");
    TCase *c = tcase_create("node");
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_test(c, a_dialed_node_says_who_it_is_and_what_it_has);
    tcase_add_test(c, a_node_that_joins_says_hello_first_and_comes_back_after_a_loss);
    tcase_add_test(c, a_coordinator_that_never_answers_is_dialed_again);
    tcase_add_test(c, a_second_coordinator_is_refused_by_the_name_of_the_first);
    tcase_add_test(c, a_coordinator_whose_key_is_not_known_is_refused);
    tcase_add_test(c, another_protocol_is_refused_with_both_numbers);
    tcase_add_test(c, heartbeats_go_both_ways_and_silence_ends_the_link);
    tcase_add_test(c, a_node_that_was_stopped_does_not_take_its_own_sleep_for_its_peers_silence);
    tcase_add_test(c, what_is_missing_is_fetched_and_a_second_time_nothing);
    tcase_add_test(c, ready_says_the_bytes_that_the_profile_says);
    tcase_add_test(c, an_interrupted_fetch_goes_on_where_it_was);
    tcase_add_test(c, a_new_load_in_the_middle_of_a_fetch_ends_the_old_epoch);
    tcase_add_test(c, progress_comes_but_not_too_often);
    tcase_add_test(c, a_coordinator_that_sends_other_bytes_is_named_with_the_blob);
    tcase_add_test(c, a_blob_that_the_coordinator_does_not_have_fails_the_load);
    tcase_add_test(c, a_plan_beyond_the_budget_is_refused_with_the_numbers);
    tcase_add_test(c, a_budget_that_fits_to_the_byte_is_enough_and_one_less_is_not);
    tcase_add_test(c, plans_that_do_not_match_the_header_are_refused);
    tcase_add_test(c, a_load_that_is_not_newer_is_stale);
    tcase_add_test(c, unload_frees_the_stage_unless_it_is_of_an_older_epoch);
    tcase_add_test(c, a_neighbour_with_another_key_is_refused_and_the_right_one_is_still_awaited);
    tcase_add_test(c, a_neighbour_on_the_side_that_has_none_is_refused);
    tcase_add_test(c, a_neighbour_that_is_early_waits_for_the_load);
    tcase_add_test(c, a_neighbour_whose_load_never_comes_is_let_go);
    tcase_add_test(c, no_more_than_sixteen_neighbours_wait);
    tcase_add_test(c, a_neighbour_of_an_epoch_that_is_over_is_told_so);
    tcase_add_test(c, a_node_dials_its_neighbour_until_it_is_there);
    tcase_add_test(c, a_neighbour_that_is_dialed_in_vain_is_named_in_the_failure);
    tcase_add_test(c, a_neighbour_that_loads_for_long_may_dial_late);
    tcase_add_test(c, a_neighbour_lost_is_reported_with_its_side);
    tcase_add_test(c, a_silent_neighbour_is_a_lost_one);
    tcase_add_test(c, one_stage_gives_the_tokens_of_the_model);
    tcase_add_test(c, each_frame_gives_one_credit_back);
    tcase_add_test(c, a_middle_stage_passes_the_header_on_with_its_own_hidden);
    tcase_add_test(c, the_last_stage_samples_and_answers_the_coordinator);
    tcase_add_test(c, a_stage_does_not_compute_what_the_next_one_cannot_take);
    tcase_add_test(c, credits_that_nobody_took_are_a_broken_format);
    tcase_add_test(c, more_frames_than_credits_are_a_broken_format);
    tcase_add_test(c, a_gap_in_the_ids_is_a_broken_format);
    tcase_add_test(c, a_frame_before_ready_is_a_broken_format);
    tcase_add_test(c, a_frame_of_an_older_epoch_is_dropped_and_counted);
    tcase_add_test(c, a_frame_that_runs_when_its_epoch_ends_gives_nothing);
    tcase_add_test(c, what_the_stage_refuses_is_a_failure_that_names_stage_and_frame);
    tcase_add_test(c, rows_beyond_the_plan_and_hidden_of_another_shape_are_a_broken_format);
    tcase_add_test(c, frames_from_the_wrong_neighbour_are_not_run);
    tcase_add_test(c, the_timeline_has_a_line_for_each_frame);
    tcase_add_test(c, a_lost_coordinators_stage_is_kept_for_its_lease_and_nobody_else_gets_the_node);
    tcase_add_test(c, a_coordinator_that_comes_back_loads_again);
    tcase_add_test(c, leaving_waits_for_the_coordinators_word);
    tcase_add_test(c, leaving_alone_or_unanswered_ends_too);
    tcase_add_loop_test(c, any_message_in_any_state_leaves_a_node_that_works, 0, N_STATES * N_SENDERS);
    suite_add_tcase(s, c);
    return s;
}
