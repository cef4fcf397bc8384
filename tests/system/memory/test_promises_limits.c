/* A host that has less than is asked for, and budgets that are none: refused in a sentence before anything is touched,
 * or kept. Real processes; what the system allows is told them by tests/kit/preload/limits.c, or really limited. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(release)

enum { MIB = 1 << 20 };

/* 4.8 million parameters: 55 MiB. */
static void setup(void)
{
    processes_setup();
    processes_config("limits.json", 6, 4, 256, 64);
    processes_text("limits.txt", 1024);
    expect("mkdir -p proc/self sys/fs/cgroup && echo 0::/ >proc/self/cgroup && echo 0 >sys/fs/cgroup/memory.current",
           0);
}

SUITE_TIMEOUT(240)
SUITE_FIXTURE_ONCE(setup, processes_remove)

static uint64_t resident(pid_t pid)
{
    ck_assert_int_gt(pid, 0);
    return processes_status_bytes(pid, "VmHWM") - processes_status_bytes(pid, "RssFile");
}

/* The bytes that both processes have ever had together, after the checkpoint. What the worker maps of the daemon's is
 * not counted twice, and files can be read again. */
static void on_memory(void *user, const struct eps_memory *side)
{
    const pid_t worker = processes_find("eps-worker");

    (void)side;
    *(uint64_t *)user =
        resident(processes_find("epsd")) + resident(worker) - processes_status_bytes(worker, "RssShmem");
}

/* The group's limit is not enforced here, so that what would have been killed can be seen: nothing. */
TEST(a_group_s_limit_is_kept_or_refused)
{
    static const char *const files[] = {"limits.txt"};
    const struct eps_train_events events = {.on_memory = on_memory};
    struct eps_train_options options = processes_options("limits.json", files, "");
    unsigned refused = 0, kept = 0;
    struct eps_error error;

    options.steps = 2, options.batch = 4, options.seq = 64, options.device_mem = 256 * MIB;
    setenv("LIMITS_ROOT", processes_path("."), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liblimits.so", 1);
    for (uint64_t limit = 32 * MIB; limit < 300 * MIB; limit += limit / 2) {
        uint64_t most = 0;
        processes_put_text("sys/fs/cgroup/memory.max", print("%" PRIu64 "\n", limit));
        options.out = print("group-%" PRIu64, limit / MIB);
        if (eps_train(&options, &events, &most, &error)) {
            ck_assert_holds(error.text, "of host memory (", " are free; ");
            ck_assert_msg(kept == 0 && most == 0, "%" PRIu64 " refused after less was enough: %s", limit, error.text);
            refused++;
        } else {
            ck_assert_msg(most > 0 && most <= limit, "%" PRIu64 " bytes in memory, the limit is %" PRIu64, most, limit);
            kept++;
        }
    }
    unsetenv("LD_PRELOAD");
    unsetenv("LIMITS_ROOT");
    ck_assert(refused > 1 && kept > 1);
}

/* Of addresses the system really gives no more than this: every allocation of every process and library may fail. */
TEST(where_addresses_run_out_it_says_so_and_ends)
{
    unsigned refused = 0;

    for (unsigned mib = 16; mib <= 1024; mib *= 2) {
        expect(
            print("(ulimit -v %u && exec timeout 60 eps train --model limits.json --data limits.txt --out address-%u "
                  "--steps 1 --batch 4 --seq 64 --device-mem 64MiB); echo status $?",
                  mib << 10, mib),
            0, "status ");
        const int status = atoi(strstr(command_out(), "status ") + 7);
        ck_assert_msg(status < 2 && (status == 0 || strncmp(command_err(), "eps train: ", 11) == 0), "%u MiB: %d, %s",
                      mib, status, command_err());
        ck_assert_msg(mib >= 80 || strstr(command_err(), "(ulimit -v)"), "%u MiB: %s", mib, command_err());
        refused += status == 1;
    }
    ck_assert_uint_gt(refused, 2);
}

/* The worker alone has too few: for its threads, its arena, or what it maps of the daemon's. A private run has no other
 * one. */
TEST(a_private_run_says_that_its_worker_s_addresses_run_out)
{
    static const char *const files[] = {"limits.txt"};
    struct eps_train_options options = processes_options("limits.json", files, "short");
    unsigned n_refused = 0;
    struct eps_error error;

    expect(
        print("mkdir programs && ln -s %s/epsd programs && printf '%%s\n' '#!/bin/bash' 'ulimit -v $(cat \"%s/kib\")' "
              "'exec %s/eps-worker \"$@\"' >programs/eps-worker && chmod +x programs/eps-worker",
              BIN_DIR, processes_directory(), BIN_DIR),
        0);
    options.programs = "programs";
    options.steps = 1, options.batch = 4, options.seq = 64, options.device_mem = 256 * MIB;
    for (unsigned mib = 40; mib <= 240; mib += 25) {
        processes_put_text("kib", print("%u", mib << 10));
        if (eps_train(&options, NULL, NULL, &error) == 0)
            break;
        const bool assigned = strncmp(error.text, "the worker (eps-worker) ended with status 1: ", 45) != 0;
        ck_assert_msg(strstr(error.text, "(ulimit -v)") && !strstr(error.text, "is left out"), "%u MiB: %s", mib,
                      error.text);
        ck_assert_msg(!assigned || strncmp(error.text, "the CPU device's memory, ", 25) == 0 ||
                          strncmp(error.text, "mapping ", 8) == 0,
                      "%u MiB: %s", mib, error.text);
        n_refused += assigned;
    }
    ck_assert_uint_gt(n_refused, 1);
    ck_assert_int_eq(access("short/step-1/model.safetensors", F_OK), 0);
}

/* The error that mlock(2) has for none allowed; nothing large is touched. Of weights and moments alone 55 MiB. */
TEST(pages_that_may_not_be_locked_are_mentioned_once_and_refused_on_request)
{
    static const char *const listen[] = {"--listen", "lock", NULL};
    static const char *const lend[] = {"--connect", "lock", "--device-mem", "64MiB", NULL};
    static const char train[] = "eps train --connect lock --model limits.json --data limits.txt --batch 4 --seq 64 "
                                "--steps 2 --out";

    setenv("LIMITS_LOCK", print("%d", EPERM), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liblimits.so", 1);
    const pid_t pids[] = {processes_start("epsd", listen, "lock.log"), processes_start("eps-worker", lend, NULL)};
    unsetenv("LD_PRELOAD");
    processes_await_workers("lock", 1);
    expect(print("%s lock --require-pinned", train), 1,
           " KiB must be locked in memory (--require-pinned), and `ulimit -l` is ");
    ck_assert_uint_gt(strtoull(command_err() + strlen("eps train: "), NULL, 10), 55 << 10);
    ck_assert_uint_lt(processes_status_bytes(pids[0], "RssAnon") + processes_status_bytes(pids[0], "RssShmem"),
                      4 * MIB);
    ck_assert_uint_lt(processes_status_bytes(pids[0], "VmHWM"), 30 * MIB);
    expect(print("%s lock-0 && %s lock-1", train, train), 0);
    ck_assert_uint_eq(processes_count("lock.log", "does not allow locking pages (ulimit -l)"), 1);
    expect("eps stop lock", 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(processes_wait(pids[i]), 0);
}

TEST(a_budget_that_is_none_is_a_sentence)
{
    static const struct refusal budgets[] = {
        {"eps plan --device-mem 0", 2, "--device-mem: '0' is less than a byte", ""},
        {"eps plan --device-mem 1B", 1, "--device-mem is 0.0 MiB (1 bytes)", ""},
        {"eps plan --host-mem 1B", 1, "1 B", ""},
        {"eps plan --host-mem 9223372036854775809", 2, "is more than any machine has", ""}, /* 2^63 + 1 */
        {"eps train --out no --device-mem 18446744073709551616", 2, "is more than any machine has",
         "--data limits.txt --steps 1"},
        {"eps train --out no --device-mem 1B", 1, "--device-mem is 0.0 MiB (1 bytes)", "--data limits.txt --steps 1"},
        {"eps train --out no --host-mem 1B", 1, "1 B", "--data limits.txt --steps 1"},
    };

    for (int i = 0; i < COUNT(budgets); i++)
        expect_sentence(print("%s --model limits.json --batch 2 --seq 16 %s", budgets[i].command, budgets[i].second),
                        budgets[i].status, budgets[i].first);
    /* More than this device has: no more is taken than the model needs. */
    expect("eps train --model limits.json --data limits.txt --steps 1 --batch 2 --seq 16 --device-mem 1000TiB "
           "--host-mem 1000TiB --out vast",
           0);
}
