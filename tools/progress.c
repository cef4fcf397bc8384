#include "tools/progress.h"

#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static const uint64_t second_ns = 1000000000;

void progress_init(struct progress *progress, FILE *out)
{
    *progress = (struct progress){.out = out, .terminal = isatty(fileno(out)) == 1};
}

/* "45s", "1m20s", "2h05m", "3d04h" */
static void format_duration(char *out, size_t cap, double ms)
{
    const uint64_t s = ms < 1e15 ? (uint64_t)(ms / 1000 + 0.5) : (uint64_t)1e12;

    if (s < 60)
        snprintf(out, cap, "%" PRIu64 "s", s);
    else if (s < 3600)
        snprintf(out, cap, "%" PRIu64 "m%02" PRIu64 "s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, cap, "%" PRIu64 "h%02" PRIu64 "m", s / 3600, s % 3600 / 60);
    else
        snprintf(out, cap, "%" PRIu64 "d%02" PRIu64 "h", s / 86400, s % 86400 / 3600);
}

void progress_format(char *out, size_t cap, const struct eps_step *step, double mean_ms)
{
    char left[32], peak[24], budget[24];

    format_duration(left, sizeof left, mean_ms * (double)(step->n_steps - step->step));
    snprintf(out, cap, "step %" PRIu64 "/%" PRIu64 "  loss %.4f  %.0f tokens/s  %s left  device %s of %s", step->step,
             step->n_steps, step->loss, step->tokens_per_s, left, eps_format_bytes(peak, step->device_peak_bytes),
             eps_format_bytes(budget, step->device_budget_bytes));
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
}

static size_t width_of(FILE *out)
{
    struct winsize size;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

void progress_step(struct progress *progress, const struct eps_step *step)
{
    const uint64_t now = now_ns(), pause = progress->terminal ? second_ns / 10 : second_ns;
    char line[512];

    progress->mean_ms = step->step == 1 ? step->step_ms : 0.9 * progress->mean_ms + 0.1 * step->step_ms;
    if (step->step > 1 && step->step < step->n_steps && now - progress->shown_ns < pause)
        return;
    progress->shown_ns = now;
    progress_format(line, sizeof line, step, progress->mean_ms);
    if (!progress->terminal) {
        fprintf(progress->out, "%s\n", line);
    } else {
        const size_t width = width_of(progress->out) - 1; /* a full line would wrap on some terminals */
        if (width < sizeof line)
            line[width] = 0;
        fprintf(progress->out, "\r\033[K%s", line);
        progress->shown = true;
    }
    fflush(progress->out);
}

void progress_clear(struct progress *progress)
{
    if (progress->shown)
        fprintf(progress->out, "\r\033[K");
    progress->shown = false;
}
