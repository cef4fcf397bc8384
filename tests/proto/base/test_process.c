#include "tests/kit/test.h"

#include "proto/base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(own)

TEST(sizes_are_read_in_bytes_and_binary_and_decimal_units)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {
        {"65536", 65536},
        {"1B", 1},
        {"12B", 12},
        {"12b", 12},
        {"1K", 1024},
        {"64KiB", 65536},
        {"1.5KiB", 1536},
        {"1.5k", 1536},
        {"256M", 268435456},
        {"256mib", 268435456},
        {"2g", 2147483648},
        {"2GiB", 2147483648},
        {"0.5GiB", 536870912},
        {"1t", 1099511627776},
        {"1kB", 1000},
        {"128MB", 128000000},
        {"128mb", 128000000},
        {"1.5GB", 1500000000},
        {"2TB", 2000000000000},
        {"4194303TiB", 4611684918915760128},
        {"4611686018427386880", 4611686018427386880} /* 2^62 - 1024 */
    };

    for (int i = 0; i < COUNT(sizes); i++) {
        uint64_t bytes = 0;
        ck_assert_msg(process_parse_bytes(&bytes, "--device-mem", sizes[i].text, NULL) == 0, "%s", sizes[i].text);
        ck_assert_msg(bytes == sizes[i].bytes, "%s: %ju", sizes[i].text, (uintmax_t)bytes);
    }
}

TEST(what_is_no_size_is_refused_with_the_options_name_and_changes_nothing)
{
    static char digits[5000];
    const char *const texts[] = {"",        "GiB",      "-1",     "-0",        "0",     "0.5",
                                 "0GiB",    "nan",      "nanGiB", "inf",       "-inf",  "infinityTiB",
                                 "1e400",   "1e-400",   "1kbit",  "1MBB",      "1PB",   "1GiBs",
                                 "1 GiB",   "1GiB ",    "1,5GiB", "1..5",      "--1",   "4611686018427387904",
                                 "1e19",    "4194304T", "1Ki",    "1P",        "1MiBB", "4194304TiB",
                                 "65536.5", "1e5b5",    "%s%n%n", "\x1b[31m1", "1\n2",  "1GiB\xff",
                                 digits};

    memset(digits, '9', sizeof digits - 1);
    for (int i = 0; i < COUNT(texts); i++) {
        uint64_t bytes = 77;
        struct error err = {""};
        ck_assert_msg(process_parse_bytes(&bytes, "--device-mem", texts[i], &err) == -EINVAL, "%.60s", texts[i]);
        ck_assert_uint_eq(bytes, 77);
        ck_assert_msg(strncmp(err.text, "--device-mem: '", 15) == 0, "%s", err.text);
        ck_assert_ptr_nonnull(strstr(err.text, "as in 2GiB")); /* whole, however long the text was */
        for (const char *c = err.text; *c; c++)
            ck_assert_msg((unsigned char)*c >= ' ', "a control character in: %s", err.text);
    }
    ck_assert_int_eq(process_parse_bytes(&(uint64_t){0}, "--device-mem", "x", NULL), -EINVAL);
}

/* No program runs in so few bytes: whoever typed 8 meant 8GiB. */
TEST(a_small_number_without_a_unit_is_asked_about)
{
    static const char *const texts[][2] = {{"8", "'8' is 8 bytes: did you mean 8GiB?"},
                                           {"1", "'1' is 1 byte: did you mean 1GiB?"},
                                           {"1.5", "'1.5' is 1.5 bytes: did you mean 1.5GiB?"},
                                           {"99", "'99' is 99 bytes: did you mean 99GiB?"},
                                           {"100", "'100' is 100 bytes: did you mean 100GiB or 100MiB?"},
                                           {"1023", "'1023' is 1023 bytes: did you mean 1023GiB or 1023MiB?"},
                                           {"1024", "'1024' is 1024 bytes: did you mean 1024MiB?"},
                                           {"65535", "'65535' is 65535 bytes: did you mean 65535MiB?"}};

    for (int i = 0; i < COUNT(texts); i++) {
        struct error err = {""};
        ck_assert_int_eq(process_parse_bytes(&(uint64_t){0}, "--device-mem", texts[i][0], &err), -EINVAL);
        ck_assert_str_eq(err.text + strlen("--device-mem: "), texts[i][1]);
    }
}

TEST(a_size_is_written_in_its_own_unit)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {12800, "12.5 KiB"},
                 {1048524, "1023.9 KiB"},
                 {1048525, "1.0 MiB"}, /* 1023.9502: not 1024.0 of the smaller one */
                 {38797312, "37.0 MiB"},
                 {1503238554, "1.4 GiB"},
                 {1099511627776, "1.0 TiB"},
                 {UINT64_MAX, "16777216.0 TiB"}};
    char text[PROCESS_BYTES_TEXT];

    for (int i = 0; i < COUNT(sizes); i++)
        ck_assert_str_eq(process_format_bytes(text, sizes[i].bytes), sizes[i].text);
}

TEST(available_memory_is_some_and_at_most_all)
{
    struct sysinfo info;

    ck_assert_int_eq(sysinfo(&info), 0);
    const uint64_t available = process_available_bytes();
    ck_assert_uint_gt(available, 0);
    if (available != UINT64_MAX / 1024 * 1024)
        ck_assert_uint_le(available, (uint64_t)info.totalram * info.mem_unit);
}

/* With the words "upgrade PROGRAM NEXT": puts NEXT into the place of PROGRAM, which is this one, and restarts. */
static int upgrade(char **argv)
{
    static const char mark[] = "TEST_RESTARTED";

    if (getenv(mark))
        return 42;
    if (rename(argv[3], argv[2]) || setenv(mark, "1", 1))
        return 1;
    process_restart(argv);
    return 1;
}

static int child(int argc, char **argv)
{
    char comm[32] = "";

    if (argc == 4 && strcmp(argv[1], "upgrade") == 0)
        return upgrade(argv);
    printf("began\n");
    fflush(stdout);
    process_bound_spinning(argv);
    FILE *file = fopen("/proc/self/comm", "r");
    if (!file || !fgets(comm, sizeof comm, file))
        return 1;
    fclose(file);
    const char *spins = getenv("GOMP_SPINCOUNT");
    printf("%d, %s, %s, %d, spins %s, comm %s", (int)getpid(), argv[0], argv[argc - 1], argc, spins ? spins : "-",
           comm);
    return 0;
}

SUITE_COMMAND(child)

/* What this program says when it is started anew (see child): a line for each time that main began. The name in comm is
 * that of /proc/self/exe where it was not started anew. */
TEST_EACH(a_program_without_a_limit_starts_anew_once_with_one_under_its_name, 3)
{
    static const struct {
        const char *variable, *value, *said;
    } rows[] = {
        {"NONE", "", "began\nbegan\n%d, a name of its own, two words, 3, spins 2000, comm test_process\n"},
        {"GOMP_SPINCOUNT", "5", "began\n%d, a name of its own, two words, 3, spins 5, comm exe\n"},
        {"OMP_WAIT_POLICY", "passive", "began\n%d, a name of its own, two words, 3, spins -, comm exe\n"},
    };
    char said[512] = "", wanted[256];
    int ends[2], status;
    size_t n = 0;

    ck_assert_int_eq(pipe(ends), 0);
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        unsetenv("GOMP_SPINCOUNT");
        unsetenv("OMP_WAIT_POLICY");
        setenv(rows[_i].variable, rows[_i].value, 1);
        execl("/proc/self/exe", "a name of its own", "--child", "two words", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
    snprintf(wanted, sizeof wanted, rows[_i].said, (int)pid);
    ck_assert_str_eq(said, wanted);
}

TEST(a_program_whose_file_was_replaced_restarts_as_the_new_one)
{
    static const char script[] = "d=$(mktemp -d) && cp \"$0\" $d/program && cp \"$0\" $d/next && "
                                 "{ $d/program upgrade $d/program $d/next; status=$?; rm -r $d; exit $status; }";
    char path[4096];
    int status;

    ck_assert_ptr_nonnull(realpath("/proc/self/exe", path));
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", script, path, (char *)NULL);
        _exit(127);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 42);
}

/* A grandchild, which comes to this process when its parent has died. */
TEST(a_process_that_follows_its_parent_ends_with_it)
{
    int ready[2], leave[2], status;
    pid_t grandchild;
    char byte = 0;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(leave), 0);
    const pid_t parent = fork();
    ck_assert_int_ge(parent, 0);
    if (parent == 0) {
        const pid_t pid = fork();
        if (pid == 0) {
            signal(SIGTERM, SIG_DFL); /* Check has a handler there */
            process_follow_parent(0);
            const pid_t self = getpid();
            if (write(ready[1], &self, sizeof self) < 0)
                _exit(1);
            for (;;)
                pause();
        }
        _exit(pid < 0 || read(leave[0], &byte, 1) != 1);
    }
    ck_assert_int_eq(read(ready[0], &grandchild, sizeof grandchild), sizeof grandchild);
    ck_assert_int_eq(waitpid(grandchild, &status, WNOHANG), -1); /* not ours yet: its parent lives */
    ck_assert_int_eq(kill(grandchild, 0), 0);
    ck_assert_int_eq(write(leave[1], "x", 1), 1);
    ck_assert_int_eq(waitpid(parent, &status, 0), parent);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(waitpid(grandchild, &status, 0), grandchild);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), SIGTERM);
}

/* ---- a parent of several threads --------------------------------------------------------------------------------- */

static int to_follower[2], from_follower[2];

/* A follower, made by a thread that then ends. It alone has an end to answer by. */
static void *make_follower(void *arg)
{
    const pid_t pid = fork();
    char byte = 'x';

    if (pid == 0) {
        signal(SIGTERM, SIG_DFL); /* Check has a handler there */
        process_follow_parent(getppid());
        while (write(from_follower[1], &byte, 1) == 1 && read(to_follower[0], &byte, 1) == 1)
            ;
        _exit(1);
    }
    close(from_follower[1]);
    *(pid_t *)arg = pid;
    return arg;
}

static void *end_first_thread(void *leave)
{
    char byte = 0;

    _exit(read(*(int *)leave, &byte, 1) != 1);
    return NULL;
}

/* The thread that made it ends, then the parent's first one; the follower lives until the last one has ended. Not under
 * thread sanitizer: a process that several threads' process forked gets no signal there before it is another
 * program. */
TEST_IF(a_process_that_follows_its_parent_outlives_threads_of_it, !THREAD_SANITIZED)
{
    int leave[2], status;
    pthread_t maker, last;
    pid_t *follower = mmap(NULL, sizeof *follower, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char byte = 0;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ck_assert_int_eq(pipe(to_follower), 0);
    ck_assert_int_eq(pipe(from_follower), 0);
    ck_assert_int_eq(pipe(leave), 0);
    const pid_t parent = fork();
    ck_assert_int_ge(parent, 0);
    if (parent == 0) {
        ck_assert_int_eq(pthread_create(&maker, NULL, make_follower, follower), 0);
        ck_assert_int_eq(read(from_follower[0], &byte, 1), 1); /* it follows */
        pthread_join(maker, NULL);
        ck_assert_int_eq(pthread_create(&last, NULL, end_first_thread, &leave[0]), 0);
        pthread_exit(NULL);
    }
    const uint64_t birth = process_birth(parent);
    char path[64], state[256] = "";
    do { /* until its first thread is a zombie, and the other lives */
        sched_yield();
        snprintf(path, sizeof path, "/proc/%d/stat", (int)parent);
        const int fd = open(path, O_RDONLY);
        ck_assert_int_gt(read(fd, state, sizeof state - 1), 0);
        close(fd);
    } while (!strstr(state, ") Z"));
    ck_assert(!process_has_ended(parent, birth));
    close(from_follower[1]);
    ck_assert_int_eq(write(to_follower[1], "x", 1), 1);
    ck_assert_int_eq(read(from_follower[0], &byte, 1), 1);      /* it lives */
    ck_assert_int_eq(waitpid(*follower, &status, WNOHANG), -1); /* not ours yet: its parent lives, too */
    ck_assert_int_eq(write(leave[1], "x", 1), 1);
    ck_assert_int_eq(waitid(P_PID, (id_t)parent, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    ck_assert(process_has_ended(parent, birth)); /* a zombie */
    ck_assert_int_eq(waitpid(*follower, &status, 0), *follower);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), SIGTERM);
    ck_assert_int_eq(waitpid(parent, &status, 0), parent);
    ck_assert_int_eq(status, 0);
    ck_assert(process_has_ended(parent, birth));
    munmap(follower, sizeof *follower);
}

/* Its name looks like the end of a name and a state. */
TEST(a_process_that_has_ended_is_told_from_others)
{
    const pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_NAME, "a) Z 1 2 3");
        raise(SIGSTOP);
        for (;;)
            pause();
    }
    ck_assert_int_eq(waitpid(pid, NULL, WUNTRACED), pid);
    const uint64_t birth = process_birth(pid);
    ck_assert_uint_gt(birth, 0);
    ck_assert(!process_has_ended(pid, birth));
    ck_assert(process_has_ended(pid, birth + 1)); /* another one has its number */
    ck_assert(!process_has_ended(pid, 0));
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    ck_assert(process_has_ended(pid, birth));
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(process_has_ended(pid, birth));
    ck_assert_uint_eq(process_birth(0), 0);
}

TEST(a_machines_name_is_cut_to_what_has_room)
{
    char whole[256] = "", cut[256];

    ck_assert_int_eq(gethostname(whole, sizeof whole - 1), 0);
    for (size_t n = 1; n <= strlen(whole) + 2; n++) {
        memset(cut, 'x', sizeof cut);
        process_host_name(cut, n);
        ck_assert_uint_eq(strlen(cut), strlen(whole) < n ? strlen(whole) : n - 1);
        ck_assert_mem_eq(cut, whole, strlen(cut));
    }
}
