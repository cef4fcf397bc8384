#include "tests/kit/test.h"

#include "eps/job/job_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct job *job;

static void size_model(uint32_t width)
{
    const struct model_config config = {.n_layers = 2,
                                        .n_heads = 2,
                                        .width = width,
                                        .inner_width = 4 * width,
                                        .n_positions = 32,
                                        .vocabulary = 256,
                                        .tied = true,
                                        .scale_attention = true,
                                        .norm_epsilon = 1e-5f,
                                        .initializer_range = 0.02f};
    struct error err = {""};

    model_free(&job->model);
    ck_assert_int_eq(model_init(&job->model, &config, &err), 0);
}

/* One worker, whose device is another memory than the host's. */
static void setup(void)
{
    job = calloc(1, sizeof *job);
    ck_assert_ptr_nonnull(job);
    job_init(job);
    size_model(16);
    job->request = (struct message){.kind = MESSAGE_JOB};
    job->request.job.train = true;
    job->request.job.batch = 4;
    job->request.job.seq = 32;
    job->request.job.n_parts = 1;
    job->n_planned = 1;
}

static void teardown(void)
{
    model_free(&job->model);
    free(job);
}

SUITE_FIXTURE(setup, teardown)

static uint64_t total(void)
{
    struct error err = {""};

    ck_assert_int_eq(job_check_host(job, 0, 0, &err), 0);
    return job->host.total;
}

static void expect_refusal(uint64_t cap, const char *says)
{
    struct error err = {""};

    ck_assert_int_eq(job_check_host(job, cap, 0, &err), -ENOMEM);
    job_add_remedy(job, cap, 0, &err);
    ck_assert_msg(strstr(err.text, says) != NULL, "%s", err.text);
}

TEST(a_cap_of_what_it_takes_suffices_and_a_byte_less_does_not)
{
    const uint64_t need = total();
    struct error err = {""};

    ck_assert_int_eq(job_check_host(job, need, 0, &err), 0);
    expect_refusal(need - 1, "are what the daemon's --host-mem allows");
    expect_refusal(need - 1, "of host memory (inbox "); /* the largest term first: three slots of the largest unit */
}

TEST(of_the_daemon_s_cap_and_the_job_s_the_smaller_counts)
{
    const uint64_t need = total();
    struct error err = {""};

    job->request.job.host_mem = need - 1;
    expect_refusal(0, ", 2");
    expect_refusal(need, "are what --host-mem allows");
    job->request.job.host_mem = need;
    ck_assert_int_eq(job_check_host(job, need + 1, 0, &err), 0);
    expect_refusal(need - 1, "are what the daemon's --host-mem allows");
}

/* Moments of 2 + 2 bytes a parameter instead of 4 + 4; the sum of a fenced commit is 4 more. */
/* 16-bit moments take 4 bytes a parameter less, and a buffer for files that fp32 does without. */
TEST(a_refusal_names_what_would_fit)
{
    size_model(256);
    const uint64_t less = 4 * job->model.segment_n - PLAN_HOST_RUN_BYTES, need = total();

    expect_refusal(need - less, "; --moments bf16 would take ");
    expect_refusal(need - less - 1, "; choose a smaller model");
    job->request.job.clip_norm = 1;
    const uint64_t fenced = total();
    ck_assert_uint_gt(fenced, need);
    expect_refusal(need, "; --commit eager without --clip-norm would take ");
    expect_refusal(fenced - less, "; --moments bf16 would take ");
    job->request.job.moments = NUMBER_BF16;
    expect_refusal(need - less, "; --commit eager without --clip-norm would take ");
    job->request.job.moments = NUMBER_FP32;
    expect_refusal(need - less, "; --moments bf16 and --commit eager without --clip-norm would take ");
}

TEST(devices_in_the_host_s_memory_are_counted_against_what_is_free)
{
    struct error err = {""};

    ck_assert_int_eq(job_check_host(job, 0, (uint64_t)1 << 60, &err), -ENOMEM);
    job_add_remedy(job, 0, (uint64_t)1 << 60, &err);
    ck_assert_msg(strstr(err.text, "(CPU workers 1") != NULL, "%s", err.text);
    ck_assert_msg(strstr(err.text, " are free; choose a smaller model") != NULL, "%s", err.text);
}

TEST(what_is_stashed_on_the_host_is_counted)
{
    const uint64_t need = total();

    job->stash_bytes[0] = 12345 * 64;
    ck_assert_uint_eq(total(), need + 12345 * 64);
    ck_assert_uint_eq(job->host.bytes[LEDGER_STASH], 12345 * 64);
}
