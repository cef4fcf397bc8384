/* What came of a run: a summary that can be pasted. A report is not worth a failure: without memory it is left out.
 * Files are looked for before they are named, and a command's names are quoted, so that it can be pasted into a
 * shell. */
#include "tools/account.h"

#include "tools/ended.h"

#include "tools/live.h"
#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LABEL = 13 }; /* columns of "loss         " */

void account_init(struct account *account)
{
    *account = (struct account){.saved = UINT64_MAX, .before = NAN, .after = NAN, .best = {.loss = NAN}};
}

FILE *account_lines_open(struct account_lines *lines)
{
    *lines = (struct account_lines){NULL, 0};
    return open_memstream(&lines->text, &lines->n);
}

void account_lines_print(FILE *out, struct account_lines *lines)
{
    const char *colour = terminal_style(stdout, TERMINAL_LABEL), *plain = terminal_style(stdout, TERMINAL_PLAIN);

    fclose(out);
    for (char *line = lines->text, *end; line && *line; line = end + 1) {
        end = line + strcspn(line, "\n");
        if (!*end) /* each line ends with one */
            break;
        *end = 0;
        const size_t label = strlen(line) < LABEL ? strlen(line) : LABEL;
        printf("%s%.*s%s", colour, (int)label, line, plain);
        terminal_wrap(stdout, line + label, LABEL, LABEL, terminal_columns(stdout));
        putchar('\n');
    }
    free(lines->text);
    fflush(stdout);
}

/* ---- What the events tell ---- */

void account_step(struct account *a, const struct eps_step *step)
{
    if (a->last == 0)
        a->first = step->step - 1;
    a->last = step->step;
    a->n_skipped += step->skipped;
    a->pixels = step->pixels;
    series_add(&a->losses, (double)step->step, step->loss);
    if (isnan(step->step_ms)) /* it ended before this client came */
        return;
    a->ms += step->step_ms;
    a->optimizer_ms += step->optimizer_ms;
    a->tokens += step->tokens_per_s * step->step_ms / 1000;
}

void account_evaluated(struct account *a, uint64_t step, double loss)
{
    if (step == 0) {
        a->before = loss;
    } else {
        a->after = loss;
        a->after_step = step;
    }
    if (!(a->best.loss <= loss)) /* also the first */
        a->best = (struct plot_best){step, loss};
}

/* ---- At the end ---- */

/* True if a file of the run exists; its directory may have been removed or moved. */
static bool account_has(const struct account *a, const char *name)
{
    char path[sizeof a->out + 64];

    snprintf(path, sizeof path, "%s/%s", a->out, name);
    return access(path, F_OK) == 0;
}

/* The command that uses what the run has made, and its option. */
static const char *account_use(const struct account *a, const char **option)
{
    const struct eps_task_facts *task = eps_task_facts(a->teaches);
    const char *use = task ? task->use : "generate";

    *option = strcmp(use, "eval") == 0 ? " --data FILE" : "";
    return use;
}

/* Prints the run's existing files and their purpose; the newest checkpoint may be older than the last step. */
static void print_files(const struct account *a)
{
    char name[4096], directory[4 * sizeof a->out]; /* ready to paste into a shell */
    char step[32];
    const char *const eps = eps_quote(name, sizeof name, program_invocation_name);
    const char *const out = eps_quote(directory, sizeof directory, a->out);
    const uint64_t saved = a->saved;
    const char *option, *use = account_use(a, &option);

    if (!account_has(a, "metrics.jsonl")) {
        printf("files        no longer in %s: it was moved or removed\n", a->out);
        return;
    }
    printf("files        ");
    if (saved != UINT64_MAX)
        printf("weights in %s/step-%" PRIu64 ", ", a->out, saved);
    printf("steps in %s/metrics.jsonl", a->out);
    if (a->drawn)
        printf(", picture in %s/report.svg", a->out);
    putchar('\n');
    if (saved == UINT64_MAX)
        return;
    snprintf(step, sizeof step, "step-%" PRIu64, saved);
    if (saved < a->n_steps && !a->complete)
        printf("next         %s train --resume %s\n", eps, out);
    else
        printf("next         %s %s --model %s/%s%s\n"
               "             %s train --resume %s --steps %" PRIu64 "\n",
               eps, use, out, account_has(a, "latest/config.json") ? "latest" : step, option, eps, out, 2 * saved);
}

static void print_against(FILE *out, uint64_t peak, uint64_t planned)
{
    char text[24];

    if (peak == planned)
        fprintf(out, " (as planned)\n");
    else if (planned > 0)
        fprintf(out, " (%s planned)\n", eps_format_bytes(text, planned));
    else
        fputc('\n', out);
}

/* A measured profile that is this far off no longer tells of the machine, or of its load. */
static const double most_off = 0.15;

/* "; a step took 120 ms, 100 predicted: ..." if they differ by more, over enough steps; and which line did. */
static void print_surprise(FILE *out, const struct account *a, uint64_t n)
{
    enum { FEW = 5 };
    const double each = a->ms / (double)n, optimizer = a->optimizer_ms / (double)n;

    if (n < FEW || a->predicted_ms <= 0 || fabs(each / a->predicted_ms - 1) <= most_off)
        return;
    fprintf(out, "; a step took %.4g ms, where %.4g were predicted from what eps bench measured here: ", each,
            a->predicted_ms);
    if (fabs(optimizer - a->predicted_optimizer_ms) > most_off * a->predicted_optimizer_ms)
        fprintf(out, "the optimizer worked for %.4g of them, where %.4g were predicted", optimizer,
                a->predicted_optimizer_ms);
    else
        fprintf(out,
                "the optimizer worked for %.4g of them, about as predicted, so it was the device, of which %.4g were "
                "predicted, or its link",
                optimizer, a->predicted_compute_ms);
}

/* Tokens or images of this call's steps. */
static double account_n_done(const struct account *a)
{
    return a->tokens / (a->pixels ? a->pixels : 1);
}

/* "run          text-small, 1.1 M parameters: 30 steps, 61.4 k tokens, 20.3 s" */
static void print_run(FILE *out, const struct account *a)
{
    const uint64_t n = a->last - a->first;
    char count[24], duration[32];

    fprintf(out, "run          %s, %s parameters: ", a->model, text_count(count, a->n_parameters));
    if (a->first > 0)
        fprintf(out, "step%s %" PRIu64 " to %" PRIu64, n == 1 ? "" : "s", a->first + 1, a->last);
    else if (a->last < a->n_steps)
        fprintf(out, "%" PRIu64 " of %" PRIu64 " steps", n, a->n_steps);
    else
        fprintf(out, "%" PRIu64 " step%s", n, n == 1 ? "" : "s");
    fprintf(out, ", %s %s, %s\n", text_count(count, (uint64_t)(account_n_done(a) + 0.5)),
            a->pixels ? "images" : "tokens", text_ms(duration, (double)a->took_ms));
    fprintf(out, "speed        %.0f %s/s over %" PRIu64 " step%s", a->ms > 0 ? account_n_done(a) * 1000 / a->ms : 0,
            a->pixels ? "images" : "tokens", n, n == 1 ? "" : "s");
    print_surprise(out, a, n);
    fputc('\n', out);
}

/* Of a loss that is the mean of log p of tokens: how many tokens it is as hard to choose among. */
static void print_perplexity(FILE *out, const struct account *a, double loss, bool smoothed)
{
    const struct eps_task_facts *task = eps_task_facts(a->teaches);

    if (task && task->perplexity && !smoothed && isfinite(exp(loss)))
        fprintf(out, " (%s %.4g)", task->perplexity, exp(loss));
}

/* The mean over the last tenth of the steps, one at least. A long run's losses are kept as means of equal numbers of
 * steps, of which whole ones are taken: *n steps. */
static double account_last_tenth(const struct account *a, uint64_t *n)
{
    const struct series *s = &a->losses;
    const uint64_t wanted = (a->last - a->first) / 10;
    uint64_t n_finite = 0;
    double sum = 0;

    *n = 0;
    for (size_t i = s->n; i > 0 && (*n == 0 || *n < wanted); i--) {
        *n += s->means[i - 1].n_x;
        n_finite += s->means[i - 1].n_y;
        sum += s->means[i - 1].y;
    }
    return n_finite > 0 ? sum / (double)n_finite : NAN;
}

static void print_loss(FILE *out, const struct account *a)
{
    uint64_t n;
    const double mean = account_last_tenth(a, &n);

    fprintf(out, "loss         %.4f", mean);
    print_perplexity(out, a, mean, a->smoothed);
    if (n > 1)
        fprintf(out, ", mean of the last %" PRIu64 " steps\n", n);
    else
        fprintf(out, " at step %" PRIu64 "\n", a->last);
}

static void print_held_out(FILE *out, const struct account *a)
{
    const bool has_after = !isnan(a->after);

    if (!has_after && isnan(a->before))
        return;
    fprintf(out, "held out     ");
    if (has_after) {
        fprintf(out, "%.4f", a->after);
        print_perplexity(out, a, a->after, false);
        fprintf(out, " after %" PRIu64 " step%s", a->after_step, a->after_step == 1 ? "" : "s");
    }
    if (!isnan(a->before))
        fprintf(out, "%s%.4f before the first", has_after ? ", " : "", a->before);
    fputc('\n', out);
}

/* The lowest held-out loss, where it was, and where its weights are, if it has a checkpoint; unless the last one is the
 * only one. */
static void print_best(FILE *out, const struct account *a)
{
    const uint64_t kept = ended_linked(a->out, "best"), step = a->best.step;

    if (isnan(a->best.loss) || (step == a->after_step && kept == UINT64_MAX))
        return;
    fprintf(out, "best         %.4f ", a->best.loss);
    if (step == 0)
        fprintf(out, "before the first step: none was lower\n");
    else
        fprintf(out, "after %" PRIu64 " step%s%s%s%s\n", step, step == 1 ? "" : "s",
                kept == step ? ", weights in " : ", without a checkpoint", kept == step ? a->out : "",
                kept == step ? "/best" : "");
}

static void print_losses(FILE *out, const struct account *a)
{
    if (a->last > a->first)
        print_loss(out, a);
    print_held_out(out, a);
    print_best(out, a);
    for (size_t i = 0; i < a->n_scores; i++)
        fprintf(out, "%s%s %.4f%s", i ? ", " : "scores       ", a->scores[i].name, a->scores[i].value,
                i + 1 == a->n_scores ? "\n" : "");
    if (a->n_skipped > 0)
        fprintf(out, "skipped      %" PRIu64 " of these steps, whose gradient was not finite\n", a->n_skipped);
}

void account_end(const struct account *a)
{
    char peak[24], budget[24];
    struct account_lines text;
    FILE *out = account_lines_open(&text);

    if (!out)
        return;
    if (a->last > a->first)
        print_run(out, a);
    print_losses(out, a);
    fprintf(out, "memory       device %s of %s at most", eps_format_bytes(peak, a->device_peak),
            eps_format_bytes(budget, a->device_budget));
    print_against(out, a->device_peak, a->device_planned);
    fprintf(out, "             host %s", eps_format_bytes(peak, a->host_peak));
    print_against(out, a->host_peak, a->host_planned);
    putchar('\n'); /* above the lines, which are still in memory */
    account_lines_print(out, &text);
    print_files(a);
}
