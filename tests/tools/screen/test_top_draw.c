/* The screen of eps top, drawn by hand beside it. */
#include "tests/kit/test.h"
#include "tools/screen/progress.h"
#include "tools/screen/top_draw.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct top_worker workers[30];
static struct top_category categories[] = {{"weights", 4096, 4096}, {"first_moment", 4096, 4096}, {"inbox", 512, 1024}};
static struct eps_unit units[4096];
static struct series curve;

/* Two workers, six layers after step 11, of which the topmost is updated, and losses that fall. */
static struct top_view a_view(void)
{
    struct top_view view = {.name = "lab", .state = "training", .model = "gpt2 2x8", .loss = 1, .curve = &curve};
    struct top_worker worker = {
        .id = 1, .device = "cpu", .phase = "backward", .unit = "h.1", .pid = 4711, .host = "node-7"};

    curve = (struct series){.n = 0};
    for (int i = 1; i <= 8; i++)
        series_add(&curve, i, 9 - i);
    view.step = 11, view.n_steps = 100, view.saved_step = UINT64_MAX, view.n_parameters = 1100000;
    view.tokens = 1100, view.tokens_per_s = 250, view.step_ms = 400, view.n_threads = 14;
    view.host = (struct top_memory){
        .current = 8704, .peak = 8704, .planned = 9216, .categories = categories, .n_categories = 3};
    view.workers = workers, view.n_workers = 2, view.units = units, view.n_units = 6;
    worker.visit = 2, worker.n_visits = 17, worker.part = 4, worker.n_parts = 2;
    worker.memory = (struct top_memory){.budget = 1024, .current = 512, .peak = 512, .planned = 768};
    worker.down_per_s = 2048, worker.up_per_s = 1000;
    for (int i = 0; i < COUNT(workers); i++)
        workers[i] = worker;
    workers[1].id = 2, workers[1].n_visits = 0, workers[1].down_per_s = workers[1].up_per_s = NAN;
    strcpy(workers[1].phase, "idle");
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

/* By hand: the curve has seven lines, so a loss that falls by one falls by 7.9 of their 56 levels. A bar has a quarter
 * of 80 columns, so 18 places: of 1,024 B the use of 512 is 9 of them, and the plan's 768 are the 14th; of the host's
 * plan, which has no budget, 8,704 of 9,216 are 17. 11 of 100 steps are 3 of 24 places; 89 steps of 400 ms are 35.6
 * s. */
TEST(a_screen_holds_everything)
{
    const struct top_view view = a_view();
    char *text = drawn(&view, 80, 24, false);

    ck_assert_str_eq(text, "eps top  lab  training  gpt2 2x8\n"
                           "step 11 of 100  [###                     ]  36 s left\n"
                           "loss 1.0000  250 tokens/s  400 ms a step  1100 tokens\n"
                           "       8 | #\n"
                           "         | ##\n"
                           "         | ###\n"
                           "         | ####_\n"
                           "         | #####_\n"
                           "         | ######_\n"
                           "       1 | #######_\n"
                           "           1      8\n"
                           "worker 1  cpu  backward of h.1  layer 3 of 17  part 5  on node-7, pid 4711\n"
                           "  [#########    |    ]  512 B, plan 768 B, budget 1.0 KiB\n"
                           "  weights in 2.0 KiB/s  gradients out 1000 B/s\n"
                           "worker 2  cuda:1 NVIDIA H200  idle  on node-7, pid 4711\n"
                           "  [#########    |    ]  512 B, plan 768 B, budget 1.0 KiB\n"
                           "  weights in -/s  gradients out -/s\n"
                           "host  optimizer on 14 threads\n"
                           "  [#################|]  8.5 KiB, plan 9.0 KiB\n"
                           "    weights           4.0 KiB of    4.0 KiB  [#################|]\n"
                           "    first_moment      4.0 KiB of    4.0 KiB  [#################|]\n"
                           "    inbox               512 B of    1.0 KiB  [##  |             ]\n"
                           "layers 6 after step 11, + after 12  . waits  > transfer  f gradient  u update\n"
                           "  .f>.u+\n");
}

TEST(a_small_screen_has_categories_in_a_line_and_a_curve_in_one_or_none)
{
    struct top_view view = a_view();

    view.n_workers = 1;
    char *text = drawn(&view, 60, 12, false);
    ck_assert_holds(text, "  weights 4.0 KiB  first_moment 4.0 KiB  inbox 512 B\n", "\n  .f>.u+\n");
    ck_assert_ptr_null(strstr(text, "\n         | "));
    ck_assert_holds(drawn(&view, 60, 14, false), "\n         | ##===___\n", "\n  .f>.u+\n");
}

TEST(where_utf8_is_at_home_a_curve_has_blocks)
{
    const struct top_view view = a_view();

    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        TEST_SKIP("there is no locale C.UTF-8");
    char *text = drawn(&view, 200, 24, true);
    ck_assert_holds(text, "       8 | █\n", "         | ████▁\n", "       1 | ███████▁\n",
                    "plan 768 B, budget 1.0 KiB  weights in 2.0 KiB/s  gradients out 1000 B/s\n");
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

/* 4096 layers in rows of 78: the first mark stands for one that is folded and those beside it, and that of layer 20 for
 * one that is updated; what is left of the screen is used, and nothing is left out. */
TEST(many_layers_share_a_mark)
{
    struct top_view view = a_view();
    size_t n_marks = 0, n_each = 0;

    view.n_units = sizeof units / sizeof *units;
    units[4].state = EPS_UNIT_WAITING, units[20].state = EPS_UNIT_UPDATING;
    for (size_t i = view.n_units / 2; i < view.n_units; i++)
        units[i].version = 12;
    char *text = drawn(&view, 80, 24, false), *map = strstr(text, "\nlayers 4096 (");
    ck_assert_msg(map != NULL, "%s", text);
    ck_assert_int_eq(sscanf(strchr(map, '('), "(%zu a mark)", &n_each), 1);
    map = strchr(map + 1, '\n') + 1;
    ck_assert(map[2] == 'f' && map[2 + 20 / n_each] == 'u');
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
    ck_assert_msg(!strstr(text, "more") && strstr(text, "layers 6"), "%s", text);
    view.n_workers = 30;
    text = drawn(&view, 80, 24, false);
    ck_assert_holds(text, " workers more\nhost ", "\n  .f>.u+\n");
}

/* The longest name that a state has. */
TEST(a_state_is_named_in_full)
{
    struct top_view view = a_view();

    snprintf(view.state, sizeof view.state, "%s", "waiting for a worker");
    ck_assert_holds(drawn(&view, 80, 24, false), "  waiting for a worker  gpt2 2x8");
}

TEST(before_anything_is_known_nothing_is_claimed)
{
    struct top_view view = {.name = "lab", .state = "idle", .loss = NAN, .tokens_per_s = NAN, .step_ms = NAN};
    char *text = drawn(&view, 80, 24, false);

    ck_assert_str_eq(text, "eps top  lab  idle\nstep -\nloss -\nno workers\nhost  optimizer on 0 threads\n"
                           "  [                  ]  0 B\n");
}
