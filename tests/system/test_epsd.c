/* epsd's own options. What --listen and --group do is in test_listen and test_group. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *arguments[6];
    const char *words;
} wrongs[] = {
    {{NULL}, "--listen ADDRESS is needed"},
    {{"--listen", ""}, "--listen ADDRESS is needed"},
    {{"--listen", "lab", "more"}, "--listen ADDRESS is needed"},
    {{"--listen", "lab", "--host-mem", "much"}, "--host-mem: 'much'"},
    {{"--listen", "lab", "--host-mem", "0"}, "--host-mem: '0'"},
    {{"--listen", "lab", "--group", "no-such-group"}, "--group no-such-group"},
    {{"--listen", "lab", "--private", "--group", "users"}, "--private and --group"},
};

enum { N_WRONGS = sizeof wrongs / sizeof *wrongs };

SUITE_FIXTURE(processes_setup, processes_remove)

TEST_EACH(a_mistake_is_one_sentence_and_status_2, N_WRONGS)
{
    const char *log = processes_path("epsd.log");

    ck_assert_int_eq(processes_wait(processes_start("epsd", wrongs[_i].arguments, log)), 2);
    char *said = processes_read(log);
    ck_assert_msg(strncmp(said, "epsd: ", 6) == 0 && strstr(said, wrongs[_i].words), "%s", said);
    ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
    free(said);
}

TEST(a_job_past_the_cap_is_refused)
{
    const char *const listen[] = {"--listen", "lab", "--host-mem", "100KiB", NULL};
    const char *const lend[] = {"--connect", "lab", "--device-mem", "256MiB", NULL};
    const char *files[] = {processes_text("tiny.txt", 8000)};
    struct eps_train_options options =
        processes_options(processes_config("tiny.json", 1, 2, 16, 32), files, processes_path("out"));
    struct eps_error error = {""};
    pid_t daemon = processes_start("epsd", listen, NULL), worker = processes_start("eps-worker", lend, NULL);

    processes_await_workers("lab", 1);
    options.connect = "lab";
    options.batch = 4;
    options.steps = 1;
    ck_assert_int_lt(eps_train(&options, NULL, NULL, &error), 0);
    ck_assert_msg(strstr(error.text, "100.0 KiB are what the daemon's --host-mem allows") != NULL, "%s", error.text);
    ck_assert_int_eq(eps_stop("lab", &error), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert_int_eq(processes_wait(worker), 0);
}
