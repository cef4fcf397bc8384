/* eps report: pictures of runs, by gnuplot (tools/screen/picture.h). */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/commands/report_bias.h"
#include "tools/screen/filters.h"
#include "tools/screen/picture.h"
#include "tools/screen/plot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int report_fail(struct eps_error *error, int rc, const char *what)
{
    snprintf(error->text, sizeof error->text, "%.300s: %s", what, strerror(-rc));
    return rc;
}

/* What a picture is of: n runs, or their filters. */
struct picture {
    const struct plot_titled *runs;
    const struct filters_titled *filters; /* NULL: of the runs */
    size_t n;
};

static void write_script(FILE *script, const void *data, const char *format)
{
    const struct picture *of = data;

    if (of->filters)
        filters_write(script, of->filters, of->n, format);
    else if (of->n == 1)
        plot_write(script, of->runs->plot, format, of->runs->title);
    else
        plot_compare(script, of->runs, of->n, format);
}

/* Prints text from an untrusted file. */
static void print_text(const char *text)
{
    for (; *text; text++)
        putchar(*text >= ' ' && *text <= '~' ? *text : '?');
}

struct reading {
    struct plot_titled run;
    bool names; /* the run, with what changed in it */
};

static void report_on_step(void *user, const struct eps_step *step)
{
    const struct reading *reading = user;

    if (step->changed) {
        if (reading->names) {
            print_text(reading->run.title);
            fputs(": ", stdout);
        }
        fputs("changed ", stdout);
        print_text(step->changed);
        putchar('\n');
    }
    plot_add(reading->run.plot, step);
}

static const char *last_component(const char *path)
{
    const char *at = path + strlen(path);

    while (at > path && at[-1] == '/') /* as the shell completes it */
        at--;
    while (at > path && at[-1] != '/')
        at--;
    return at;
}

static bool is_same_name(const char *a, const char *b)
{
    const size_t n = strcspn(a, "/");

    return n == strcspn(b, "/") && strncmp(a, b, n) == 0;
}

/* What a run is called among several: its directory, without those that it is in if that tells it from the others. */
static const char *title_of(const struct argument_texts *runs, size_t i)
{
    const char *title = last_component(runs->items[i]);

    for (size_t k = 0; k < runs->n; k++)
        if (k != i && is_same_name(last_component(runs->items[k]), title))
            return runs->items[i];
    return runs->n == 1 ? runs->items[i] : title;
}

static int report_read_run(struct plot_titled *out, const struct argument_texts *runs, size_t i, uint64_t *n_bad,
                           struct eps_error *error)
{
    struct reading reading = {.run = {calloc(1, sizeof *out->plot), title_of(runs, i)}, .names = runs->n > 1};

    *out = reading.run;
    if (!out->plot)
        return report_fail(error, -ENOMEM, runs->items[i]);
    const int rc = eps_metrics_read(runs->items[i], report_on_step, &reading, n_bad, error);
    if (rc || out->plot->n_steps > 0)
        return rc;
    snprintf(error->text, sizeof error->text, "%.300s/metrics.jsonl has no step yet", runs->items[i]);
    return -ENODATA;
}

static void print_drawn(const struct plot_titled *runs, size_t n, uint64_t n_bad, const char *out)
{
    const uint64_t n_steps = runs->plot->n_steps;

    if (n > 1)
        printf("%s: %zu runs", out, n);
    else
        printf("%s: %" PRIu64 " step%s", out, n_steps, n_steps == 1 ? "" : "s");
    if (n_bad > 0)
        printf("; %" PRIu64 " %s of metrics.jsonl %s passed over", n_bad, n_bad == 1 ? "line" : "lines",
               n_bad == 1 ? "was" : "were");
    putchar('\n');
}

static int report_report(const struct command *command, const struct argument_texts *runs, const char *out)
{
    struct plot_titled *read = calloc(runs->n, sizeof *read);
    struct eps_error error;
    uint64_t n_bad = 0, all_bad = 0;
    int rc = read ? 0 : report_fail(&error, -ENOMEM, "eps report");

    for (size_t i = 0; !rc && i < runs->n; i++, all_bad += n_bad)
        rc = report_read_run(&read[i], runs, i, &n_bad, &error);
    if (!rc)
        rc = picture_draw(out, write_script, &(struct picture){.runs = read, .n = runs->n}, &error);
    if (!rc)
        print_drawn(read, runs->n, all_bad, out);
    for (size_t i = 0; read && i < runs->n; i++)
        free(read[i].plot);
    free(read);
    return rc ? arguments_fail(command, rc, error.text) : 0;
}

static int report_filters(const struct command *command, const struct argument_texts *runs, const char *out)
{
    struct filters_titled *read = calloc(runs->n, sizeof *read);
    struct eps_error error;
    int rc = read ? 0 : report_fail(&error, -ENOMEM, "eps report");

    for (size_t i = 0; !rc && i < runs->n; i++) {
        read[i].title = runs->items[i];
        rc = eps_filters(&read[i].filters, runs->items[i], &error);
    }
    if (!rc)
        rc = picture_draw(out, write_script, &(struct picture){.filters = read, .n = runs->n}, &error);
    if (!rc)
        printf("%s: filters of %zu model%s\n", out, runs->n, runs->n == 1 ? "" : "s");
    for (size_t i = 0; read && i < runs->n; i++)
        eps_filters_free(&read[i].filters);
    free(read);
    return rc ? arguments_fail(command, rc, error.text) : 0;
}

/* The picture's path: of one run by default in its directory. Returns -1, or the exit status. */
static int choose_picture(char path[4096], const char **out, bool filters, const struct command *command,
                          const struct argument_texts *runs)
{
    char why[400];

    if (runs->n > PLOT_RUNS) {
        snprintf(why, sizeof why, "more than %d runs cannot be told apart: compare fewer at a time", PLOT_RUNS);
        return arguments_fail(command, -EDOM, why);
    }
    if (!*out && (runs->n > 1 || filters))
        return arguments_fail(command, -EDOM,
                              filters ? "--out is needed with --filters: a .svg or .png file"
                                      : "--out is needed for several runs: a .svg or .png file");
    if (!*out && snprintf(path, 4096, "%s/report.svg", runs->items[0]) >= 4096)
        return arguments_fail(command, -EDOM, "RUN: name too long");
    if (*out && !picture_format(*out)) {
        snprintf(why, sizeof why, "--out %.300s: a report is a .svg or a .png: name a file that ends in one of these",
                 *out);
        return arguments_fail(command, -EDOM, why);
    }
    *out = *out ? *out : path;
    return -1;
}

/* What --bias has no use for, or needs; -1, or the exit status. */
static int check_bias(const struct command *command, const struct argument_texts *runs, const char *out)
{
    return runs->n > 1 ? arguments_fail(command, -EDOM, "--bias is of one run: name one directory")
           : out
               ? arguments_fail(command, -EDOM, "--out is a picture, and --bias prints a table: give only one of them")
               : -1;
}

/* Options of --bias without it. */
static int check_picture(const struct command *command, const struct eps_bias_options *bias, bool json)
{
    return json || bias->device || bias->device_mem || bias->base_model || bias->approximate || bias->draws > 1
               ? arguments_fail(
                     command, -EDOM,
                     "--json, --approximate, --draws, --device, --device-mem and --base-model go with --bias")
               : -1;
}

int command_report(int argc, char **argv)
{
    struct eps_bias_options bias = eps_bias_defaults();
    struct argument_texts runs = {0};
    const char *out = NULL;
    bool biased = false, json = false, filters = false;
    char path[4096];
    const struct argument arguments[] = {
        {"RUN...", NULL, ARGUMENT_WORDS, &runs, "the directory of a run, which may be live; or several, to compare"},
        {"--out", "FILE", ARGUMENT_TEXT, &out, "a .svg or .png file; of one run by default RUN/report.svg"},
        {"--filters", NULL, ARGUMENT_FLAG, &filters,
         "draw the filters of the first convolution of nets of images instead; RUN may also be a step-N, or a model's "
         "directory. --out is needed"},
        {"Approximate gradients", .kind = ARGUMENT_HEADING},
        {"--bias", NULL, ARGUMENT_FLAG, &biased,
         "print instead, for each checkpoint of a run (RUN may also be a step-N) and each layer, the cosine of the "
         "approximate gradient of a minibatch with the exact one, and the ratio of their norms. Computes both, in "
         "RUN's "
         "directory"},
        {"--approximate", "FORM", ARGUMENT_TEXT, &bias.approximate,
         "with --bias: the form, as in eps train; by default the run's own"},
        {"--draws", "N", ARGUMENT_COUNT, &bias.draws,
         "with --bias: draw N times, and print the noise of one draw, how far the mean of all is off, and how far it "
         "would be by noise alone, so that a bias shows"},
        {"--json", NULL, ARGUMENT_FLAG, &json, "with --bias: print an object a checkpoint, each in a line"},
        {"--base-model", "DIR", ARGUMENT_TEXT, &bias.base_model, "as in eps train"},
        {"--device", "auto|cpu|cuda[:ID]", ARGUMENT_TEXT, &bias.device,
         "with --bias; by default as the run was given it"},
        {"--device-mem", "BYTES", ARGUMENT_BYTES, &bias.device_mem, "with --bias; by default as the run was given it"},
    };
    const struct command command = {
        "eps report",
        "Plots a run with gnuplot: training and held-out loss, tokens/s, and memory by "
        "category of the host and of the device that uses most. Of several runs: losses and "
        "tokens/s, beside each other. With --bias: compares a run's approximate gradients with exact ones.",
        arguments, sizeof arguments / sizeof *arguments};
    int status = arguments_parse(&command, argc, argv);

    if (status < 0 && runs.n == 0)
        status = arguments_fail(&command, -EDOM, "RUN is needed: the directory of a run");
    if (status < 0)
        status = biased ? check_bias(&command, &runs, out) : check_picture(&command, &bias, json);
    if (status < 0 && biased && filters)
        status = arguments_fail(&command, -EDOM, "--bias prints a table, and --filters draws: give only one of them");
    if (status < 0 && biased) {
        bias.run = runs.items[0];
        status = report_bias(&command, &bias, json);
    }
    if (status < 0)
        status = choose_picture(path, &out, filters, &command, &runs);
    if (status < 0)
        status = (filters ? report_filters : report_report)(&command, &runs, out);
    free(runs.items);
    return status;
}
