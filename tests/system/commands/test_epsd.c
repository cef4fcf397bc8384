/* The options of epsd and eps-worker. What --listen and --group do is in test_listen and test_group. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

SUITE_LABELS(long)

static const struct refusal wrongs[] = {
    {"epsd", 2, "epsd: --listen ADDRESS is needed", NULL},
    {"epsd --listen ''", 2, "epsd: --listen ADDRESS is needed", NULL},
    {"epsd --listen 12", 2, "epsd: --listen 12: eps stop would take a number for a job: choose a name\n", NULL},
    {"epsd --listen 127.0.0.1:7070", 2, "epsd: --listen 127.0.0.1:7070: did you mean tcp://127.0.0.1:7070?\n", NULL},
    {"epsd --listen [::]:7070", 2, "epsd: --listen [::]:7070: did you mean tcp://[::]:7070?\n", NULL},
    {"eps-worker --connect lab:70 --key key", 2, "eps-worker: --connect lab:70: did you mean tcp://lab:70?\n", NULL},
    {"epsd --listen lab more", 2, "epsd: 'more' is not an option; see epsd --help\n", NULL},
    {"epsd --listen lab --listen lib", 2, "epsd: --listen lab and --listen lib: it takes one name or directory", NULL},
    {"epsd --listen tcp://a:1 --listen tcp://b:1", 2, "epsd: --listen tcp://a:1 and --listen tcp://b:1: ", NULL},
    {"epsd --listen lab --log ''", 2, "epsd: --log is empty\n", NULL},
    {"epsd --listen lab --host-mem much", 2, "epsd: --host-mem: 'much'", NULL},
    {"epsd --listen lab --host-mem 0", 2, "epsd: --host-mem: '0'", NULL},
    {"epsd --listen lab --group no-such-group", 2, "epsd: --group no-such-group: ", "no such group"},
    {"epsd --listen lab --private --group users", 2, "epsd: --private and --group", NULL},
    {"epsd --log-level error --listen lab --queue many", 2, "epsd: --queue many: a number of jobs, 0 to 256", NULL},
    {"epsd --private=me", 2, "epsd: --private=me: the number of a process", NULL},
    {"epsd --frobnicate", 2, "epsd: --frobnicate: no such option, or its value is missing; see epsd --help\n", NULL},
    {"epsd --listen tcp://127.0.0.1:0", 2, "without a key anybody could attach", "epsd --make-key"},
    {"epsd --listen tcp://127.0.0.1 --key key", 2,
     "epsd: tcp://127.0.0.1: an address on the network is tcp://HOST:PORT", NULL},
    {"epsd --listen lab --key key", 2, "epsd: --key is for workers of other hosts", NULL},
    {"epsd --listen lab --plain-bulk", 2, "epsd: --plain-bulk is for workers of other hosts", NULL},
    {"epsd --listen tcp://127.0.0.1:0 --key key", 1, "epsd: the key file key: No such file or directory", NULL},
    {"eps-worker --connect '' --device cpu", 2, "eps-worker: --connect is empty\n", NULL},
    {"eps-worker --private=me", 2, "eps-worker: --private=me: the number of a process", NULL},
    {"eps-worker --profile ''", 2, "eps-worker: --profile is empty\n", NULL},
    {"eps-worker --connect tcp://127.0.0.1:1 --device cpu", 2, "--key FILE is needed", NULL},
    {"eps-worker --connect tcp://[::1 --key key", 2, "an address on the network is tcp://HOST:PORT", NULL},
    {"eps-worker --connect tcp://127.0.0.1:1 --key key --device cpu --device-mem 1MiB", 1,
     "eps-worker: the key file key: No such file or directory", NULL},
    {"eps-worker --connect lab --key key", 2, "eps-worker: --key is for a daemon of another host", NULL},
    {"eps-worker --connect lab --plain-bulk", 2, "eps-worker: --plain-bulk is for a daemon of another host", NULL},
    {"eps-worker --device-mem", 2, "--device-mem: no such option, or its value is missing; see eps-worker --help\n",
     NULL},
    {"eps-worker --device-mem 1e999", 2, "--device-mem: '1e999' is", NULL},
    {"eps-worker --device gpu", 2, "eps-worker: --device gpu: it is auto, cpu, cuda, cuda:N", NULL},
    {"eps-worker --share 0", 2, ": a number of workers, 1 to 64\n", NULL},
    {"eps-worker --share 65", 2, ": a number of workers, 1 to 64\n", NULL},
    {"eps-worker --share -1", 2, ": a number of workers, 1 to 64\n", NULL},
    {"eps-worker --share 2x", 2, ": a number of workers, 1 to 64\n", NULL},
    {"eps-worker --share ''", 2, ": a number of workers, 1 to 64\n", NULL},
};

SUITE_FIXTURE(processes_setup, processes_remove)

TEST_EACH(a_mistake_is_one_sentence_and_status_2, COUNT(wrongs))
{
    expect_refusal(&wrongs[_i]);
}

TEST(a_key_is_made_once)
{
    expect("umask 0; epsd --make-key key && stat -c %a key", 0, "600\n");
    expect_sentence("epsd --make-key key", 1, "key exists: a key is never overwritten");
    expect_sentence("epsd --make-key nowhere/key", 1, "making the key file nowhere/key: No such file or directory");
}

TEST(a_job_past_the_cap_is_refused)
{
    processes_config("tiny.json", 1, 2, 16, 32);
    processes_text("tiny.txt", 8000);
    expect("epsd --listen lab --host-mem 100KiB 2>log & eps-worker --connect lab --device-mem 256MiB 2>log & "
           "eps train --connect lab --model tiny.json --data tiny.txt --batch 4 --steps 1 --out run; "
           "status=$?; eps stop lab >/dev/null; wait; exit $status",
           1, "100.0 KiB are what the daemon's --host-mem allows");
}
