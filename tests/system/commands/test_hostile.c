/* Programs that are started badly, and runs whose directory is pulled away under them: a clear word and the right exit
 * status, and nothing but what belongs there in any file. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(long, slow)

static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 32);
    processes_text("tiny.txt", 8000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

/* A line of bash, where $bin holds the programs and $train begins a run of the tiny model, ends with this status. */
static void __attribute__((format(printf, 2, 3))) shell(int status, const char *format, ...)
{
    char line[1024], command[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    snprintf(command, sizeof command,
             "bin=%s; train=\"$bin/eps train --model tiny.json --data tiny.txt --batch 4 --device-mem 256MiB\"; %s",
             BIN_DIR, line);
    const char *const argv[] = {"bash", "-c", command, NULL};
    const pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[0], (char *const *)argv);
        _exit(99);
    }
    const int got = processes_wait(pid);
    ck_assert_msg(got == status, "%s: status %d, not %d", line, got, status);
}

/* What is opened next would get the number of the one that is missing, and with it all that is printed. */
TEST(without_standard_descriptors_a_run_is_what_it_is_with_them)
{
    shell(0, "$train --steps 4 --out with >said 2>&1");
    shell(0, "$train --steps 4 --out no-in <&- >said 2>err");
    shell(1, "$train --steps 4 --out no-out >&- 2>err");
    expect_file("err", "eps: standard output: Bad file descriptor");
    shell(1, "$train --steps 4 --out none <&- >&- 2>&-");
    for (int i = 0; i < 3; i++) {
        const char *out = (const char *[]){"no-in", "no-out", "none"}[i];
        shell(0, "$bin/eps verify %s >said && cmp with/step-4/model.safetensors %s/step-4/model.safetensors", out, out);
        shell(0, "[ $(wc -l <%s/metrics.jsonl) = 4 ] && ! grep -v '^{\"step\": .*}$' %s/metrics.jsonl", out, out);
    }
}

TEST(a_daemon_and_a_worker_without_standard_descriptors_serve)
{
    shell(0, "$bin/epsd --listen bare <&- >&- 2>&- & d=$!; $bin/eps-worker --connect bare --device-mem "
             "256MiB <&- >&- 2>&- & "
             "until $bin/eps status bare 2>err | grep -q '1 worker'; do :; done; "
             "$bin/eps train --connect bare --model tiny.json --data tiny.txt --batch 4 --steps 2 --out o "
             ">said 2>err && $bin/eps verify o >said && $bin/eps stop bare 2>err && wait $d");
}

/* Both have more to say than their stderr takes, before and while they work. */
TEST(a_log_that_nobody_reads_holds_up_no_daemon_and_no_worker)
{
    shell(0, "mkfifo log && exec 3<>log && ! dd if=/dev/zero of=log oflag=nonblock bs=4096 2>err && "
             "{ $bin/epsd --listen mute 2>log & } && d=$! && { $bin/eps-worker --connect mute "
             "--device-mem 256MiB 2>log & } && w=$! && "
             "until $bin/eps status mute 2>err | grep -q '1 worker'; do :; done && "
             "$bin/eps train --connect mute --model tiny.json --data tiny.txt --batch 4 --steps 2 "
             "--out o >said 2>err && $bin/eps verify o >said && { cat log >log-said 3>&- & } && "
             "c=$! && until [ -s log-said ]; do :; done && "
             "$bin/eps stop mute >said && wait $d && wait $w && exec 3>&- && wait $c");
    shell(0, "grep -a 'epsd: [0-9]* lines of the log were dropped' log-said >said && "
             "grep -a 'eps-worker: [0-9]* lines\\? of the log w[a-z]* dropped' log-said >said");
}

TEST(too_few_descriptors_are_refused_by_each_program)
{
    static const char *const programs[] = {"eps status", "epsd --listen few", "eps-worker --connect few"};

    for (size_t i = 0; i < 3; i++) {
        shell(1, "ulimit -n 20; $bin/%s 2>err", programs[i]);
        expect_file("err", "only 20 files", "at least 64 (ulimit -n)");
    }
    shell(0, "ulimit -n 64; $train --workers 2 --steps 2 --out o >said 2>err");
}

/* Weights of the tiny model take 30 KiB, blocks of bash's ulimit 1 KiB. */
/* The thread sanitizer's runtime writes a file of its own before main. */
TEST_IF(a_limit_of_file_sizes_is_a_sentence_and_leaves_nothing_half_written, !THREAD_SANITIZED)
{
    static const char *const commands[] = {"export --model sized --out e", "export --model sized --out e --dtype bf16",
                                           "report sized --out e.svg", "bench --profile e.profile"};

    shell(0, "$train --steps 2 --out sized >said 2>&1");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strncmp(commands[i], "report", 6) == 0 && system("command -v gnuplot >/dev/null") != 0)
            continue;
        shell(1, "(ulimit -f 0; $bin/eps %s 2>&1 >/dev/null) | cat >err; exit ${PIPESTATUS[0]}", commands[i]);
        expect_file("err", "eps ", "File too large");
        shell(0, "[ $(wc -l <err) = 1 ] && [ -z \"$(ls -d e e.* 2>/dev/null)\" ]");
    }
    shell(1, "(ulimit -f 8; $bin/eps export --model sized --out e 2>&1) | cat >err; exit ${PIPESTATUS[0]}");
    expect_file("err", "e.partial: model.safetensors: ");
    shell(0, "[ -z \"$(ls -d e e.* 2>/dev/null)\" ]");
}

/* Those that could be made are taken by others before nanomsg or libuv comes to make its own: each abort says so. */
TEST(threads_that_others_take_are_missed_in_a_sentence)
{
    static const char *const programs[] = {"epsd --listen few", "eps-worker --connect few --device-mem 32MiB",
                                           "eps-worker --connect tcp://127.0.0.1:9 --key key --device-mem 32MiB"};

    if (SANITIZED)
        TEST_SKIP("nothing can be loaded before a sanitizer");
    shell(0, "$bin/epsd --make-key key");
    for (size_t i = 0; i < COUNT(programs); i++) {
        shell(0, ">err; >all");
        shell(0,
              "export LD_PRELOAD=$bin/liblimits.so; n=0; until grep -q ' thread did not start: ' err; do "
              "LIMITS_THREADS_EVER=$n $bin/%s 2>err; [ $? = 1 ] && [ $(wc -l <err) = 1 ] || exit 2; "
              "cat err >>all; n=$((n + 1)); done; grep -q 'no thread can be made any more: allow' all",
              programs[i]);
    }
}

/* libuv and nanomsg abort where they get no thread, and libgomp ends the process: all are made before anything is
 * promised. */
TEST(too_few_threads_are_refused_in_a_sentence)
{
    static const char *const programs[] = {"epsd --listen few", "eps-worker --connect few"};
    static const int few[] = {0, 1, 2, 3, 4, 5};

    if (SANITIZED)
        TEST_SKIP("nothing can be loaded before a sanitizer");
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
        shell(1,
              "export LD_PRELOAD=$bin/liblimits.so LIMITS_THREADS=%d; $train --steps 2 --out o%d "
              ">said 2>err",
              few[i], few[i]);
        expect_file("err", " needed, and ", " can be made: ", "ulimit -u, pids.max");
    }
    for (size_t i = 0; i < 2; i++) {
        shell(1, "LD_PRELOAD=$bin/liblimits.so LIMITS_THREADS=%zu $bin/%s 2>err", i, programs[i]);
        expect_file("err", " can be made: allow more processes");
    }
    shell(0, "export LD_PRELOAD=$bin/liblimits.so LIMITS_THREADS=2000; $train --steps 2 --out o >said 2>err");
}

TEST(too_small_stacks_are_refused_in_a_sentence)
{
    static const char *const programs[] = {"eps status", "epsd --listen few", "eps-worker --connect few"};

    if (SANITIZED)
        TEST_SKIP("a sanitizer takes more memory");
    for (size_t i = 0; i < 3; i++) { /* where it begins is drawn: up to 8 KiB of it are gone; the loader needs 8, too */
        shell(0,
              "unset GOMP_SPINCOUNT; ulimit -s 24; for i in 0 1 2 3 4 5 6 7 8 9; do "
              "$bin/%s 2>err; [ $? = 1 ] || exit 2; done",
              programs[i]);
        expect_file("err", "only 24 KiB", "at least 1024 (ulimit -s)");
    }
    shell(0, "ulimit -s 1024; $train --steps 2 --out o >said 2>err");
    shell(0, "{ printf '{\"model_type\":\"gpt2\",\"x\":'; printf '[%%.0s' {1..2040}; printf ']%%.0s' {1..2040}; "
             "printf '}'; } >deep.json");
    shell(1, "ulimit -s 1024; $bin/eps plan --model deep.json 2>err");
    expect_file("err", "deep.json: x is [");
}

/* How long a path is shows when its links are resolved, for which it has to be there. */
TEST(a_name_that_is_too_long_leaves_no_directory)
{
    shell(1, "$bin/epsd --listen $(printf a%%0200d 0) 2>err");
    expect_file("err", "too many for the sockets in it");
    shell(0, "[ -z \"$(ls -A \"$XDG_RUNTIME_DIR/eps\")\" ]");
}

/* What is gone is not what a run could go on from. A checkpoint that is begun while rm is at work keeps the directory:
 * then again. */
TEST(a_directory_that_was_removed_is_not_said_to_resume)
{
    shell(1, "$train --steps 100 --save-every 10 --out o >said 2>err & "
             "until [ -e o/latest ]; do kill -0 $! || exit 9; done; "
             "kill -STOP $!; until rm -rf o 2>rm-said; do :; done; kill -CONT $!; wait $!");
    expect_file("err", "no checkpoint is left: o was removed");
    expect_absent("err", "--resume");
    expect_file("said", "no longer in o: it was moved or removed");
    expect_absent("said", "weights in", "\nnext");
}

TEST(the_summary_names_the_checkpoint_that_stands)
{
    /* A file of mine where step-60 would go. */
    shell(1, "$train --steps 60 --save-every 20 --out o >said 2>err & "
             "until [ -e o/metrics.jsonl ]; do kill -0 $! || exit 9; done; echo mine >o/step-60; wait $!");
    expect_file("said", "weights in o/step-40, steps in o/metrics.jsonl");
    expect_file("err", "eps train --resume o continues from step 40");
    expect_file("o/step-60", "mine");
}

TEST(a_pipe_in_place_of_a_file_of_the_run_is_refused)
{
    shell(0, "$train --steps 2 --out o >said 2>err");
    shell(1, "mv o/metrics.jsonl m && mkfifo o/metrics.jsonl && $bin/eps train --resume o --steps 4 >said 2>err");
    expect_file("err", "metrics.jsonl: not a regular file");
    shell(1, "ln -sf /dev/full o/metrics.jsonl && $bin/eps train --resume o --steps 4 >said 2>err");
    expect_file("err", "metrics.jsonl: not a regular file");
    shell(1, "rm o/metrics.jsonl && mv m o/metrics.jsonl && echo mine >mine && ln -sf ../mine o/log && "
             "$bin/eps train --resume o --steps 4 >said 2>err");
    expect_file("err", "o/log could not be opened: ", "; it is a link: move it away");
    shell(0, "[ $(cat mine) = mine ] && rm o/log && $bin/eps train --resume o --steps 4 >said");
}

/* A tenth of 3e-4, the default, is not the double that is nearest to 3e-5. */
TEST(a_rate_that_was_computed_is_the_same_when_it_is_typed)
{
    shell(0, "$train --steps 2 --out o >said 2>err");
    shell(0, "$bin/eps train --resume o --steps 3 --lr 3e-4 --min-lr 3e-5 >said 2>err");
    shell(2, "$bin/eps train --resume o --steps 4 --min-lr 3.0000001e-5 >said 2>err");
    expect_file("err", "--min-lr 3.0000001e-05 differs from the run's");
}

/* Each update multiplies the weights by -99. */
TEST(a_run_that_diverged_says_so_and_ends)
{
    shell(1, "$train --lr 10 --min-lr 10 --warmup 0 --weight-decay 10 --steps 60 --save-every 10 "
             "--commit fenced --out o >said 2>err");
    expect_file("err", " were skipped because loss or gradient was not finite: the weights have diverged; try "
                       "a lower --lr; its weights before that are in o/step-"); /* 20, if that stood in time */
    expect_file("said", "  skipped  ", "not finite");
    shell(0, "[ $(grep -c '\"skipped\": true' o/metrics.jsonl) = 20 ] && $bin/eps verify o >said");
    shell(1, "$train --lr 10 --min-lr 10 --warmup 0 --weight-decay 10 --steps 60 --out eager >said 2>err");
    expect_file("err", " is not finite"); /* the loss, or before it the gradient: by rounding alone */
    expect_file("err", ": try a lower --lr");
}

TEST(a_run_in_a_folder_whose_name_is_no_utf8_is_listed)
{
    shell(0, "$train --steps 1 --out $'o\\xff' >said && $bin/eps verify $'o\\xff' --json >said");
    expect_file("said", "\"path\": \"o\xEF\xBF\xBD/step-1\"");
}
