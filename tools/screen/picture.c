/* Script, picture and gnuplot's complaints go through temporary files instead of pipes, so neither side can wait for
 * the other. The picture is copied to its place only when gnuplot has succeeded.
 *
 * Signals are let through to gnuplot, whoever holds them back here: Ctrl-C ends it, and the caller goes on without a
 * picture. -d ignores the user's settings. */
#include "tools/screen/picture.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

const char *picture_format(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (strcmp(dot, ".svg") == 0 || strcmp(dot, ".png") == 0) ? dot + 1 : NULL;
}

static int picture_fail(struct eps_error *error, int rc, const char *what)
{
    snprintf(error->text, sizeof error->text, "%.300s: %s", what, strerror(-rc));
    return rc;
}

/* The last line that gnuplot printed: those before it repeat the script. */
static void picture_read_error(char *out, size_t cap, FILE *said)
{
    char line[300];

    snprintf(out, cap, "it gave no reason");
    rewind(said);
    while (fgets(line, sizeof line, said)) {
        char *at = line + strspn(line, " \t^\n");
        at[strcspn(at, "\n")] = 0;
        if (*at)
            snprintf(out, cap, "%s", at);
    }
}

/* Runs gnuplot from script to picture. */
static int picture_run(FILE *script, FILE *picture, FILE *said, struct eps_error *error)
{
    char *const arguments[] = {"gnuplot", "-d", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    char complaint[200];
    int status;
    pid_t pid;

    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_init(&actions);
    int rc = posix_spawn_file_actions_adddup2(&actions, fileno(script), 0);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&actions, fileno(picture), 1);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&actions, fileno(said), 2);
    rc = rc ? rc : posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (rc == ENOENT) {
        snprintf(error->text, sizeof error->text,
                 "gnuplot draws the report and is not installed: apt-get install gnuplot-nox, then try again");
        return -ENOENT;
    }
    if (rc)
        return picture_fail(error, -rc, "gnuplot did not start");
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return picture_fail(error, -errno, "gnuplot");
    if (status == 0)
        return 0;
    picture_read_error(complaint, sizeof complaint, said);
    snprintf(error->text, sizeof error->text, "gnuplot failed: %s", complaint);
    return -EIO;
}

/* What was written half is removed, but only if it is a file: the path may be a link or a device of the user's. */
static int picture_copy(FILE *picture, const char *path, struct eps_error *error)
{
    const int fd = eps_open_output(path, error);
    char bytes[1 << 16];
    struct stat st;
    size_t n;

    if (fd < 0)
        return fd;
    FILE *out = fdopen(fd, "w");
    if (!out) {
        const int rc = -errno;
        close(fd);
        return picture_fail(error, rc, path);
    }
    rewind(picture);
    while ((n = fread(bytes, 1, sizeof bytes, picture)) > 0 && fwrite(bytes, 1, n, out) == n)
        ;
    int rc = ferror(picture) || ferror(out) ? -errno : 0;
    const bool regular = lstat(path, &st) == 0 && S_ISREG(st.st_mode); /* a link stays */
    if (fclose(out) && !rc)
        rc = -errno;
    if (rc && regular)
        unlink(path);
    return rc ? picture_fail(error, rc, path) : 0;
}

int picture_draw(const char *path, void (*write)(FILE *script, const void *of, const char *format), const void *of,
                 struct eps_error *error)
{
    FILE *script = tmpfile(), *picture = tmpfile(), *said = tmpfile();
    int rc = script && picture && said ? 0 : picture_fail(error, -errno, "a temporary file");

    if (!rc) {
        write(script, of, picture_format(path));
        rc = fflush(script) ? picture_fail(error, -errno, "a temporary file") : 0;
        rewind(script); /* also for gnuplot's copy of the descriptor */
    }
    if (!rc)
        rc = picture_run(script, picture, said, error);
    if (!rc)
        rc = picture_copy(picture, path, error);
    if (script)
        fclose(script);
    if (picture)
        fclose(picture);
    if (said)
        fclose(said);
    return rc;
}
