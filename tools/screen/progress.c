/* stdout is flushed before the line is drawn past it, or text printed earlier would come after. A narrower window has
 * wrapped the old line, whose upper half cannot be erased from here: so the new one begins below. Whatever prints
 * elsewhere clears the line first; the next step draws it again. */
#include "tools/screen/progress.h"

#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const uint64_t second_ns = 1000000000;
static const char mark[] = "NOT SAVED";

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
}

void progress_init(struct progress *progress, FILE *out)
{
    *progress = (struct progress){.out = out, .terminal = terminal_is(out), .saved = UINT64_MAX};
}

void progress_format(char *out, size_t cap, const struct progress *progress)
{
    const struct eps_step *step = &progress->step;
    const char *const unit = step->pixels ? "images" : "tokens";
    const double rate = step->tokens_per_s / (step->pixels ? step->pixels : 1);
    char left[32], peak[24], budget[24], saved[40] = "", evaluating[40] = "";

    if (progress->evaluating)
        snprintf(evaluating, sizeof evaluating, "evaluating %u %%", progress->evaluated);
    if (step->n_steps == 0) {
        snprintf(out, cap, "%s", evaluating);
        return;
    }
    text_duration(left, progress->mean_ms * (double)(step->n_steps - step->step));
    if (progress->saved != UINT64_MAX)
        snprintf(saved, sizeof saved, "  saved %" PRIu64, progress->saved);
    snprintf(out, cap, "step %" PRIu64 "/%" PRIu64 "  loss %.4f%s%s%s%s%s  %.0f %s/s  %s left  device %s of %s%s",
             step->step, step->n_steps, step->loss, step->skipped ? "  skipped" : "", *evaluating ? "  " : "",
             evaluating, progress->trouble ? "  " : "", progress->trouble ? mark : "", rate, unit, left,
             eps_format_bytes(peak, step->device_peak_bytes), eps_format_bytes(budget, step->device_budget_bytes),
             saved);
}

/* Flushes the stream, then writes text in one write if the terminal takes it whole. */
static void progress_put(const struct progress *progress, const char *text, size_t n)
{
    fflush(progress->out);
    while (n > 0) {
        const ssize_t written = write(fileno(progress->out), text, n);
        if (written < 0 && errno != EINTR)
            return; /* a closed terminal must not end a run */
        if (written > 0)
            text += written, n -= (size_t)written;
    }
}

/* Draws "\r", the line with the mark in red, and erases the rest of the old line. */
static void progress_draw(struct progress *progress)
{
    const size_t width = terminal_columns(progress->out) - 1; /* a full line would wrap on some terminals */
    char line[sizeof progress->line], text[sizeof line + 64];
    size_t columns;

    progress_format(line, sizeof line, progress);
    line[terminal_fit(line, width, &columns)] = 0;
    if (progress->n_columns > 0 && strcmp(line, progress->line) == 0)
        return;
    const char *below = progress->n_columns > width ? "\n" : "\r"; /* a narrower window has wrapped the old line */
    const char *red = terminal_style(progress->out, TERMINAL_RED);
    const char *plain = terminal_style(progress->out, TERMINAL_PLAIN);
    const char *found = *red && progress->trouble ? strstr(line, mark) : NULL;
    int n = found ? snprintf(text, sizeof text, "%s%.*s%s%s%s%s\033[K", below, (int)(found - line), line, red, mark,
                             plain, found + strlen(mark))
                  : snprintf(text, sizeof text, "%s%s\033[K", below, line);
    progress_put(progress, text, (size_t)n);
    memcpy(progress->line, line, sizeof line);
    progress->n_columns = columns;
}

/* For a pipe. */
static void progress_print_line(struct progress *progress)
{
    char line[sizeof progress->line];

    progress_format(line, sizeof line, progress);
    fprintf(progress->out, "%s\n", line);
    fflush(progress->out);
}

static bool progress_is_due(const struct progress *progress, bool first, uint64_t now)
{
    const struct eps_step *step = &progress->step;

    if (first || step->step >= step->n_steps)
        return true;
    if (progress->terminal)
        return now - progress->shown_ns >= second_ns / 10;
    return now - progress->shown_ns >= 10 * second_ns ||
           step->step * 100 / step->n_steps > progress->shown_step * 100 / step->n_steps;
}

void progress_step(struct progress *progress, const struct eps_step *step)
{
    const uint64_t now = now_ns();
    const bool first = progress->mean_ms == 0;

    progress->step = *step;
    progress->evaluating = false;
    if (isnan(step->step_ms)) /* it ended before this client came */
        return;
    progress->mean_ms = first ? step->step_ms : 0.9 * progress->mean_ms + 0.1 * step->step_ms;
    if (!progress_is_due(progress, first, now))
        return;
    progress->shown_ns = now;
    progress->shown_step = step->step;
    if (progress->terminal)
        progress_draw(progress);
    else
        progress_print_line(progress);
}

void progress_evaluating(struct progress *progress, uint64_t n_tokens, uint64_t n_all)
{
    if (n_tokens == 0)
        progress->evaluating_ns = now_ns();
    const uint64_t wait_ns = progress->terminal ? second_ns / 2 : 10 * second_ns;
    progress->evaluating = n_tokens > 0 && now_ns() - progress->evaluating_ns >= wait_ns;
    progress->evaluated = (unsigned)(100 * n_tokens / n_all);
    if (!progress->evaluating)
        return;
    if (progress->terminal) {
        progress_draw(progress);
    } else {
        progress_print_line(progress);
        progress->evaluating_ns = now_ns();
        progress->evaluating = false;
    }
}

void progress_saved(struct progress *progress, uint64_t step, const char *path)
{
    progress->saved = step;
    progress->trouble = false;
    if (!progress->terminal) {
        fprintf(progress->out, "saved %s\n", path);
        fflush(progress->out);
    } else if (progress->n_columns > 0) {
        progress_draw(progress);
    }
}

void progress_trouble(struct progress *progress, const char *why)
{
    const bool stood = progress->n_columns > 0;

    progress_clear(progress);
    progress->trouble = true;
    fprintf(progress->out, "%snot saved: %s%s\n", terminal_style(progress->out, TERMINAL_RED), why,
            terminal_style(progress->out, TERMINAL_PLAIN));
    fflush(progress->out);
    if (stood)
        progress_draw(progress);
}

void progress_clear(struct progress *progress)
{
    static const char erase[] = "\r\033[K";

    if (progress->n_columns > 0)
        progress_put(progress, erase, sizeof erase - 1);
    progress->n_columns = 0;
    progress->evaluating = false;
}

void progress_finish(struct progress *progress)
{
    if (progress->n_columns > 0) {
        progress_draw(progress);
        progress_put(progress, "\n", 1);
    }
    progress->n_columns = 0;
}
