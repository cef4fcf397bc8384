/* eps top: a live daemon's activity on the full screen, sampled twice a second.
 *
 * ncurses owns the terminal between screen_begin and screen_end, which runs on every exit. Keys and signals are polled
 * while libeps waits; ncurses handles Ctrl-Z. tools/screen/top_draw.c makes the text on the screen. The daemon knows
 * the last losses alone: those before them are read from the run's metrics.jsonl, once for each job. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/commands/top/curve.h"
#include "tools/ended.h"
#include "tools/live.h"
#include "tools/screen/terminal.h"
#include "tools/screen/top_draw.h"

#include <curses.h>
#include <errno.h>
#include <langinfo.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PERIOD_MS = 500 };

struct top {
    struct eps_observer *observer;
    struct top_view view;
    struct top_curve curve;
    uint64_t seen_ms; /* time of the sample; 0: none yet */
    bool utf8, quit, colours;
    SCREEN *screen; /* NULL: none */
    struct stopping stopping;
    sigset_t quit_signal; /* SIGQUIT, held back until the terminal is restored */
    struct eps_error error;
};

/* ---- sampling --------------------------------------------------------------------------------------------------- */

static void take_status(struct top_view *view, const struct eps_status *s)
{
    snprintf(view->name, sizeof view->name, "%s", live_name(s->address));
    snprintf(view->state, sizeof view->state, "%s", s->state);
    snprintf(view->model, sizeof view->model, "%s", s->model);
    snprintf(view->trouble, sizeof view->trouble, "%s", s->trouble);
    view->step = s->step;
    view->n_steps = s->n_steps;
    view->n_parameters = s->n_parameters;
    view->saved_step = s->saved_step;
    view->saving = s->saving;
    view->n_threads = s->n_threads;
}

static void take_recent(struct top *top, struct top_view *view, const struct eps_recent *r)
{
    top_curve_follow(&top->curve, r);
    view->curve = &top->curve.losses;
    view->loss = r->n_losses > 0 ? (double)r->losses[r->n_losses - 1] : NAN;
    view->tokens = r->tokens;
    view->tokens_per_s = r->tokens_per_s;
    view->step_ms = r->step_ms;
}

static void top_on_worker(void *user, const struct eps_worker *w)
{
    struct top_view *view = user;
    struct top_worker *workers = realloc(view->workers, (view->n_workers + 1) * sizeof *workers);

    if (!workers)
        return;
    view->workers = workers;
    struct top_worker *to = &workers[view->n_workers++];
    *to = (struct top_worker){.id = w->id,
                              .pid = w->pid,
                              .visit = w->visit,
                              .n_visits = w->n_visits,
                              .part = w->part,
                              .n_parts = w->n_parts,
                              .memory = {.budget = w->budget, .current = w->current, .peak = w->peak},
                              .down_bytes = w->down_bytes,
                              .up_bytes = w->up_bytes,
                              .down_per_s = NAN,
                              .up_per_s = NAN};
    snprintf(to->device, sizeof to->device, "%s", w->device);
    snprintf(to->model, sizeof to->model, "%s", w->model);
    snprintf(to->host, sizeof to->host, "%s", w->host);
    snprintf(to->phase, sizeof to->phase, "%s", w->phase);
    snprintf(to->unit, sizeof to->unit, "%s", w->unit);
}

static void take_memory(struct top_memory *to, const struct eps_memory *side)
{
    to->current = side->current;
    to->peak = side->peak;
    to->planned = side->planned;
    to->budget = side->budget;
    to->categories = calloc(side->n_rows ? side->n_rows : 1, sizeof *to->categories);
    for (size_t i = 0; to->categories && i < side->n_rows; i++) {
        struct top_category *category = &to->categories[to->n_categories++];
        snprintf(category->name, sizeof category->name, "%s", side->rows[i].category);
        category->current = side->rows[i].current;
        category->planned = side->rows[i].planned;
    }
}

/* Workers have been asked for before; one that attached between has none of the screen. */
static void top_on_memory(void *user, const struct eps_memory *side)
{
    struct top_view *view = user;

    if (side->worker == 0)
        take_memory(&view->host, side);
    for (size_t i = 0; i < view->n_workers; i++)
        if (view->workers[i].id == side->worker && !view->workers[i].memory.categories)
            take_memory(&view->workers[i].memory, side);
}

/* Computes workers' transfer rates from the bytes since the last sample. */
static void add_rates(struct top_view *view, const struct top_view *before, uint64_t ms)
{
    for (size_t i = 0; i < view->n_workers && ms > 0; i++) {
        struct top_worker *w = &view->workers[i];
        for (size_t k = 0; k < before->n_workers; k++) {
            const struct top_worker *old = &before->workers[k];
            if (old->id != w->id)
                continue;
            w->down_per_s = 1e3 * (double)(w->down_bytes - old->down_bytes) / (double)ms;
            w->up_per_s = 1e3 * (double)(w->up_bytes - old->up_bytes) / (double)ms;
        }
    }
}

static int top_ask(struct top *top, struct top_view *view)
{
    struct eps_status status;
    struct eps_recent recent;
    const struct eps_unit *units;
    int rc = eps_observer_status(top->observer, &status, &top->error);

    if (!rc) {
        take_status(view, &status);
        top_curve_begin(&top->curve, status.job, status.out);
        rc = eps_observer_recent(top->observer, &recent, &top->error);
    }
    if (!rc) {
        take_recent(top, view, &recent);
        rc = eps_observer_workers(top->observer, top_on_worker, view, &top->error);
    }
    if (!rc)
        rc = eps_observer_mem(top->observer, false, top_on_memory, view, &top->error);
    if (!rc)
        rc = eps_observer_units(top->observer, &units, &view->n_units, &top->error);
    if (!rc && view->n_units > 0) {
        view->units = malloc(view->n_units * sizeof *units);
        if (view->units)
            memcpy(view->units, units, view->n_units * sizeof *units);
        else
            view->n_units = 0;
    }
    return rc;
}

static int top_observe(struct top *top)
{
    struct top_view view = {0};
    int rc = top_ask(top, &view);

    if (rc) {
        top_view_free(&view);
        return rc;
    }
    const uint64_t now = live_now_ms();
    add_rates(&view, &top->view, top->seen_ms ? now - top->seen_ms : 0);
    top_view_free(&top->view);
    top->view = view;
    top->seen_ms = now;
    return 0;
}

/* ---- the screen ------------------------------------------------------------------------------------------------- */

enum { LABEL = 1, USED, TROUBLE }; /* colour pairs */

/* Sets up colours if NO_COLOR and the terminal allow. */
static void begin_colours(struct top *top)
{
    if (!*terminal_style(stdout, TERMINAL_LABEL) || !has_colors() || start_color() == ERR ||
        use_default_colors() == ERR)
        return;
    init_pair(LABEL, COLOR_CYAN, -1);
    init_pair(USED, COLOR_GREEN, -1);
    init_pair(TROUBLE, COLOR_RED, -1);
    top->colours = true;
}

/* Colours a line by its first word, and a bar, which is filled with '#'. */
static void colour_line(int row, const char *text)
{
    static const char *const labels[] = {"step", "loss", "worker", "host", "layers"};
    const char *const bar = strstr(text, "[#");
    const size_t n = strcspn(text, " ");

    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        if (strlen(labels[i]) == n && memcmp(labels[i], text, n) == 0)
            mvchgat(row, 0, (int)n, A_NORMAL, LABEL, NULL);
    }
    if (bar) /* behind ASCII alone: a column is a byte */
        mvchgat(row, (int)(bar + 1 - text), (int)strspn(bar + 1, "#"), A_NORMAL, USED, NULL);
    if (strncmp(text, "NOT SAVED", 9) == 0)
        mvchgat(row, 0, 9, A_NORMAL, TROUBLE, NULL);
}

static void draw(const struct top *top)
{
    const struct top_size size = {(unsigned)COLS, (unsigned)LINES, top->utf8};
    char *text = top_draw(&top->view, &size), *rest = text, *one;

    erase();
    for (int row = 0; row < LINES && rest && (one = strsep(&rest, "\n")); row++) {
        if (row == 0)
            attron(A_BOLD);
        mvaddstr(row, 0, one);
        attroff(A_BOLD);
        if (top->colours)
            colour_line(row, one);
    }
    refresh();
    free(text);
}

static int screen_begin(struct top *top)
{
    top->screen = newterm(NULL, stdout, stdin);
    if (!top->screen)
        return -ENOTTY;
    set_term(top->screen);
    begin_colours(top);
    cbreak();
    noecho();
    nodelay(stdscr, TRUE);
    keypad(stdscr, TRUE);
    curs_set(0);
    return 0;
}

static void screen_end(struct top *top)
{
    if (!top->screen)
        return;
    endwin();
    delscreen(top->screen);
    top->screen = NULL;
}

static bool is_quit_pending(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGQUIT) == 1;
}

/* Polled by libeps while it waits: keys, resizing, signals. */
static int top_should_stop(void *user)
{
    struct top *top = user;

    for (int key = ERR; top->screen && (key = getch()) != ERR;) {
        if (key == 'q' || key == 'Q')
            top->quit = true;
        if (key == KEY_RESIZE && top->seen_ms)
            draw(top);
    }
    return top->quit || stopping_observer(&top->stopping) != 0 || is_quit_pending();
}

static int top_watch(struct top *top)
{
    int rc = screen_begin(top);

    if (rc) {
        const char *term = getenv("TERM");
        snprintf(top->error.text, sizeof top->error.text,
                 "the terminal '%.40s' (TERM) is not known here: --once prints one screen", term ? term : "");
        return rc;
    }
    while (!rc) {
        rc = top_observe(top);
        if (!rc) {
            draw(top);
            rc = eps_observer_wait(top->observer, PERIOD_MS, &top->error);
        }
    }
    screen_end(top);
    return rc;
}

static int print_once(struct top *top)
{
    struct winsize window;
    struct top_size size = {80, 24, top->utf8};
    int rc = top_observe(top);

    if (!rc)
        rc = eps_observer_wait(top->observer, PERIOD_MS, &top->error); /* rates need two samples */
    if (!rc)
        rc = top_observe(top);
    if (rc)
        return rc;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_row > 0)
        size = (struct top_size){window.ws_col, window.ws_row, top->utf8};
    char *text = top_draw(&top->view, &size);
    if (text)
        fputs(text, stdout);
    free(text);
    return 0;
}

/* Whether a screen can be redrawn; else why not. */
static int check_terminal(struct eps_error *error)
{
    if (isatty(STDIN_FILENO) && terminal_is(stdout))
        return 0;
    snprintf(error->text, sizeof error->text, "not a terminal: --once prints one screen");
    return -EDOM;
}

/* The exit status. A daemon that has ended meanwhile is no failure, unless one screen was asked for. */
static int top_end(struct top *top, const struct command *command, int rc, bool ended)
{
    struct ended run;

    if (top->quit)
        return 0;
    if (rc && stopping_observer(&top->stopping))
        return stopping_status(&top->stopping, 0);
    if (!ended || rc != -EIO)
        return rc ? arguments_fail(command, rc, top->error.text) : 0;
    printf("ended: %s\n", top->error.text);
    if (ended_read(&run, top->curve.out, -ENOENT))
        ended_print(stdout, &run);
    return 0;
}

int command_top(int argc, char **argv)
{
    const char *address = NULL;
    bool once = false;
    const struct argument arguments[] = {
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &address,
         "the daemon's name or directory, or its run's --out; default: your only daemon"},
        {"--once", NULL, ARGUMENT_FLAG, &once, "print one screen and exit; in a pipe it has 80 x 24 characters"},
    };
    const struct command command = {
        "eps top",
        "Shows a live run on the full screen, updated twice a second: step, loss and its curve since the run began; "
        "each "
        "worker's layer, memory against its plan, and transfer rates; host memory; a map of all layers. q or Ctrl-C "
        "quits; the run goes on. Of a run that has ended: its last step.",
        arguments, sizeof arguments / sizeof *arguments};
    struct top top = {.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0};
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    stopping_init(&top.stopping);
    sigemptyset(&top.quit_signal);
    sigaddset(&top.quit_signal, SIGQUIT);
    sigprocmask(SIG_BLOCK, &top.quit_signal, NULL);
    int rc = eps_observer_open(&top.observer, address, top_should_stop, &top, &top.error);
    const bool begun = !rc;
    struct ended ended;
    if (ended_read(&ended, address, rc)) {
        ended_print(stdout, &ended);
        return 0;
    }
    if (!rc && !once)
        rc = check_terminal(&top.error);
    if (!rc)
        rc = once ? print_once(&top) : top_watch(&top);
    eps_observer_close(top.observer);
    top_view_free(&top.view);
    sigprocmask(SIG_UNBLOCK, &top.quit_signal, NULL); /* a pending SIGQUIT ends the program here */
    return top_end(&top, &command, rc, begun && !once);
}
