/* A client that opens and places the files of its checkpoints: what it does for a daemon, and what it does not. Its
 * answers go nowhere here; test_rights has them. */
#include "client/record/output.h"
#include "proto/model/output.h"
#include "proto/wire/files.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES "a.txt config.json model.safetensors optimizer.safetensors tokenizer.json tokenizer.model training.json "

static struct client_output output;
static struct client_link nowhere;
static struct files *files; /* the daemon's side */
static int directory, side;

static void setup(void)
{
    int theirs[FILES_SENT + 1];
    struct error err = {""};
    static const char text[] = "{\"options\": {}, \"files\": {\"tokenizer.json\": \"{}\", \"a.txt\": \"words\", "
                               "\"tokenizer.model\": \"AP8K\"}}";

    processes_setup();
    outputs_make("out");
    directory = open("out", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    side = memfd_create("side", MFD_CLOEXEC);
    ck_assert_int_eq(write(side, text, sizeof text - 1), (int)sizeof text - 1);
    client_output_init(&output, directory, side, 10);
    ck_assert_msg(files_open(&files, theirs, false, &err) == 0, "%s", err.text);
    ck_assert_msg(client_files_start(&output.files, theirs, -1, &err) == 0, "%s", err.text);
}

static void teardown(void)
{
    client_output_free(&output);
    client_files_close(output.files);
    files_release(files);
    close(directory);
    close(side);
    processes_remove();
}

SUITE_FIXTURE(setup, teardown)

/* Of a run that began at step 10 and has opened two. */
static void ask(enum message_output what, uint32_t id, uint64_t step)
{
    const struct message m = {.kind = MESSAGE_OUTPUT, .output = {.id = id, .step = step, .what = what}};

    client_output_hear(&output, &nowhere, &m, 12);
}

static bool is_there(const char *name)
{
    struct stat info;

    return fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

TEST(files_are_made_then_the_checkpoint_is_put_in_place)
{
    char target[40] = "";

    ask(OUTPUT_OPEN, 1, 12);
    ck_assert_str_eq(outputs_names("out/step-12.partial"), FILES);
    ck_assert(!is_there("step-12") && !is_there("latest"));
    ask(OUTPUT_PLACE, 1, 12);
    ck_assert(!is_there("step-12.partial"));
    ck_assert_str_eq(outputs_names("out/step-12"), FILES);
    ck_assert_int_eq(readlinkat(directory, "latest", target, sizeof target - 1), 7);
    ck_assert_str_eq(target, "step-12");
    client_output_free(&output);
    ck_assert(is_there("step-12"));
    ask(OUTPUT_OPEN, 2, 10); /* what the run began with can be saved again */
    ck_assert(is_there("step-10.partial"));
}

TEST(what_is_dropped_or_not_finished_goes)
{
    ask(OUTPUT_OPEN, 1, 11);
    ask(OUTPUT_DROP, 1, 11);
    ck_assert_str_eq(outputs_names("out"), "");
    ask(OUTPUT_OPEN, 2, 12);
    client_output_free(&output);
    ck_assert_str_eq(outputs_names("out"), "");
}

/* Not of this run, not yet, two at once, one that was not begun, another's end. */
TEST(what_is_out_of_turn_is_not_done)
{
    ask(OUTPUT_OPEN, 1, 9);
    ask(OUTPUT_OPEN, 1, 13);
    ask(OUTPUT_OPEN, 1, MESSAGE_NO_STEP);
    ask(OUTPUT_PLACE, 1, 12);
    ask(OUTPUT_DROP, 1, 12);
    ck_assert_str_eq(outputs_names("out"), "");
    ask(OUTPUT_OPEN, 1, 11);
    ask(OUTPUT_OPEN, 2, 12);
    ck_assert(!is_there("step-12.partial"));
    ask(OUTPUT_PLACE, 2, 12);
    ask(OUTPUT_DROP, 2, 12);
    ck_assert(!is_there("step-12") && !is_there("step-11"));
    ck_assert_str_eq(outputs_names("out/step-11.partial"), FILES);
    ask(OUTPUT_PLACE, 1, 11);
    ck_assert(is_there("step-11"));
}

/* What stands there and is no checkpoint stays, whatever a daemon asks for. */
TEST(what_is_no_checkpoint_is_not_replaced)
{
    ck_assert_int_eq(mkdirat(directory, "step-12", 0777), 0);
    outputs_write("out/step-12", "thesis.tex", "years of work");
    ask(OUTPUT_OPEN, 1, 12);
    ask(OUTPUT_PLACE, 1, 12);
    ck_assert(is_there("step-12/thesis.tex"));
    ck_assert(!is_there("step-12.partial") && !is_there("latest"));
    ck_assert_int_eq(output.partial_fd, -1);
}
