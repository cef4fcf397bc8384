/* Numbers that stop being finite where no loss and no gradient shows it: real runs, of a model that is edited to do
 * so. */
#include "client/model/job.h"
#include "proto/model/file/safetensors.h"
#include "proto/plan/memory/data.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

SUITE_LABELS(long)

/* A directory "tiny" of fresh weights: one block of 2 heads, width 16, 32 positions. */
static void set_up(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 32);
    processes_text("text.txt", 4000);
    expect("eps train --model tiny.json --data text.txt --seq 8 --batch 4 --steps 1 --lr 1e-12 "
           "--device-mem 64MiB --out run",
           0);
    expect("eps export --model run --out tiny", 0);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(set_up, processes_remove)

/* A copy of tiny's directory in which elements of one tensor, from `first` on, have this value. */
static void edit(const char *name, const char *tensor, uint64_t first, float value)
{
    struct error err = {""};
    struct safetensors file;

    expect(print("rm -rf gone %s && cp -r tiny %s", name, name), 0);
    const int fd = open(print("%s/model.safetensors", name), O_RDWR);
    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    const struct safetensors_entry *entry = safetensors_find(&file, tensor);
    ck_assert_ptr_nonnull(entry);
    for (uint64_t i = first; i < entry->n; i++)
        ck_assert_int_eq(pwrite(fd, &value, sizeof value, (off_t)(entry->offset + i * sizeof value)), sizeof value);
    safetensors_close(&file);
    close(fd);
}

static const char *const ways[] = {
    "--parts 2 --optimizer adama",     "--parts 2 --optimizer adamw", "--clip-update 1", "--clip-norm 1",
    "--precision bf16 --moments bf16",
};

/* Position 32 is never reached by sequences of 8, so no loss and no gradient knows of it; a rate of 1 with a decay of
 * 10 takes each weight times -9, and 1e35 * 9^4 is more than the largest fp32, 3.4e38. A step's checkpoint is asked
 * for once the client has been told of the one before: of step-2 it has. */
TEST_EACH(a_weight_that_is_not_finite_ends_the_run_at_its_step_and_is_not_saved, COUNT(ways))
{
    edit("edge", "transformer.wpe.weight", 31 * 16, 1e35f);
    expect_sentence(print("eps train --model edge --data text.txt --seq 8 --batch 4 --steps 8 --lr 1 "
                          "--weight-decay 10 --min-lr 1 --schedule constant --warmup 0 --save-every 1 "
                          "--device-mem 64MiB --out gone %s",
                          ways[_i]),
                    1, "step 4 made weights of wpe that are not finite", "; its weights before that are in gone/step-");
    ck_assert_int_eq(access("gone/step-2/training.json", F_OK), 0);
    ck_assert_int_ne(access("gone/step-4", F_OK), 0);
    expect("eps verify gone", 0);
}

/* Each weight is finite; of what a norm makes, within -4 and 4, something times 3e38 is not. */
TEST_EACH(an_evaluation_that_is_not_finite_is_an_error, 2)
{
    static const char *const commands[] = {
        "eps eval --model huge --data text.txt --seq 8 --batch 4 --device-mem 64MiB",
        "eps train --model huge --data text.txt --seq 8 --batch 4 --steps 2 --eval-every 1 --device-mem 64MiB --out "
        "gone",
    };

    edit("huge", "transformer.ln_f.weight", 0, 3e38f);
    expect_sentence(
        commands[_i], 1,
        "the model's loss is not a number, as worker 1 (cpu) has it: its weights are damaged, or its training has "
        "diverged");
    ck_assert_int_ne(access("gone", F_OK), 0);
}

/* A daemon, in another process, that passes on what no worker should have said. */
static void on_evaluate(struct session *session, const struct message *m, const int *fds, unsigned n_fds)
{
    const struct message reply = {.kind = MESSAGE_EVALUATED, .evaluated.sum = INFINITY};

    (void)fds;
    ck_assert(m->kind == MESSAGE_EVALUATE && n_fds == 0);
    session_send(session, &reply);
}

TEST(a_client_believes_no_daemon_that_has_no_number)
{
    static const char *const files[] = {"ids.bin"};
    const struct client_data_rules rules = {.vocabulary = 256};
    struct client_link link;
    struct client_job job = {.link = &link, .goal = {.batch = 1, .seq = 8}};
    struct client_data data;
    const struct model_config config = {.vocabulary = 256};
    const struct client_source_setup setup = {.config = &config, .eval_data = &data};
    static struct stage st; /* its loop is there to the end of this process */
    struct error err = {""};
    uint64_t n_tokens;
    double loss;

    const pid_t pid = stage_begin_daemon(&st, on_evaluate);
    processes_write(files[0], (const char[32]){0}, 32);
    ck_assert_msg(client_data_open(&data, files, 1, &err) == 0 && client_data_check(&data, &rules, &err) == 0, "%s",
                  err.text);
    ck_assert_msg(client_link_init(&link, &err) == 0 && client_link_open(&link, st.directory, ROLE_CLIENT, &err) == 0 &&
                      segment_create(&job.data, "data", plan_data_of(&job.goal, 0).bytes, SEGMENT_READ_WRITE, &err) ==
                          0,
                  "%s", err.text);
    struct client_source *source;
    ck_assert_int_eq(client_source_open(&source, &client_source_text, &setup, &err), 0);
    ck_assert_int_eq(client_source_divide(source, &(struct client_division){.seq = 8, .stride = 8}, &err), 0);
    ck_assert_int_eq(client_source_make_room(source, 1, &err), 0);
    ck_assert_int_eq(client_job_evaluate(&loss, &n_tokens, &job, source, 0, &err), -EINVAL);
    ck_assert_str_eq(err.text, "the model's loss is infinite: its weights are damaged, or its training has diverged");
    client_source_close(source);
    client_job_free(&job);
    client_link_free(&link);
    client_data_free(&data);
    stage_end_daemon(&st, pid);
}
