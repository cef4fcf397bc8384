/* Every line goes through line(), which cuts it to the width, and drops it once the screen is full: so nothing wraps or
 * scrolls. The curve takes what all else leaves in its shortest form; workers get what FEWEST lines for the rest leave
 * of it; memory by category has a line each where there is room; and the map takes the rest, several layers a mark if
 * need be. */
#include "tools/screen/top_draw.h"

#include "tools/screen/chart.h"
#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 2048 }; /* bytes: of a chart's blocks, 3 a column */

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

/* "[#####|    ]", n_columns of them: what is used of a whole, and a mark where the plan ends. */
static void draw_bar(char *out, size_t n_columns, uint64_t used, uint64_t mark, uint64_t whole)
{
    const size_t n = n_columns - 2;
    const double scale = whole > 0 ? (double)n / (double)whole : 0;
    size_t n_used = (size_t)((double)used * scale + 0.5), at = (size_t)((double)mark * scale + 0.5);

    n_used = n_used < n ? n_used : n;
    at = at < n ? at : n;
    out[0] = '[';
    memset(out + 1, ' ', n);
    memset(out + 1, '#', n_used);
    if (at > 0)
        out[at] = '|';
    out[n + 1] = ']';
    out[n + 2] = '\0';
}

/* ---- The run ---- */

static void draw_step(struct page *page, const struct top_view *view)
{
    char bar[LINE / 2], left[32];
    const bool timed = !isnan(view->step_ms) && view->n_steps > view->step;
    const size_t n_bar = page->width / 3 < 12 ? 12 : page->width / 3;

    if (view->n_steps == 0) {
        line(page, "step -");
        return;
    }
    draw_bar(bar, n_bar, view->step, 0, view->n_steps);
    line(page, "step %" PRIu64 " of %" PRIu64 "  %s  %s%s", view->step, view->n_steps, bar,
         timed ? text_duration(left, view->step_ms * (double)(view->n_steps - view->step)) : "", timed ? " left" : "");
}

static void draw_loss(struct page *page, const struct top_view *view)
{
    char loss[32] = "-", speed[80] = "";

    if (!isnan(view->loss))
        snprintf(loss, sizeof loss, "%.4f", view->loss);
    if (!isnan(view->step_ms))
        snprintf(speed, sizeof speed, "  %.0f tokens/s  %.4g ms a step  %" PRIu64 " tokens", view->tokens_per_s,
                 view->step_ms, view->tokens);
    line(page, "loss %s%s%s", loss, speed, view->saving ? "  saving" : "");
}

/* The curve in n_rows lines, its range at the left, its steps below; in a single line without either. */
static void draw_curve(struct page *page, const struct top_view *view, unsigned n_rows)
{
    enum { MARGIN = 11 /* "  1.2346 | " */ };
    struct chart chart;
    char text[LINE];

    if (!view->curve || page->width < MARGIN + 8)
        return;
    chart_make(&chart, view->curve, page->width - MARGIN);
    if (chart.n < 2)
        return;
    for (unsigned row = 0; row < n_rows; row++) {
        char label[24] = "";
        if (n_rows > 1 && (row == 0 || row + 1 == n_rows))
            snprintf(label, sizeof label, "%.4g", row == 0 ? chart.most : chart.least);
        chart_row(text, sizeof text, &chart, row, n_rows, page->utf8);
        line(page, "%8s | %s", label, text);
    }
    if (n_rows == 1)
        return;
    const int used = snprintf(text, sizeof text, "%.0f", series_x(view->curve, 0));
    line(page, "%*s%s%*.0f", MARGIN, "", text, (int)chart.n > used ? (int)chart.n - used : 1,
         series_x(view->curve, view->curve->n - 1));
}

static void draw_head(struct page *page, const struct top_view *view)
{
    line(page, "eps top  %s  %s  %s", view->name, view->state, view->model);
    if (*view->trouble)
        line(page, "NOT SAVED: %s", view->trouble);
    draw_step(page, view);
    draw_loss(page, view);
}

/* ---- Memory ---- */

/* "8.5 KiB, plan 9.0 KiB, budget 1.0 MiB" */
static void describe_memory(char *out, size_t cap, const struct top_memory *m)
{
    char current[24], planned[24], budget[24];
    int n = snprintf(out, cap, "%s", eps_format_bytes(current, m->current));

    if (m->planned > 0)
        n += snprintf(out + n, cap - (size_t)n, ", plan %s", eps_format_bytes(planned, m->planned));
    if (m->budget > 0)
        snprintf(out + n, cap - (size_t)n, ", budget %s", eps_format_bytes(budget, m->budget));
}

/* A bar of the budget, if there is one that the use can be seen in; else of the plan. */
static void draw_memory_bar(char *out, size_t n_columns, const struct top_memory *m)
{
    const uint64_t most = m->planned > m->current ? m->planned : m->current;
    const bool is_near = m->budget > 0 && m->budget / 8 <= most;

    draw_bar(out, n_columns, m->current, m->planned, is_near ? m->budget : most);
}

static size_t bar_columns(const struct page *page)
{
    enum { LEAST = 12, MOST = 62 };
    const size_t n = page->width / 4;

    return n < LEAST ? LEAST : n > MOST ? MOST : n;
}

/* A line for each category: "  weights           4.0 KiB of    4.0 KiB  [#####|    ]". */
static void draw_categories(struct page *page, const struct top_memory *m)
{
    uint64_t most = 0;

    for (size_t i = 0; i < m->n_categories; i++) {
        const struct top_category *c = &m->categories[i];
        const uint64_t each = c->planned > c->current ? c->planned : c->current;
        most = each > most ? each : most;
    }
    for (size_t i = 0; i < m->n_categories; i++) {
        const struct top_category *c = &m->categories[i];
        char bar[LINE / 2], current[24], planned[24];
        draw_bar(bar, bar_columns(page), c->current, c->planned, most);
        line(page, "    %-14s %10s of %10s  %s", c->name, eps_format_bytes(current, c->current),
             eps_format_bytes(planned, c->planned), bar);
    }
}

/* Categories one behind the other, in at most n_lines. */
static void draw_flowing(struct page *page, const struct top_memory *m, unsigned n_lines)
{
    char text[LINE] = "";
    size_t used = 0;

    for (size_t i = 0; i < m->n_categories && n_lines > 0; i++) {
        char item[64], bytes[24];
        const size_t n = (size_t)snprintf(item, sizeof item, "  %s %s", m->categories[i].name,
                                          eps_format_bytes(bytes, m->categories[i].current));
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

/* ---- Workers ---- */

static void draw_rates(char *out, size_t cap, const struct top_worker *w)
{
    char down[24] = "-", up[24] = "-";

    if (!isnan(w->down_per_s)) {
        eps_format_bytes(down, (uint64_t)w->down_per_s);
        eps_format_bytes(up, (uint64_t)w->up_per_s);
    }
    snprintf(out, cap, "weights in %s/s  gradients out %s/s", down, up);
}

static void draw_worker(struct page *page, const struct top_worker *w, bool whole, bool categories)
{
    char place[96] = "", part[40] = "", where[96] = "", rates[80], bar[LINE / 2], memory[96];

    if (w->n_visits > 0)
        snprintf(place, sizeof place, " of %s  layer %" PRIu32 " of %" PRIu32, w->unit, w->visit + 1, w->n_visits);
    if (w->n_visits > 0 && w->n_parts > 0)
        snprintf(part, sizeof part, "  part %" PRIu32, w->part + 1);
    if (w->pid)
        snprintf(where, sizeof where, "  on %s, pid %" PRIu32, *w->host ? w->host : "an unnamed host", w->pid);
    line(page, "worker %" PRIu32 "  %s%s%s  %s%s%s%s", w->id, w->device, *w->model ? " " : "", w->model, w->phase,
         place, part, where);
    if (!whole)
        return;
    draw_rates(rates, sizeof rates, w);
    describe_memory(memory, sizeof memory, &w->memory);
    draw_memory_bar(bar, bar_columns(page), &w->memory);
    const bool fits = 2 + strlen(bar) + 2 + strlen(memory) + 2 + strlen(rates) <= page->width;
    line(page, "  %s  %s%s%s", bar, memory, fits ? "  " : "", fits ? rates : "");
    if (!fits)
        line(page, "  %s", rates);
    if (categories)
        draw_categories(page, &w->memory);
}

/* Draws each worker in full if there is room, and its categories, if there is room for those; otherwise one line each,
 * and the number of those that do not fit. */
static void draw_workers(struct page *page, const struct top_view *view, unsigned n_lines, bool categories)
{
    enum { WHOLE = 3 }; /* lines, at most */
    const size_t n = view->n_workers;
    const bool all_whole = n * WHOLE <= n_lines;
    const size_t n_shown = all_whole || n <= n_lines ? n : n_lines > 0 ? n_lines - 1 : 0;

    for (size_t i = 0; i < n_shown; i++)
        draw_worker(page, &view->workers[i], all_whole, all_whole && categories);
    if (n_shown < n && n_lines > 0)
        line(page, "... %zu workers more", n - n_shown);
    if (n == 0)
        line(page, "no workers");
}

static void draw_host(struct page *page, const struct top_view *view)
{
    char bar[LINE / 2], memory[96];

    describe_memory(memory, sizeof memory, &view->host);
    draw_memory_bar(bar, bar_columns(page), &view->host);
    line(page, "host  optimizer on %" PRIu32 " thread%s", view->n_threads, view->n_threads == 1 ? "" : "s");
    line(page, "  %s  %s", bar, memory);
}

/* ---- Layers ---- */

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

/* A map of all units, the bottom one first, row by row; one character stands for one or several units. The field calls
 * them layers. */
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
        snprintf(each, sizeof each, " (%zu a mark)", n_each);
    line(page, "layers %zu%s after step %" PRIu64 ", + after %" PRIu64 "  . waits  > transfer  f gradient  u update",
         view->n_units, each, version, version + 1);
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

/* Lines that the map of all layers takes, its legend included, if it is not made coarser. */
static unsigned units_lines(const struct page *page, const struct top_view *view)
{
    const size_t n_columns = page->width > 4 ? page->width - 2 : 2;

    return 1 + (unsigned)((view->n_units + n_columns - 1) / n_columns);
}

/* Lines that the curve takes, its axis included: those that nothing else needs. 1: it has no axis. */
static unsigned curve_lines(const struct page *page, const struct top_view *view)
{
    enum { LEAST = 4, MOST = 14, HOST = 2, FLOWING = 3 };
    const unsigned map = units_lines(page, view), most_map = page->left / 4 + 2;
    const unsigned others = 3 * (unsigned)view->n_workers + HOST + FLOWING + (map < most_map ? map : most_map);

    if (!view->curve || page->left <= others)
        return 0;
    if (page->left < others + LEAST)
        return 1;
    return page->left - others < MOST ? page->left - others : MOST;
}

/* Whether each category of the host gets a line, beside all that is still drawn; or of workers, too, before any is. */
static bool has_room(const struct page *page, const struct top_view *view, bool workers)
{
    unsigned n = units_lines(page, view) + (unsigned)view->host.n_categories + (workers ? 2 : 0);

    for (size_t i = 0; i < view->n_workers && workers; i++)
        n += 3 + (unsigned)view->workers[i].memory.n_categories;
    return page->left >= n;
}

char *top_draw(const struct top_view *view, const struct top_size *size)
{
    enum { FEWEST = 5 }; /* lines: 2 for the host, 2 for the layers, and one for any */
    char *text = NULL;
    size_t n;
    struct page page = {.width = size->width < LINE ? size->width : LINE - 1, .left = size->height, .utf8 = size->utf8};

    page.out = open_memstream(&text, &n);
    if (!page.out)
        return NULL;
    draw_head(&page, view);
    const unsigned n_curve = curve_lines(&page, view);
    if (n_curve > 0)
        draw_curve(&page, view, n_curve > 1 ? n_curve - 1 : 1);
    draw_workers(&page, view, page.left > FEWEST ? page.left - FEWEST : 1, has_room(&page, view, true));
    draw_host(&page, view);
    if (has_room(&page, view, false))
        draw_categories(&page, &view->host);
    else
        draw_flowing(&page, &view->host, page.left > 3 ? page.left - 3 : 0);
    draw_units(&page, view);
    fclose(page.out);
    return text;
}

void top_view_free(struct top_view *view)
{
    for (size_t i = 0; i < view->n_workers; i++)
        free(view->workers[i].memory.categories);
    free(view->workers);
    free(view->host.categories);
    free(view->units);
    *view = (struct top_view){0};
}
