/* A checkpoint that several hosts write together into one directory. All are in this process. */
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "eps/save/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct loss_scale no_scale = {0};

enum { STEP = 3, MOST = 3 };

SUITE_TIMEOUT(60)
SUITE_FIXTURE(processes_setup, processes_remove)

static const char side[] =
    "{\"options\": {\"x\": 1}, \"files\": {\"a.txt\": \"words\", \"tokenizer.model\": \"AP8K\"}}";

static struct capture_options options_of(const struct store_fixture *f, int output)
{
    return (struct capture_options){.store = &f->store,
                                    .step = STEP,
                                    .config = "{}",
                                    .config_bytes = 2,
                                    .side = side,
                                    .side_bytes = sizeof side - 1,
                                    .checkpoint = true,
                                    .output = output};
}

static int open_output(const char *name)
{
    const int fd = open(outputs_make(name), O_RDONLY | O_DIRECTORY);

    ck_assert_int_ge(fd, 0);
    return fd;
}

static void write_own(struct capture *capture, const struct store_fixture *f)
{
    struct error err = {""};

    for (uint32_t u = f->store.own.first; u < f->store.own.end; u++)
        ck_assert_msg(capture_write(capture, u, &err) == 0, "%s", err.text);
}

static void hand_over(struct capture *to, struct capture *from)
{
    struct store_files_note notes[5];
    struct error err = {""};
    uint64_t at = 0;

    for (size_t n; (n = capture_notes(notes, COUNT(notes), from, at)) > 0; at += n)
        ck_assert_msg(capture_add(to, notes, n, &err) == 0, "%s", err.text);
}

/* Units, and the others' notes, in the given order of hosts. */
static void save(const struct store_fixture *hosts, uint32_t n_hosts, const char *name)
{
    const int output = open_output(name);
    struct capture captures[MOST];
    struct error err = {""};

    for (uint32_t h = 0; h < n_hosts; h++) {
        const struct capture_options options = options_of(&hosts[h], output);
        ck_assert_msg(capture_open(&captures[h], &options, &err) == 0, "%s", err.text);
    }
    for (uint32_t h = n_hosts; h-- > 0;)
        write_own(&captures[h], &hosts[h]);
    for (uint32_t h = 1; h < n_hosts; h++) {
        ck_assert_msg(capture_finish(&captures[h], &no_scale, &err) == 0, "%s", err.text);
        hand_over(&captures[0], &captures[h]);
        capture_close(&captures[h]);
        ck_assert(!captures[h].open);
    }
    ck_assert_msg(capture_finish(&captures[0], &no_scale, &err) == 0, "%s", err.text);
    close(output);
}

TEST_EACH(hosts_make_the_directory_that_one_makes, MOST - 1)
{
    const uint32_t n_hosts = 2 + (uint32_t)_i;
    struct store_fixture whole, hosts[MOST];

    store_fixture_open_host(&whole, 0, 1);
    for (uint32_t h = 0; h < n_hosts; h++)
        store_fixture_open_host(&hosts[h], h, n_hosts);
    save(&whole, 1, "one");
    save(hosts, n_hosts, "several");
    outputs_check_whole("several", STEP);
    outputs_check_same_state("one/step-3", "several/step-3");
    outputs_check_same("one/step-3", "several/step-3", "config.json");
    outputs_check_same("one/step-3", "several/step-3", "a.txt");
    outputs_check_same("one/step-3", "several/step-3", "tokenizer.model");
    char *names = strdup(outputs_names("one/step-3"));
    ck_assert_str_eq(names, outputs_names("several/step-3"));
    free(names);
    store_fixture_close(&whole);
    for (uint32_t h = 0; h < n_hosts; h++)
        store_fixture_close(&hosts[h]);
}

/* The others come after host 0 has made the directory. What is given up, host 0 alone removes. */
TEST(host_0_makes_the_directory_and_removes_it)
{
    const int output = open_output("out");
    struct store_fixture hosts[2];
    struct capture captures[2];
    struct error err = {""};

    store_fixture_open_host(&hosts[0], 0, 2), store_fixture_open_host(&hosts[1], 1, 2);
    const struct capture_options first = options_of(&hosts[0], output), second = options_of(&hosts[1], output);
    ck_assert_int_eq(capture_open(&captures[1], &second, &err), -ENOENT);
    ck_assert_holds(err.text, "/out/step-3.partial could not be opened: No such file or directory; ");
    capture_discard(&captures[1]);
    ck_assert_int_eq(capture_open(&captures[0], &first, &err), 0);
    ck_assert_int_eq(capture_open(&captures[1], &second, &err), 0);
    write_own(&captures[0], &hosts[0]), write_own(&captures[1], &hosts[1]);
    capture_discard(&captures[1]);
    ck_assert_str_eq(outputs_names("out/step-3.partial"), "model.safetensors optimizer.safetensors ");
    ck_assert_int_eq(capture_finish(&captures[0], &no_scale, &err), -EPROTO);
    ck_assert_holds(err.text, "/out/step-3.partial/model.safetensors: the hosts have written ");
    capture_discard(&captures[0]);
    ck_assert_str_eq(outputs_names("out"), "");
    close(output);
    store_fixture_close(&hosts[0]), store_fixture_close(&hosts[1]);
}
