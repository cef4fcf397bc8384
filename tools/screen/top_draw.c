/* Every line goes through line(), which cuts it to the width, and drops it once the screen is full: so nothing wraps or
 * scrolls. Workers get what FEWEST lines for the rest leave of it; the map of units fills what is left, several units a
 * mark if need be. */
#include "tools/screen/top_draw.h"

#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1024, NARROW = 76 /* columns: on a narrower screen a worker's rates have a line of their own */ };

struct page {
    FILE *out;
    unsigned width, left; /* columns; lines left */
    bool utf8;
};

static void __attribute__((format(printf, 2, 3))) line(struct page *page, const char *format, ...)
{
    char text[LINE];
    size_t used;
    va_list args;

    if (page->left == 0)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t n = terminal_fit(text, page->width, &used);
    while (n > 0 && text[n - 1] == ' ')
        n--;
    fprintf(page->out, "%.*s\n", (int)n, text);
    page->left--;
}

/* Draws the last losses, one character each, scaled from the least to the greatest. */
static void draw_losses(char *out, size_t cap, const struct top_view *view, const struct page *page, size_t n_columns)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[] = {"_", ".", ",", "-", "=", "+", "*", "#"};
    const size_t n = view->n_losses < n_columns ? view->n_losses : n_columns;
    const float *losses = view->losses + (view->n_losses - n);
    float least = INFINITY, most = -INFINITY;
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(losses[i])) /* highest, to stand out */
            continue;
        least = losses[i] < least ? losses[i] : least;
        most = losses[i] > most ? losses[i] : most;
    }
    for (size_t i = 0; i < n && at + 4 < cap; i++) {
        const float height = most > least ? (losses[i] - least) / (most - least) : 0;
        const unsigned level = !isfinite(losses[i]) ? 7 : (unsigned)(height * 7 + 0.5f);
        at += (size_t)snprintf(out + at, cap - at, "%s", page->utf8 ? blocks[level] : ascii[level]);
    }
}

static void draw_head(struct page *page, const struct top_view *view)
{
    char step[80] = "", text[LINE], left[32];

    if (view->n_steps > 0)
        snprintf(step, sizeof step, "  step %" PRIu64 "/%" PRIu64, view->step, view->n_steps);
    line(page, "eps top  %s  %s%s  %s", view->name, view->state, step, view->model);
    if (view->n_losses > 0) {
        const int used = snprintf(text, sizeof text, "loss %.4f  ", (double)view->losses[view->n_losses - 1]);
        draw_losses(text + used, sizeof text - (size_t)used, view, page,
                    page->width > (unsigned)used ? page->width - (unsigned)used : 0);
        line(page, "%s", text);
    } else {
        line(page, "loss -");
    }
    if (isnan(view->step_ms)) {
        line(page, "- tokens/s");
        return;
    }
    text_duration(left, view->n_steps > view->step ? view->step_ms * (double)(view->n_steps - view->step) : 0);
    line(page, "%.0f tokens/s  %.4g ms a step  %s left  %" PRIu64 " tokens%s", view->tokens_per_s, view->step_ms, left,
         view->tokens, view->saving ? "  saving" : "");
}

/* "[#####|    ]": current, peak, budget. */
static void draw_bar(char *out, size_t n_columns, const struct top_worker *w)
{
    const size_t n = n_columns - 2;
    const double scale = w->budget > 0 ? (double)n / (double)w->budget : 0;
    size_t used = (size_t)((double)w->current * scale + 0.5), peak = (size_t)((double)w->peak * scale + 0.5);

    used = used < n ? used : n;
    peak = peak < n ? peak : n;
    out[0] = '[';
    memset(out + 1, ' ', n);
    memset(out + 1, '#', used);
    if (peak > used)
        out[peak] = '|';
    out[n + 1] = ']';
    out[n + 2] = '\0';
}

static void draw_rates(char *out, size_t cap, const struct top_worker *w)
{
    char down[24] = "-", up[24] = "-";

    if (!isnan(w->down_per_s)) {
        const uint64_t most = (uint64_t)fmax(w->down_per_s, w->up_per_s);
        eps_format_bytes_like(down, (uint64_t)w->down_per_s, most);
        eps_format_bytes_like(up, (uint64_t)w->up_per_s, most);
    }
    snprintf(out, cap, "down %10s/s  up %10s/s", down, up);
}

static void draw_worker(struct page *page, const struct top_worker *w, bool whole)
{
    char place[96] = "", part[40] = "", where[96] = "", rates[80], bar[LINE / 2], current[24], budget[24], tail[160];

    if (w->n_visits > 0)
        snprintf(place, sizeof place, "  %s  %" PRIu32 "/%" PRIu32, w->unit, w->visit + 1, w->n_visits);
    if (w->n_visits > 0 && w->n_parts > 0)
        snprintf(part, sizeof part, "  part %" PRIu32 " (of %" PRIu32 " here)", w->part + 1, w->n_parts);
    if (w->pid)
        snprintf(where, sizeof where, "  on %s, pid %" PRIu32, *w->host ? w->host : "an unnamed host", w->pid);
    line(page, "worker %" PRIu32 " %s%s%s  %s%s%s%s", w->id, w->device, *w->model ? " " : "", w->model, w->phase, place,
         part, where);
    if (!whole)
        return;
    const uint64_t like = text_unit(w->current, w->budget);
    draw_rates(rates, sizeof rates, w);
    snprintf(tail, sizeof tail, " %10s of %10s", eps_format_bytes_like(current, w->current, like),
             eps_format_bytes_like(budget, w->budget, like));
    if (page->width >= NARROW) {
        strcat(tail, "  ");
        strcat(tail, rates);
    }
    const size_t used = strlen(tail) + 2;
    const size_t n_bar = page->width > used + 12 ? page->width - used : 12;
    draw_bar(bar, n_bar < sizeof bar - 1 ? n_bar : sizeof bar - 1, w);
    line(page, "  %s%s", bar, tail);
    if (page->width < NARROW)
        line(page, "  %s", rates);
}

/* Draws each worker in full if there is room; otherwise one line each, and the number of those that do not fit. */
static void draw_workers(struct page *page, const struct top_view *view, unsigned n_lines)
{
    const unsigned whole = page->width < NARROW ? 3 : 2;
    const size_t n = view->n_workers;
    const bool all_whole = n * whole <= n_lines;
    const size_t n_shown = all_whole || n <= n_lines ? n : n_lines > 0 ? n_lines - 1 : 0;

    for (size_t i = 0; i < n_shown; i++)
        draw_worker(page, &view->workers[i], all_whole);
    if (n_shown < n && n_lines > 0)
        line(page, "... %zu workers more", n - n_shown);
    if (n == 0)
        line(page, "no workers");
}

static void draw_host(struct page *page, const struct top_view *view, unsigned n_lines)
{
    char current[24], peak[24], text[LINE] = "";
    size_t used = 0;

    line(page, "host  %s, at most %s  optimizer on %" PRIu32 " thread%s",
         eps_format_bytes_like(current, view->host_current, view->host_peak), eps_format_bytes(peak, view->host_peak),
         view->n_threads, view->n_threads == 1 ? "" : "s");
    for (size_t i = 0; i < view->n_categories && n_lines > 0; i++) {
        char item[64], bytes[24];
        const size_t n = (size_t)snprintf(item, sizeof item, "  %s %s", view->categories[i].name,
                                          eps_format_bytes(bytes, view->categories[i].current));
        if (used > 0 && (used + n > page->width || used + n >= sizeof text)) {
            line(page, "%s", text);
            n_lines--;
            used = 0;
        }
        memcpy(text + used, item, n + 1);
        used += n;
    }
    if (used > 0 && n_lines > 0)
        line(page, "%s", text);
}

/* Summarises units first .. first+n-1 in one character: the busiest state; if all wait, how many have been updated. */
static char summarise_units(const struct top_view *view, size_t first, size_t n, uint64_t version)
{
    static const char marks[] = {
        [EPS_UNIT_WAITING] = '.', [EPS_UNIT_RELAYING] = '>', [EPS_UNIT_FOLDING] = 'f', [EPS_UNIT_UPDATING] = 'u'};
    enum eps_unit_state busiest = EPS_UNIT_WAITING;
    size_t n_through = 0;

    for (size_t i = first; i < first + n; i++) {
        busiest = view->units[i].state > busiest ? view->units[i].state : busiest;
        n_through += view->units[i].version > version;
    }
    if (busiest != EPS_UNIT_WAITING || n_through == 0)
        return marks[busiest];
    return n_through == n ? '+' : '-';
}

static uint64_t lowest_version(const struct top_view *view)
{
    uint64_t version = view->units[0].version;

    for (size_t i = 1; i < view->n_units; i++)
        version = view->units[i].version < version ? view->units[i].version : version;
    return version;
}

/* A map of all units, the bottom one first, row by row; one character stands for one or several units. */
static void draw_units(struct page *page, const struct top_view *view)
{
    if (view->n_units == 0 || page->left < 2)
        return;
    const size_t n_columns = page->width > 4 ? page->width - 2 : 2, n_cells = n_columns * (page->left - 1);
    const size_t n_each = (view->n_units + n_cells - 1) / n_cells;
    const uint64_t version = lowest_version(view);
    char text[LINE], each[40] = "";
    size_t n = 0;

    if (n_each > 1)
        snprintf(each, sizeof each, "  (%zu a mark)", n_each);
    line(page, "units %zu at %" PRIu64 ", + at %" PRIu64 "  . waits  > relayed  f folded  u updated%s", view->n_units,
         version, version + 1, each);
    for (size_t i = 0; i < view->n_units; i += n_each) {
        const size_t left = view->n_units - i;
        text[n++] = summarise_units(view, i, left < n_each ? left : n_each, version);
        if (n == n_columns || n + 1 == sizeof text || left <= n_each) {
            text[n] = '\0';
            line(page, "  %s", text);
            n = 0;
        }
    }
}

char *top_draw(const struct top_view *view, const struct top_size *size)
{
    enum { FEWEST = 7 }; /* lines: 3 for the head, no worker, 1 for the host, 2 for the units, and one for either */
    char *text = NULL;
    size_t n;
    struct page page = {.width = size->width < LINE ? size->width : LINE - 1, .left = size->height, .utf8 = size->utf8};

    page.out = open_memstream(&text, &n);
    if (!page.out)
        return NULL;
    draw_head(&page, view);
    if (*view->trouble)
        line(&page, "NOT SAVED: %s", view->trouble);
    const unsigned spare = size->height > FEWEST ? size->height - FEWEST : 0;
    draw_workers(&page, view, spare > 0 ? spare : 1);
    draw_host(&page, view, page.left > 3 ? page.left - 3 : 0);
    draw_units(&page, view);
    fclose(page.out);
    return text;
}

void top_view_free(struct top_view *view)
{
    free(view->workers);
    free(view->categories);
    free(view->units);
    *view = (struct top_view){0};
}
