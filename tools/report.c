#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/screen/plot.h"

#include <errno.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The picture format by suffix, "svg" or "png"; NULL for another. */
static const char *format_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (strcmp(dot, ".svg") == 0 || strcmp(dot, ".png") == 0) ? dot + 1 : NULL;
}

static int fail(struct eps_error *error, int rc, const char *what)
{
    snprintf(error->text, sizeof error->text, "%.300s: %s", what, strerror(-rc));
    return rc;
}

/* Reads the first line of gnuplot's error output. */
static void read_gnuplot_error(char *out, size_t cap, FILE *said)
{
    char line[300];

    snprintf(out, cap, "it gave no reason");
    rewind(said);
    while (fgets(line, sizeof line, said)) {
        char *at = line + strspn(line, " \t^\n");
        at[strcspn(at, "\n")] = 0;
        if (*at && *at != '"')
            snprintf(out, cap, "%s", at);
    }
}

/* Runs gnuplot from script to picture. -d ignores the user's settings. */
static int run_gnuplot(FILE *script, FILE *picture, FILE *said, struct eps_error *error)
{
    char *const arguments[] = {"gnuplot", "-d", NULL};
    posix_spawn_file_actions_t actions;
    char complaint[200];
    int status;
    pid_t pid;

    posix_spawn_file_actions_init(&actions);
    int rc = posix_spawn_file_actions_adddup2(&actions, fileno(script), 0);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&actions, fileno(picture), 1);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&actions, fileno(said), 2);
    rc = rc ? rc : posix_spawnp(&pid, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc == ENOENT) {
        snprintf(error->text, sizeof error->text,
                 "gnuplot draws the report and is not installed: apt-get install gnuplot-nox, then try again");
        return -ENOENT;
    }
    if (rc)
        return fail(error, -rc, "gnuplot did not start");
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return fail(error, -errno, "gnuplot");
    if (status == 0)
        return 0;
    read_gnuplot_error(complaint, sizeof complaint, said);
    snprintf(error->text, sizeof error->text, "gnuplot failed: %s", complaint);
    return -EIO;
}

static int copy(FILE *picture, const char *path, struct eps_error *error)
{
    const int fd = eps_open_output(path, error);
    char bytes[1 << 16];
    struct stat st;
    size_t n;

    if (fd < 0)
        return fd;
    FILE *out = fdopen(fd, "w");
    if (!out)
        return fail(error, -errno, path);
    rewind(picture);
    while ((n = fread(bytes, 1, sizeof bytes, picture)) > 0 && fwrite(bytes, 1, n, out) == n)
        ;
    int rc = ferror(picture) || ferror(out) ? -errno : 0;
    const bool regular = lstat(path, &st) == 0 && S_ISREG(st.st_mode); /* a link stays */
    if (fclose(out) && !rc)
        rc = -errno;
    if (rc && regular)
        unlink(path);
    return rc ? fail(error, rc, path) : 0;
}

static int draw(const struct plot *plot, const char *run, const char *path, struct eps_error *error)
{
    FILE *script = tmpfile(), *picture = tmpfile(), *said = tmpfile();
    int rc = script && picture && said ? 0 : fail(error, -errno, "a temporary file");

    if (!rc) {
        plot_write(script, plot, format_of(path), run);
        rc = fflush(script) ? fail(error, -errno, "a temporary file") : 0;
        rewind(script); /* also for gnuplot's copy of the descriptor */
    }
    if (!rc)
        rc = run_gnuplot(script, picture, said, error);
    if (!rc)
        rc = copy(picture, path, error);
    if (script)
        fclose(script);
    if (picture)
        fclose(picture);
    if (said)
        fclose(said);
    return rc;
}

/* Prints text from an untrusted file. */
static void print_text(const char *text)
{
    for (; *text; text++)
        putchar(*text >= ' ' && *text <= '~' ? *text : '?');
}

static void on_step(void *user, const struct eps_step *step)
{
    if (step->changed) {
        fputs("changed ", stdout);
        print_text(step->changed);
        putchar('\n');
    }
    plot_add(user, step);
}

static int report(const struct command *command, struct plot *plot, const char *run, const char *out)
{
    struct eps_error error;
    uint64_t n_bad;
    int rc = eps_metrics_read(run, on_step, plot, &n_bad, &error);

    if (!rc && plot->n_steps == 0) {
        snprintf(error.text, sizeof error.text, "%.300s/metrics.jsonl has no step yet", run);
        rc = -ENODATA;
    }
    if (!rc)
        rc = draw(plot, run, out, &error);
    if (rc)
        return arguments_fail(command, rc, error.text);
    printf("%s: %" PRIu64 " step%s", out, plot->n_steps, plot->n_steps == 1 ? "" : "s");
    if (n_bad > 0)
        printf("; %" PRIu64 " %s of metrics.jsonl %s passed over", n_bad, n_bad == 1 ? "line" : "lines",
               n_bad == 1 ? "was" : "were");
    putchar('\n');
    return 0;
}

int command_report(int argc, char **argv)
{
    const char *run = NULL, *out = NULL;
    char path[4096], why[400];
    const struct argument arguments[] = {
        {"RUN", NULL, ARGUMENT_POSITIONAL, &run, "a run's directory; the run may be live"},
        {"--out", "FILE", ARGUMENT_TEXT, &out, "a .svg or .png file; default RUN/report.svg"},
    };
    const struct command command = {"eps report",
                                    "Plots a run with gnuplot: training and held-out loss, tokens/s, and memory by "
                                    "category of the host and of the device that uses most.",
                                    arguments, sizeof arguments / sizeof *arguments};
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    if (!run)
        return arguments_fail(&command, -EDOM, "RUN is needed: the directory of a run");
    if (!out && snprintf(path, sizeof path, "%s/report.svg", run) >= (int)sizeof path)
        return arguments_fail(&command, -EDOM, "RUN: name too long");
    if (out && !format_of(out)) {
        snprintf(why, sizeof why, "--out %.300s: a report is a .svg or a .png: name a file that ends in one of these",
                 out);
        return arguments_fail(&command, -EDOM, why);
    }
    struct plot *plot = calloc(1, sizeof *plot);
    if (!plot)
        return arguments_fail(&command, -ENOMEM, "out of memory");
    status = report(&command, plot, run, out ? out : path);
    free(plot);
    return status;
}
