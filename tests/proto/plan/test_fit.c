#include "proto/plan/memory/data.h"
#include "proto/plan/memory/division.h"
#include "proto/plan/memory/files.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/model/family.h"
#include "proto/plan/advice.h"
#include "proto/plan/search.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct model model;
static struct plan_fit_device devices[4];
static struct plan_fit_asked asked;
static struct plan_fit fit;

static void size_model_of(uint32_t n_blocks, uint32_t width)
{
    const struct model_config config =
        GPT2_CONFIG(n_blocks, 2, width, 4 * width, 32, 256, .tied = true, GPT2_ON(scale_attention));

    model_free(&model);
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
}

static void size_model(uint32_t width)
{
    size_model_of(2, width);
}

/* One worker, whose device is another memory than the host's; nothing else limits it. */
static void setup(void)
{
    size_model(16);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        devices[i] = (struct plan_fit_device){.backend = &plan_cuda,
                                              .profile = profile_default("cuda"),
                                              .budget = (uint64_t)4 << 30};
    asked = (struct plan_fit_asked){.model = &model,
                                    .goal = {.purpose = PLAN_TRAIN, .batch = 4, .seq = 32, .n_parts = 1},
                                    .devices = devices,
                                    .n_workers = 1,
                                    .n_cores = 2,
                                    .available = UINT64_MAX,
                                    .cap = UINT64_MAX};
}

static void teardown(void)
{
    model_free(&model);
    memset(&model, 0, sizeof model);
}

static void use_cpu(uint32_t n_workers, uint64_t budget)
{
    for (uint32_t i = 0; i < n_workers; i++)
        devices[i] =
            (struct plan_fit_device){.backend = &plan_cpu, .profile = profile_default("cpu"), .budget = budget};
    asked.n_workers = asked.goal.n_parts = n_workers;
}

SUITE_FIXTURE(setup, teardown)

/* The host's bytes where nothing limits them. Of CUDA's slots the fewest, which a cap leaves alone. */
static uint64_t host_needs(void)
{
    struct plan_fit_asked roomy = asked;

    roomy.available = roomy.cap = UINT64_MAX;
    ck_assert_int_eq(plan_fit(&fit, &roomy, NULL), 0);
    fit.setting.replay = false; /* nor replay, which a cap may leave out */
    plan_host(&fit.host, &model, &fit.setting);
    return fit.host.total;
}

static void expect_remedy(uint64_t cap, const char *says)
{
    struct error err = {"no"};

    asked.cap = cap;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), -ENOMEM);
    plan_remedy(&err, &asked, &fit);
    ck_assert_msg(strncmp(err.text, "no; ", 4) == 0 && strncmp(err.text + 4, says, strlen(says)) == 0,
                  "'%s' is not '%s'", err.text, says);
}

TEST(a_cap_of_what_the_host_needs_suffices_and_a_byte_less_does_not)
{
    const uint64_t need = host_needs();
    struct plan_fit_shortage shortage;

    asked.cap = need;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    ck_assert_uint_eq(fit.host.total, need);
    asked.cap = need - 1;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), -ENOMEM);
    ck_assert_int_eq(fit.host.replay, PLAN_REPLAY_OVER_CAP); /* said of what does not fit, too */
    plan_fit_shortage(&shortage, &fit);
    ck_assert(shortage.capped);
    ck_assert_uint_eq(shortage.need, need);
    ck_assert_uint_eq(shortage.have, need - 1);
    /* The largest term first: three slots of the largest unit. */
    ck_assert_msg(strncmp(shortage.terms, "inbox ", 6) == 0, "%s", shortage.terms);
}

/* To the byte: a second buffer of all weights, of 4 bytes each here; on the host also a fiftieth, and 8 MiB for each of
 * two processes (proto/plan/memory/host.c). */
TEST(replay_takes_room_that_is_left_and_changes_no_choice)
{
    const uint64_t need = host_needs() + 4 * model.segment_n;

    asked.cap = need;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    const struct plan_choice choice = fit.plans[0].choice;
    ck_assert_int_eq(fit.host.replay, PLAN_REPLAY_ON);
    ck_assert(fit.setting.replay);
    ck_assert_uint_eq(fit.host.bytes[LEDGER_REPLAY], 4 * model.segment_n);
    ck_assert_uint_eq(fit.host.total, need);
    asked.cap = need - 1;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    ck_assert_int_eq(fit.host.replay, PLAN_REPLAY_OVER_CAP);
    ck_assert(!fit.setting.replay);
    ck_assert_uint_eq(fit.host.bytes[LEDGER_REPLAY], 0);
    ck_assert_mem_eq(&fit.plans[0].choice, &choice, sizeof choice);
    asked.cap = UINT64_MAX;
    asked.available = need + need / 50 + 2 * ((uint64_t)8 << 20);
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    ck_assert_int_eq(fit.host.replay, PLAN_REPLAY_ON);
    asked.available--;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    ck_assert_int_eq(fit.host.replay, PLAN_REPLAY_NO_ROOM);
}

TEST(only_training_with_an_eager_commit_has_replay)
{
    asked.goal.fenced = true;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    ck_assert_int_eq(fit.host.replay, PLAN_REPLAY_NONE);
    asked.goal.fenced = false;
    asked.goal.purpose = PLAN_EVALUATE;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    ck_assert_int_eq(fit.host.replay, PLAN_REPLAY_NONE);
    asked.goal.purpose = PLAN_TRAIN;
    ck_assert_int_eq(model_freeze(&model, "h.*", (struct model_base){0}, NULL),
                     0); /* units that are frozen as a whole have one buffer */
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    ck_assert_uint_eq(fit.host.bytes[LEDGER_REPLAY], 4 * model.trained_n);
}

/* Moments of 2 + 2 bytes a parameter instead of 4 + 4, and a buffer for files that fp32 does without. The sum of a
 * fenced commit is 4 bytes a parameter more. */
TEST(a_remedy_names_what_would_fit)
{
    size_model(256);
    const uint64_t less = 4 * model.segment_n - PLAN_HOST_RUN_BYTES, need = host_needs();

    expect_remedy(need - less, "--moments bf16 would take ");
    expect_remedy(need - less - 1, "choose a smaller model, of about ");
    asked.goal.fenced = true;
    const uint64_t fenced = host_needs();
    ck_assert_uint_gt(fenced, need);
    expect_remedy(need, "--commit eager without --clip-norm would take ");
    expect_remedy(fenced - less, "--moments bf16 would take ");
    asked.goal.moments = NUMBER_BF16;
    expect_remedy(need - less, "--commit eager without --clip-norm would take ");
    asked.goal.moments = NUMBER_FP32;
    expect_remedy(need - less, "--moments bf16 and --commit eager without --clip-norm would take ");
}

/* 1024 rows of 32 tokens: 4 buffers of 4 bytes each for a token are more than all that the model needs. */
TEST(a_remedy_names_no_size_where_no_model_would_fit_and_for_a_large_batch_a_smaller_one)
{
    host_needs();
    expect_remedy(10, "choose a smaller model, or allow more");
    asked.goal.batch = 1024;
    asked.goal.moments = NUMBER_BF16;
    asked.goal.purpose = PLAN_EVALUATE;
    expect_remedy(host_needs() - 1, "choose a smaller --batch or --seq");
}

/* Both arenas and the daemon's bytes, and a fiftieth and 8 MiB for each of three processes:
 * proto/plan/memory/host.c. */
TEST(arenas_in_the_host_s_memory_count_against_what_is_free)
{
    use_cpu(2, (uint64_t)64 << 20);
    struct plan_setting setting = plan_fit_setting(&asked, 0);
    struct plan least;
    struct plan_fit_shortage shortage;

    plan_smallest(&least, &model, &setting, &(struct plan_wish){.no_host_stash = true});
    const uint64_t all = host_needs() + 2 * plan_total(&least), need = all + all / 50 + 3 * ((uint64_t)8 << 20);
    asked.available = need;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    ck_assert_uint_eq(plan_total(&fit.plans[0]), plan_total(&least));
    asked.available = need - 1;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), -ENOMEM);
    plan_fit_shortage(&shortage, &fit);
    ck_assert(!shortage.capped);
    ck_assert_uint_eq(shortage.need, need);
    ck_assert_ptr_nonnull(strstr(shortage.terms, "CPU workers "));
}

/* Where only some workers are small, nothing is rounded otherwise by the others. */
TEST(all_workers_get_the_smallest_microbatch_among_them)
{
    use_cpu(3, (uint64_t)64 << 20);
    asked.goal.batch = 12; /* 4 rows a part */
    const struct plan_setting setting = plan_fit_setting(&asked, 0);
    struct plan least[2];

    for (uint32_t rows = 1; rows <= 2; rows++)
        plan_smallest(&least[rows - 1], &model, &setting, &(struct plan_wish){.microbatch = rows});
    devices[1].budget = plan_total(&least[1]) - 1;
    ck_assert_uint_ge(devices[1].budget, plan_total(&least[0]));
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(fit.plans[i].choice.microbatch, 1);
        ck_assert_uint_le(plan_total(&fit.plans[i]), devices[i].budget);
    }
    ck_assert_uint_gt(plan_total(&fit.plans[0]), plan_total(&fit.plans[1]));
}

/* In bf16, and if the model has any: text is trained by whatever libraries. */
TEST(all_workers_compute_convolutions_by_one_library)
{
    struct model net = model;
    struct family family = *model.config.family;

    family.sees_images = true;
    net.config.family = &family;
    asked.n_workers = asked.goal.n_parts = 2;
    asked.goal.precision = NUMBER_BF16;
    devices[0].convolution = devices[1].convolution = 92501090;
    ck_assert_uint_eq(plan_fit_setting(&asked, 1).convolution, 0);
    asked.model = &net;
    ck_assert_uint_eq(plan_fit_setting(&asked, 1).convolution, 92501090);
    asked.goal.precision = NUMBER_FP32;
    ck_assert_uint_eq(plan_fit_setting(&asked, 1).convolution, 0);
    asked.goal.precision = NUMBER_BF16;
    devices[1].convolution = 91900090;
    ck_assert_uint_eq(plan_fit_setting(&asked, 0).convolution, 0);
    ck_assert_uint_eq(plan_fit_setting(&asked, 1).convolution, 0);
}

/* So many rows that the smallest device has its stash on the host; where the host has no room for that, the smallest
 * has it itself. */
TEST(the_minimum_trains_and_a_byte_less_is_refused_with_it_named)
{
    struct error err = {""};
    struct plan least[2];
    char bytes[32];

    use_cpu(1, 0);
    asked.goal.batch = 400;
    const struct plan_setting setting = plan_fit_setting(&asked, 0);
    for (int i = 0; i < 2; i++)
        plan_smallest(&least[i], &model, &setting, &(struct plan_wish){.no_host_stash = i});
    ck_assert_uint_lt(plan_total(&least[0]), plan_total(&least[1]));
    ck_assert_uint_eq(plan_fit_minimum(&asked), plan_total(&least[0]));
    devices[0].budget = plan_total(&least[0]);
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    devices[0].budget--;
    memset(&fit, 0, sizeof fit);
    ck_assert_int_eq(plan_fit(&fit, &asked, &err), -ENOSPC);
    snprintf(bytes, sizeof bytes, "(%ju bytes)", (uintmax_t)plan_total(&least[0]));
    ck_assert_holds(err.text, bytes);
    ck_assert_uint_eq(plan_total(&fit.plans[0]), plan_total(&least[0])); /* what both would take, for the table */
    ck_assert_uint_gt(fit.plans[0].host_stash_bytes, 0);
    ck_assert_uint_eq(fit.host.bytes[LEDGER_STASH], fit.plans[0].host_stash_bytes);
    devices[0].budget = plan_total(&least[1]);
    asked.cap = host_needs() - fit.host.bytes[LEDGER_STASH];
    ck_assert_uint_eq(plan_fit_minimum(&asked), plan_total(&least[1]));
}

/* Four parts on two hosts, of which this one computes two. */
static void use_hosts(void)
{
    size_model_of(12, 256);
    use_cpu(2, (uint64_t)64 << 20);
    asked.goal.n_parts = 4, asked.n_parts = 2;
    asked.goal.adamw = true;
    ck_assert_int_eq(plan_divide(&asked.own_first, &asked.n_own, &model, 2, 0, NULL), 0);
}

/* Eager commit would fit without replay, with which alone hosts commit so. */
TEST(a_remedy_for_several_hosts_counts_their_replay)
{
    use_hosts();
    asked.goal.moments = NUMBER_BF16;
    const uint64_t eager = host_needs();
    asked.goal.fenced = true;
    expect_remedy(eager, "choose a smaller model");
}

/* One part would need but one worker, and the other host would have none. */
TEST(advice_for_several_hosts_keeps_their_parts)
{
    struct error err = {"no"};

    use_hosts();
    asked.cap = UINT64_MAX;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), 0);
    plan_host(&fit.host, &model, &fit.setting);
    asked.cap = fit.host.total - 1;
    ck_assert_int_eq(plan_fit(&fit, &asked, NULL), -ENOMEM);
    ck_assert(plan_advise(&err, &asked, &(struct plan_advice_scope){.can_drop_workers = false}));
    ck_assert_msg(strncmp(err.text, "no; --moments bf16 would take ", 30) == 0, "%s", err.text);
}

/* Of what can be changed the cheapest: and not what the caller may not change. */
TEST(advice_is_the_cheapest_that_fits_within_its_scope)
{
    const struct plan_advice_scope all = {.can_drop_workers = true}, own = {.can_drop_workers = false};
    struct error err = {"no"};

    use_cpu(4, (uint64_t)64 << 20);
    asked.goal.adamw = true;
    struct plan_fit_asked fewer = asked;
    fewer.n_workers = 2;
    ck_assert_int_eq(plan_fit(&fit, &fewer, NULL), 0);
    asked.cap = fit.host.total;
    ck_assert(plan_advise(&err, &asked, &all));
    ck_assert_msg(strncmp(err.text, "no; --workers 2 --parts 4 would take ", 36) == 0, "%s", err.text);
    err = (struct error){"no"};
    ck_assert(plan_advise(&err, &asked, &own));
    ck_assert_msg(strncmp(err.text, "no; --parts 2 --batch 4 would take ", 34) == 0, "%s", err.text);
    err = (struct error){"no"};
    ck_assert(!plan_advise(&err, &asked, &(struct plan_advice_scope){.resumed = true}));
    ck_assert_str_eq(err.text, "no");
}
