/* Bits of a daemon's memory change by themselves while it trains, or rests. The run says what changed, goes on from its
 * last whole checkpoint, and ends with the bits of one to which nothing happened. Real processes; Linux's
 * /proc/PID/mem. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(120)

enum { STEPS = 9, SAVED = 3, FLIPS = 64 };

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 3, 2, 120, 32, "\"tie_word_embeddings\": false");
    processes_text("text.txt", 2000);
}

SUITE_FIXTURE(setup, processes_remove)

/* Where bits change, and what the run calls it. */
static const struct kind {
    const char *mapping; /* of the daemon; NULL: a moment, or both in one mapping */
    const char *freeze;
    bool nan; /* whole numbers, which the worker computes with before the optimizer reads them */
    const char *says[2];
} kinds[] = {
    {"eps-weights", NULL, false, {" the weights of transformer.", " the weights of lm_head."}},
    {"eps-weights", NULL, true, {" the weights of transformer.", " the weights of lm_head."}},
    {"eps-weights", "*.attn.*", false, {" the frozen weights of ", " the weights of "}},
    {NULL, NULL, false, {" the first moments of ", " the second moments of "}},
};

struct fate {
    const struct kind *kind;
    uint64_t step; /* when it happens */
    bool happened;
    char notes[4000];
};

static uint64_t rounded_to_pages(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* From what metrics.jsonl says of the daemon's memory: bytes of each of both moments, 2 MB. */
static uint64_t moments_bytes(void)
{
    char *const text = processes_read(processes_path("mine/metrics.jsonl"));
    const char *const at = strstr(text, "\"first_moment\": ");

    ck_assert_ptr_nonnull(at);
    const uint64_t bytes = strtoull(at + strlen("\"first_moment\": "), NULL, 10);
    free(text);
    return rounded_to_pages(bytes);
}

static void find_mapping(uint64_t *begin, uint64_t *end, pid_t daemon, const char *name)
{
    const uint64_t bytes = name ? 0 : moments_bytes();
    char *const maps = processes_read(print("/proc/%d/maps", (int)daemon));
    bool found = false;

    for (char *line = strtok(maps, "\n"); line && !found; line = strtok(NULL, "\n")) {
        char *rest;
        *begin = strtoull(line, &rest, 16), *end = strtoull(rest + 1, &rest, 16);
        found = name ? strncmp(rest, " rw", 3) == 0 && strstr(rest, name)
                     : strncmp(rest, " rw-p", 5) == 0 && (*end - *begin == bytes || *end - *begin == 2 * bytes) &&
                           !strchr(rest, '/');
    }
    free(maps);
    ck_assert(found);
}

/* One bit, or one number, in each of FLIPS places, evenly apart. */
static void flip_bits(pid_t daemon, const struct kind *kind)
{
    const int memory = open(print("/proc/%d/mem", (int)daemon), O_RDWR | O_CLOEXEC);
    const uint32_t nan = 0x7fc00000;
    uint64_t begin, end;
    uint32_t word;

    ck_assert_int_ge(memory, 0);
    find_mapping(&begin, &end, daemon, kind->mapping);
    for (uint64_t i = 0; i < FLIPS; i++) {
        const off_t at = (off_t)(begin + (end - begin) / FLIPS / 4 * 4 * i);
        ck_assert_int_eq(pread(memory, &word, 4, at), 4);
        word = kind->nan ? nan : word ^ UINT32_C(1) << i % 23; /* else of the fraction: all stays finite */
        ck_assert_int_eq(pwrite(memory, &word, 4, at), 4);
    }
    close(memory);
}

static void on_step(void *user, const struct eps_step *step)
{
    struct fate *fate = user;
    const pid_t daemon = processes_find("epsd");

    if (step->step != fate->step || fate->happened)
        return;
    fate->happened = true;
    ck_assert_int_eq(kill(daemon, SIGSTOP), 0);
    flip_bits(daemon, fate->kind);
    ck_assert_int_eq(kill(daemon, SIGCONT), 0);
}

static void on_note(void *user, const char *sentence)
{
    struct fate *fate = user;
    const size_t n = strlen(fate->notes);

    snprintf(fate->notes + n, sizeof fate->notes - n, "%s\n", sentence);
}

static struct eps_train_options begin(const char *out, const struct kind *kind)
{
    static const char *const files[] = {"text.txt"};
    struct eps_train_options o = processes_options("model.json", files, out);

    o.steps = STEPS, o.batch = 4, o.seq = 16, o.save_every = SAVED, o.keep = 0, o.check_memory = true, o.restarts = 1;
    o.freeze = kind->freeze;
    return o;
}

TEST_EACH(a_run_whose_memory_is_damaged_says_what_and_ends_with_the_same_bits, COUNT(kinds))
{
    static const struct eps_train_events events = {.on_step = on_step, .on_note = on_note};
    const struct kind *kind = &kinds[_i];
    const struct eps_train_options whole = begin("whole", kind), mine = begin("mine", kind);
    struct fate fate = {.kind = kind, .step = SAVED + 2};
    struct eps_error error = {0};

    processes_train(&whole);
    ck_assert_msg(eps_train(&mine, &events, &fate, &error) == 0, "%s", error.text);
    ck_assert_holds(fate.notes, "restart 1 of 1: host memory is damaged: ", " step ",
                    " are not as they were written; ");
    ck_assert_msg(strstr(fate.notes, kind->says[0]) || strstr(fate.notes, kind->says[1]), "%s", fate.notes);
    outputs_check_same_latest("whole", "mine");
}

/* Without --restarts the run ends there, and its checkpoint is whole. */
TEST(a_run_without_restarts_ends_and_leaves_a_whole_checkpoint)
{
    static const struct eps_train_events events = {.on_step = on_step};
    struct eps_train_options o = begin("mine", &kinds[0]);
    struct fate fate = {.kind = &kinds[0], .step = SAVED + 2};
    struct eps_error error = {0};

    o.restarts = 0;
    ck_assert_int_ne(eps_train(&o, &events, &fate, &error), 0);
    ck_assert_holds(error.text, "host memory is damaged: ");
    ck_assert_int_eq(processes_eps("verify mine/step-%d", SAVED), 0);
}

/* Weights change while a job rests: whoever reads them next, before any step does, gets nothing that was made of
 * them. */
static const struct reading {
    struct message message;
    enum message_kind answer;
} readings[] = {
    {{.kind = MESSAGE_EVALUATE, .evaluate = {.n_rows = DRIVER_BATCH, .n_tokens = DRIVER_SEQ}}, MESSAGE_EVALUATED},
    {{.kind = MESSAGE_MAP}, MESSAGE_MAPPED},
    {{.kind = MESSAGE_SAVE, .save.step = 3}, MESSAGE_SAVED},
};

/* Of both buffers of weights, with replay: one of them is the present one. */
TEST_EACH(nobody_reads_weights_that_changed_after_their_update, COUNT(readings) * 2)
{
    const struct reading *reading = &readings[_i / 2];
    struct driver driver;
    struct error error = {""};
    struct message m;

    ck_assert_int_eq(mkdir("saved", 0700), 0);
    processes_daemon("lab", 1, NULL);
    driver_open(&driver, "lab", &(struct driver_options){.checks_memory = true, .fenced = _i % 2, .out = "saved"});
    driver_train(&driver, 3);
    driver_await_done(&driver, 3);
    const pid_t daemon = processes_find("epsd");
    ck_assert_int_eq(kill(daemon, SIGSTOP), 0);
    flip_bits(daemon, &kinds[0]);
    client_link_send(&driver.link, &reading->message);
    ck_assert_int_eq(kill(daemon, SIGCONT), 0);
    while (client_link_next(&driver.link, &m, NULL, &error) == 0)
        ck_assert_str_ne(message_name(m.kind), message_name(reading->answer));
    ck_assert_holds(error.text, "host memory is damaged: after step 3, the weights of ");
    ck_assert_int_ne(access("saved/step-3", F_OK), 0);
    driver_leave(&driver);
}
