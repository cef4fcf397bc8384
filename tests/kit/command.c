#include "tests/kit/command.h"

#include "tests/kit/processes.h"

#include <check.h>
#include <pty.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *said[2]; /* by the last command, on stdout and stderr */

/* A file of the directory: its content, the caller's. */
static char *read_file(const char *name)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", processes_directory(), name);
    return processes_read(*name == '/' ? name : path);
}

static int run(const char *command)
{
    static const char *const files[] = {"out", "err"};
    char line[4096];

    ck_assert_int_lt(snprintf(line, sizeof line, "cd %s && PATH=%s:$PATH && { %s\n} >out 2>err", processes_directory(),
                              processes_programs(), command),
                     sizeof line);
    const int status = system(line);
    ck_assert_msg(WIFEXITED(status), "%s: killed", command);
    for (int i = 0; i < 2; i++) {
        free(said[i]);
        said[i] = read_file(files[i]);
    }
    return WEXITSTATUS(status);
}

void expect_texts(const char *command, int status, const char *const *texts)
{
    const int got = run(command);

    ck_assert_msg(got == status, "%s: status %d, not %d\n%s%s", command, got, status, said[0], said[1]);
    for (; *texts; texts++)
        ck_assert_msg(strstr(said[status != 0], *texts), "%s: no \"%s\" in\n%s", command, *texts, said[status != 0]);
}

const char *expect_on_terminal(const char *command, int status, unsigned short columns)
{
    return expect_typed(command, status, columns, "");
}

const char *expect_typed(const char *command, int status, unsigned short columns, const char *keys)
{
    static char shown[1 << 16];
    size_t n = 0;
    ssize_t got;
    int fd, ended;
    const pid_t pid = forkpty(&fd, NULL, NULL, &(struct winsize){.ws_row = 24, .ws_col = columns});

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        setenv("TERM", "xterm", 1);
        unsetenv("NO_COLOR");
        if (chdir(processes_directory()) == 0)
            execl("/bin/sh", "sh", "-c", print("PATH=%s:$PATH; %s", processes_programs(), command), (char *)NULL);
        _exit(127);
    }
    ck_assert_int_eq(write(fd, keys, strlen(keys)), (ssize_t)strlen(keys)); /* it keeps them until they are read */
    while (n < sizeof shown - 1 && (got = read(fd, shown + n, sizeof shown - 1 - n)) > 0)
        n += (size_t)got;
    shown[n] = 0;
    close(fd);
    ck_assert_int_eq(waitpid(pid, &ended, 0), pid);
    ck_assert_msg(WIFEXITED(ended) && WEXITSTATUS(ended) == status, "%s: %s", command, shown);
    return shown;
}

void expect_stop(pid_t daemon)
{
    ck_assert_msg(run("eps stop lab") == 0, "%s%s", said[0], said[1]);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

json_t *expect_json(const char *command, int status)
{
    expect(command, status);
    json_t *value = json_loads(said[0], JSON_REJECT_DUPLICATES, NULL);
    ck_assert_msg(value != NULL, "%s: not JSON: %s", command, said[0]);
    return value;
}

json_t *json_at(json_t *value, const char *path)
{
    json_t *at = value;

    for (const char *key = path; *key; key += strcspn(key, "."), key += *key == '.') {
        const char *name = print("%.*s", (int)strcspn(key, "."), key);
        at = json_is_array(at) ? json_array_get(at, strtoul(name, NULL, 10)) : json_object_get(at, name);
        ck_assert_msg(at != NULL, "no %s in %s", name, path);
    }
    return at;
}

double json_number_at(json_t *value, const char *path)
{
    const json_t *number = json_at(value, path);

    ck_assert_msg(json_is_number(number), "no number %s", path);
    return json_number_value(number);
}

const char *command_out(void)
{
    return said[0];
}

const char *command_err(void)
{
    return said[1];
}

static size_t lines_of(const char *text)
{
    size_t n = 0;

    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

size_t command_out_lines(void)
{
    return lines_of(said[0]);
}

size_t command_err_lines(void)
{
    return lines_of(said[1]);
}

void expect_in_file(const char *path, bool present, const char *const *texts)
{
    char *text = read_file(path);

    for (; *texts; texts++)
        ck_assert_msg((strstr(text, *texts) != NULL) == present, "%s \"%s\" in %s:\n%s", present ? "no" : "there is",
                      *texts, path, text);
    free(text);
}

void expect_sentence_texts(const char *command, int status, const char *const *texts)
{
    expect(command, status);
    const char *const end = strchr(said[1], '\n');
    ck_assert_msg(end && !end[1], "%s: not one line: %s", command, said[1]);
    for (; *texts; texts++)
        ck_assert_msg(strstr(said[1], *texts), "%s: no \"%s\" in %s", command, *texts, said[1]);
}

void expect_refusal(const struct refusal *r)
{
    expect_sentence(r->command, r->status, r->first, r->second);
    ck_assert_msg(strncmp(said[1], "eps", 3) == 0, "%s: %s", r->command, said[1]);
    ck_assert_msg(said[1][strlen(said[1]) - 2] != '.', "%s: ends in a full stop: %s", r->command, said[1]);
    ck_assert_msg(*said[0] == 0, "%s: on stdout: %s", r->command, said[0]);
}

const char *print(const char *format, ...)
{
    static char texts[8][2048];
    static unsigned next;
    char *text = texts[next++ % 8];
    va_list args;

    va_start(args, format);
    ck_assert_int_lt(vsnprintf(text, sizeof texts[0], format, args), sizeof texts[0]);
    va_end(args);
    return text;
}

char *quoted(const char *text)
{
    static char out[4][4096];
    static unsigned n;
    char *to = out[n++ % 4];

    snprintf(to, sizeof *out, "%s", text);
    for (char *quote = to; (quote = strchr(quote, '\''));)
        *quote = '"';
    return to;
}
