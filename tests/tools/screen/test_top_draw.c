/* The screen of eps top, drawn by hand beside it. */
#include "tests/kit/test.h"
#include "tools/screen/progress.h"
#include "tools/screen/top_draw.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct top_worker workers[30];
static struct top_category categories[] = {{"weights", 4096}, {"first_moment", 4096}, {"inbox", 512}};
static struct eps_unit units[4096];

/* Two workers, six units at version 11, of which the topmost is updated, and losses that fall. */
static struct top_view a_view(void)
{
    struct top_view view = {.name = "lab",
                            .state = "training",
                            .model = "gpt2 2x8",
                            .losses = {8, 7, 6, 5, 4, 3, 2, 1}};
    struct top_worker worker = {
        .id = 2, .device = "cpu", .phase = "backward", .unit = "h.1", .pid = 4711, .host = "node-7"};

    view.step = 11, view.n_steps = 100, view.saved_step = UINT64_MAX, view.n_losses = 8;
    view.tokens = 1100, view.tokens_per_s = 250, view.step_ms = 400, view.n_threads = 14;
    view.host_current = 8704, view.host_peak = 9216, view.categories = categories, view.n_categories = 3;
    view.workers = workers, view.n_workers = 2, view.units = units, view.n_units = 6;
    worker.visit = 2, worker.n_visits = 17, worker.part = 4, worker.n_parts = 2;
    worker.budget = 1024, worker.current = 512, worker.peak = 768, worker.down_per_s = 2048, worker.up_per_s = 1024;
    for (int i = 0; i < COUNT(workers); i++)
        workers[i] = worker;
    workers[1].id = 3, workers[1].n_visits = 0, workers[1].down_per_s = workers[1].up_per_s = NAN;
    strcpy(workers[1].phase, "resting");
    strcpy(workers[1].device, "cuda:1");
    strcpy(workers[1].model, "NVIDIA H200");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        units[i] = (struct eps_unit){EPS_UNIT_WAITING, 11};
    units[1].state = EPS_UNIT_FOLDING;
    units[2].state = EPS_UNIT_RELAYING;
    units[4].state = EPS_UNIT_UPDATING;
    units[5].version = 12;
    return view;
}

/* Until the next one. */
static char *drawn(const struct top_view *view, unsigned width, unsigned height, bool utf8)
{
    static char *text;

    free(text);
    text = top_draw(view, &(struct top_size){width, height, utf8});
    ck_assert_ptr_nonnull(text);
    return text;
}

/* By hand: numbers take 63 columns, so a bar has 15 places: 8 are half of them, and three quarters are the 11th; 89
 * steps of 400 ms are 35.6 s. */
TEST(a_screen_holds_everything)
{
    const struct top_view view = a_view();
    char *text = drawn(&view, 80, 24, false);

    ck_assert_str_eq(text, "eps top  lab  training  step 11/100  gpt2 2x8\n"
                           "loss 1.0000  #*+=-,._\n"
                           "250 tokens/s  400 ms a step  36 s left  1100 tokens\n"
                           "worker 2 cpu  backward  h.1  3/17  part 5 (of 2 here)  on node-7, pid 4711\n"
                           "  [########  |    ]   0.50 KiB of    1.0 KiB  down    2.0 KiB/s  up    1.0 KiB/s\n"
                           "worker 3 cuda:1 NVIDIA H200  resting  on node-7, pid 4711\n"
                           "  [########  |    ]   0.50 KiB of    1.0 KiB  down          -/s  up          -/s\n"
                           "host  8.5 KiB, at most 9.0 KiB  optimizer on 14 threads\n"
                           "  weights 4.0 KiB  first_moment 4.0 KiB  inbox 512 B\n"
                           "units 6 at 11, + at 12  . waits  > relayed  f folded  u updated\n"
                           "  .f>.u+\n");
}

TEST(a_narrow_screen_gives_rates_a_line_and_where_utf8_is_at_home_losses_are_blocks)
{
    const struct top_view view = a_view();

    char *text = drawn(&view, 60, 15, false); /* a narrow screen gives rates a line */
    ck_assert_holds(text, "|        ]   0.50 KiB of    1.0 KiB\n  down    2.0 KiB/s  up    1.0 KiB/s\n",
                    "\n  .f>.u+\n");
    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        TEST_SKIP("there is no locale C.UTF-8");
    text = drawn(&view, 80, 24, true);
    ck_assert_holds(text, "\nloss 1.0000  █▇▆▅▄▃▂▁\n");
    text = drawn(&view, 17, 24, true); /* cut between two characters */
    ck_assert_holds(text, "\nloss 1.0000  █▆▃▁\n");
    setlocale(LC_CTYPE, "C");
}

static void check_fits(const char *text, unsigned width, unsigned height)
{
    unsigned n = 0;

    for (const char *at = text; *at; at += strcspn(at, "\n") + 1, n++)
        ck_assert_msg(strcspn(at, "\n") <= width, "%u x %u: %s", width, height, text);
    ck_assert_msg(n <= height, "%u x %u: %u lines", width, height, n);
}

TEST(no_size_is_overrun)
{
    struct top_view view = a_view();

    view.n_workers = sizeof workers / sizeof *workers;
    view.n_units = sizeof units / sizeof *units;
    strcpy(view.trouble, "no space");
    for (unsigned width = 1; width < 250; width += 7)
        for (unsigned height = 1; height < 70; height += 3) {
            char *text = drawn(&view, width, height, false);
            check_fits(text, width, height);
        }
    char *text = drawn(&view, 5000, 5000, false);
    check_fits(text, 5000, 5000);
}

/* 4096 units in rows of 78: the first mark stands for one that is folded and those beside it, the second for one
 * that is updated; what is left of the screen is used, and nothing is left out. */
TEST(many_units_share_a_mark)
{
    struct top_view view = a_view();
    size_t n_marks = 0, n_each = 0;

    view.n_units = sizeof units / sizeof *units;
    for (size_t i = view.n_units / 2; i < view.n_units; i++)
        units[i].version = 12;
    char *text = drawn(&view, 80, 24, false), *map = strstr(text, "\nunits 4096 at 11, ");
    ck_assert_msg(map != NULL, "%s", text);
    ck_assert_int_eq(sscanf(strchr(map, '('), "(%zu a mark)", &n_each), 1);
    map = strchr(map + 1, '\n') + 1;
    ck_assert_int_eq(strncmp(map, "  fu", 4), 0);
    for (const char *at = map; *at; at++)
        n_marks += strchr(".-+fu", *at) != NULL;
    ck_assert_uint_eq(n_marks, (view.n_units + n_each - 1) / n_each);
    ck_assert_uint_gt(n_marks * (n_each - 1), view.n_units / 2); /* not coarser than it must be */
    ck_assert_int_eq(text[strlen(text) - 2], '+');
    check_fits(text, 80, 24);
}

TEST(many_workers_have_a_line_each_or_are_counted)
{
    struct top_view view = a_view();

    view.n_workers = 12;
    char *text = drawn(&view, 80, 24, false);
    ck_assert_msg(!strstr(text, "more") && strstr(text, "units 6"), "%s", text);
    view.n_workers = 30;
    text = drawn(&view, 80, 24, false);
    ck_assert_holds(text, "\n... 14 workers more\nhost ", "\n  .f>.u+\n");
}

/* The longest name that a state has. */
TEST(a_state_is_named_in_full)
{
    struct top_view view = a_view();

    snprintf(view.state, sizeof view.state, "%s", "waiting for a worker");
    ck_assert_holds(drawn(&view, 80, 24, false), "  waiting for a worker  step ");
}

TEST(before_anything_is_known_nothing_is_claimed)
{
    struct top_view view = {.name = "lab", .state = "idle", .tokens_per_s = NAN, .step_ms = NAN};
    char *text = drawn(&view, 80, 24, false);

    ck_assert_str_eq(
        text, "eps top  lab  idle\nloss -\n- tokens/s\nno workers\nhost  0 B, at most 0 B  optimizer on 0 threads\n");
    view.losses[0] = view.losses[1] = 3;
    view.losses[2] = INFINITY;
    view.n_losses = 3;
    text = drawn(&view, 80, 24, false);
    ck_assert_holds(text, "\nloss inf  __#\n");
}
