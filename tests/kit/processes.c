#include "tests/kit/processes.h"

#include "proto/wire/session.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT_MS = 120000 /* however busy the machine is */, MAX_STARTED = 64 };

static char dir[64];
static const char *programs = BIN_DIR;
static pid_t started[MAX_STARTED];
static size_t n_started;

void processes_setup(void)
{
    char runtime[96];

    snprintf(dir, sizeof dir, "/tmp/eps-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(runtime, sizeof runtime, "%s/" PROCESSES_RUNTIME, dir);
    ck_assert_int_eq(mkdir(runtime, 0700), 0);
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    setenv("XDG_CACHE_HOME", runtime, 1); /* plans as of a machine that nobody has measured */
    ck_assert_int_eq(chdir(dir), 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* grandchildren of a killed child come to us and can be found */
}

void processes_setup_tiny(void)
{
    processes_setup();
    processes_config("model.json", 1, 2, 16, 32);
    processes_text("text.txt", 8000);
}

void processes_remove(void)
{
    char command[192];

    for (size_t i = 0; i < n_started; i++)
        kill(started[i], SIGKILL);
    n_started = 0;
    ck_assert_int_eq(chdir("/"), 0);
    snprintf(command, sizeof command, "chmod -R u+rwx %s 2>/dev/null; rm -rf %s", dir, dir);
    ck_assert_int_eq(system(command), 0);
}

void processes_know_families(void)
{
    programs = BIN_DIR "/families";
}

const char *processes_programs(void)
{
    return programs;
}

const char *processes_directory(void)
{
    return dir;
}

const char *processes_path(const char *name)
{
    static char paths[8][300];
    static unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

const char *processes_write(const char *name, const void *bytes, size_t n)
{
    const char *path = processes_path(name);
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

const char *processes_put_text(const char *name, const char *text)
{
    return processes_write(name, text, strlen(text));
}

void processes_flip(const char *path, long at)
{
    FILE *file = fopen(path, "r+");

    ck_assert_msg(file && fseek(file, at, at < 0 ? SEEK_END : SEEK_SET) == 0, "%s", path);
    const int byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 4, file);
    ck_assert_int_eq(fclose(file), 0);
}

const char *processes_config(const char *name, uint32_t n_layers, uint32_t n_heads, uint32_t width,
                             uint32_t n_positions)
{
    return processes_config_with(name, n_layers, n_heads, width, n_positions, "");
}

const char *processes_config_with(const char *name, uint32_t n_layers, uint32_t n_heads, uint32_t width,
                                  uint32_t n_positions, const char *members)
{
    char text[512];

    snprintf(text, sizeof text, "{%s}", members);
    json_t *more = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_t *config = json_pack("{ss si si si si si sf sf sf}", "model_type", "gpt2", "n_layer", (int)n_layers, "n_head",
                               (int)n_heads, "n_embd", (int)width, "n_positions", (int)n_positions, "vocab_size", 256,
                               "attn_pdrop", 0.0, "embd_pdrop", 0.0, "resid_pdrop", 0.0);
    ck_assert_msg(more != NULL, "not JSON: %s", text);
    json_object_update(config, more);
    char *all = json_dumps(config, 0);
    const char *path = processes_write(name, all, strlen(all));
    free(all);
    json_decref(config);
    json_decref(more);
    return path;
}

uint32_t processes_token(size_t i)
{
    return (uint32_t)(32 + (i * 2654435761u >> 7) % 95);
}

const char *processes_text(const char *name, size_t n)
{
    char *text = malloc(n);

    ck_assert_ptr_nonnull(text);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)processes_token(i);
    const char *path = processes_write(name, text, n);
    free(text);
    return path;
}

pid_t processes_start(const char *program, const char *const *argv, const char *log)
{
    char path[400];
    const char *all[32] = {path};
    pid_t pid;

    snprintf(path, sizeof path, "%s/%s", *program == '/' ? "" : programs, program);
    for (size_t i = 0; argv[i]; i++) {
        ck_assert_uint_lt(i, 30);
        all[i + 1] = argv[i];
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* a forked test's own: what this one starts and leaves can be found */
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        int fd = open(log ? log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(fd, STDERR_FILENO);
        if (!log)
            dup2(fd, STDOUT_FILENO);
        execv(path, (char *const *)all);
        _exit(127);
    }
    ck_assert_uint_lt(n_started, MAX_STARTED);
    started[n_started++] = pid;
    return pid;
}

json_t *processes_answer(const char *path)
{
    char *said = processes_read(path);
    json_t *answer = json_loads(said, JSON_REJECT_DUPLICATES, NULL);

    ck_assert_msg(answer != NULL, "not JSON: %s", said);
    free(said);
    return answer;
}

bool processes_until(bool (*ready)(void *context), void *context)
{
    for (int ms = 0; ms < WAIT_MS; ms += 5) {
        if (ready(context))
            return true;
        poll(NULL, 0, 5);
    }
    return false;
}

struct waiting {
    pid_t pid;
    int status;
};

static bool has_ended(void *context)
{
    struct waiting *w = context;

    return waitpid(w->pid, &w->status, WNOHANG) == w->pid;
}

int processes_eps(const char *format, ...)
{
    char arguments[1024], command[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    snprintf(command, sizeof command, "cd %s && %s/eps %s >out 2>err", dir, programs, arguments);
    int status = system(command);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int processes_wait(pid_t pid)
{
    struct waiting w = {.pid = pid};

    if (!processes_until(has_ended, &w))
        return -1;
    for (size_t i = 0; i < n_started; i++)
        if (started[i] == pid)
            started[i] = started[--n_started];
    return WIFEXITED(w.status) ? WEXITSTATUS(w.status) : 128 + WTERMSIG(w.status);
}

struct attached {
    const char *name;
    uint32_t wanted, n;
};

static void on_status(void *user, const struct eps_status *status)
{
    ((struct attached *)user)->n = status->n_workers;
}

static bool are_attached(void *context)
{
    struct attached *a = context;

    return eps_status(a->name, on_status, a, NULL) == 0 && a->n >= a->wanted;
}

uint32_t processes_workers(const char *name)
{
    struct attached a = {.name = name};

    return eps_status(name, on_status, &a, NULL) == 0 ? a.n : UINT32_MAX;
}

void processes_await_workers(const char *name, uint32_t n)
{
    ck_assert(processes_until(are_attached, &(struct attached){.name = name, .wanted = n}));
}

struct expected_state {
    const char *name, *state;
    bool reached;
    char seen[80];
};

static void compare_state(void *user, const struct eps_status *status)
{
    struct expected_state *expected = user;

    expected->reached = strcmp(status->state, expected->state) == 0;
    snprintf(expected->seen, sizeof expected->seen, "'%.40s' after %ju steps", status->state, (uintmax_t)status->step);
}

static bool is_in_state(void *context)
{
    struct expected_state *expected = context;

    return eps_status(expected->name, compare_state, expected, NULL) == 0 && expected->reached;
}

void processes_await_state(const char *name, const char *state)
{
    struct expected_state expected = {.name = name, .state = state};

    ck_assert_msg(processes_until(is_in_state, &expected), "%s: not '%s', but %s", name, state, expected.seen);
}

static bool is_free(void *name)
{
    char directory[300];
    struct error err = {""};

    return session_directory(directory, sizeof directory, name, &err) == 0 && !session_is_live(directory);
}

void processes_await_free(const char *name)
{
    ck_assert(processes_until(is_free, (void *)(uintptr_t)name));
}

pid_t processes_worker(const char *name, const char *device_mem, const char *log)
{
    return processes_start("eps-worker", (const char *const[]){"--connect", name, "--device-mem", device_mem, NULL},
                           log);
}

pid_t processes_daemon(const char *name, uint32_t n_workers, pid_t *workers)
{
    const char *const daemon[] = {"--listen", name, NULL};

    processes_await_free(name);
    pid_t pid = processes_start("epsd", daemon, NULL);
    processes_await_workers(name, 0);
    for (uint32_t i = 0; i < n_workers; i++) {
        pid_t w = processes_worker(name, "256MiB", NULL);
        if (workers)
            workers[i] = w;
    }
    processes_await_workers(name, n_workers);
    return pid;
}

static bool read_line(const char *path, const char *key, char *value, size_t cap)
{
    FILE *file = fopen(path, "r");
    char line[256];
    const size_t n = strlen(key);
    bool found = false;

    while (file && !found && fgets(line, sizeof line, file))
        if (strncmp(line, key, n) == 0 && line[n] == ':') {
            snprintf(value, cap, "%s", line + n + 1 + strspn(line + n + 1, " \t"));
            value[strcspn(value, "\n")] = '\0';
            found = true;
        }
    if (file)
        fclose(file);
    return found;
}

static pid_t parent_of(pid_t pid)
{
    char path[64], value[64];

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    return read_line(path, "PPid", value, sizeof value) ? (pid_t)atoi(value) : 0;
}

pid_t processes_find(const char *program)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    pid_t found = 0;

    while (!found && (entry = readdir(proc))) {
        char path[300], name[64], state[64];
        pid_t pid = (pid_t)atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
        if (pid <= 0 || !read_line(path, "Name", name, sizeof name) || strcmp(name, program) != 0 ||
            !read_line(path, "State", state, sizeof state) || state[0] == 'Z')
            continue;
        for (pid_t p = pid; p > 1 && !found; p = parent_of(p))
            if (parent_of(p) == getpid())
                found = pid;
    }
    closedir(proc);
    return found;
}

bool processes_nobody(void)
{
    return !processes_find("epsd") && !processes_find("eps-worker");
}

static bool nobody_is_left(void *context)
{
    (void)context;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    return processes_nobody();
}

void processes_await_nobody(void)
{
    ck_assert(processes_until(nobody_is_left, NULL));
}

uint64_t processes_status_bytes(pid_t pid, const char *key)
{
    char path[64], value[64];

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    return read_line(path, key, value, sizeof value) ? strtoull(value, NULL, 10) * 1024 : 0;
}

char *processes_read(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);

    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    ck_assert_ptr_nonnull(text);
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    text[n] = '\0';
    fclose(file);
    return text;
}

unsigned processes_count(const char *path, const char *text)
{
    char *content = access(path, R_OK) == 0 ? processes_read(path) : NULL;
    unsigned n = 0;

    for (const char *at = content; at && (at = strstr(at, text)); at += strlen(text))
        n++;
    free(content);
    return n;
}

struct eps_train_options processes_options(const char *model, const char *const *files, const char *out)
{
    struct eps_train_options options = eps_train_defaults();

    options.model = model;
    options.data = files;
    options.n_data = 1;
    options.eval_data = files[0];
    options.eval_tokens = 256; /* of all files' an evaluation would take longer than the steps */
    options.out = out;
    options.programs = programs;
    options.order = EPS_SEQUENTIAL;
    options.seed = 5;
    return options;
}

void processes_train(const struct eps_train_options *options)
{
    struct eps_error error = {""};
    const pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        const int rc = eps_train(options, NULL, NULL, &error);
        if (rc)
            fprintf(stderr, "%s\n", error.text);
        _exit(rc ? 1 : 0);
    }
    ck_assert_int_eq(processes_wait(pid), 0);
}

int processes_train_with(const struct eps_train_options *options, const struct eps_train_events *events, void *user)
{
    struct eps_error error = {""};
    int status;
    const pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        const int rc = eps_train(options, events, user, &error);
        processes_put_text("said", error.text);
        _exit(-rc);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static bool exists(void *context)
{
    return access(context, F_OK) == 0;
}

void processes_await_file(const char *path)
{
    ck_assert_msg(processes_until(exists, (void *)(uintptr_t)path), "%s is not there", path);
}

struct awaited {
    const char *path, *text;
    unsigned n;
};

static bool is_there(void *context)
{
    const struct awaited *a = context;

    return processes_count(a->path, a->text) >= a->n;
}

void processes_await_count(const char *path, const char *text, unsigned n)
{
    ck_assert_msg(processes_until(is_there, &(struct awaited){path, text, n}), "%s: '%s' %u times of %u", path, text,
                  processes_count(path, text), n);
}

void processes_await_text(const char *path, const char *text)
{
    processes_await_count(path, text, 1);
}

unsigned processes_count_fds(pid_t pid)
{
    char path[40];
    unsigned n = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *open_files = opendir(path);
    ck_assert_msg(open_files != NULL, "%s: %s", path, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(open_files));)
        n += entry->d_name[0] != '.' && (pid != getpid() || atoi(entry->d_name) != dirfd(open_files));
    closedir(open_files);
    return n;
}

uint64_t processes_bytes_read(void)
{
    FILE *file = fopen("/proc/self/io", "r");
    unsigned long long n = 0;

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "rchar: %llu", &n), 1);
    fclose(file);
    return n;
}
