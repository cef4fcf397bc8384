/* eps report: a picture of any metrics.jsonl, and a sentence where there can be none. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* tools/setup.sh --tests installs gnuplot-nox; without it only its absence is tested. */
static bool has_gnuplot(void)
{
    return system("gnuplot --version >/dev/null 2>&1") == 0;
}

/* A run of this name with these lines. */
static void put_run(const char *name, const char *lines)
{
    ck_assert_int_eq(mkdir(name, 0777), 0);
    processes_put_text(print("%s/metrics.jsonl", name), lines);
}

/* The report of a run with these lines; the caller's. */
static char *drawn(const char *name, const char *lines)
{
    put_run(name, lines);
    expect(print("eps report %s", name), 0);
    return processes_read(print("%s/report.svg", name));
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;

    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

static const char whole[] =
    "{\"step\": 1, \"loss\": 5.5, \"tokens_per_s\": 100, \"eval_loss\": 5.6, \"memory\": {\"host\": "
    "{\"weights\": 4000000, \"first_moment\": 3000000}, \"device\": {\"stash\": 2000000}}}\n"
    "{\"step\": 2, \"loss\": 5.4, \"tokens_per_s\": 110}\n"
    "{\"step\": 3, \"loss\": 5.3, \"tokens_per_s\": 120, \"memory\": {\"host\": {\"weights\": "
    "4000000, \"late\": 1000}, \"device\": {\"stash\": 2000000}}}\n";

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST_IF(a_run_of_images_is_drawn_by_images, has_gnuplot())
{
    char *svg = drawn("images", "{\"step\": 1, \"loss\": 3, \"tokens_per_s\": 4096, \"pixels\": 1024}\n"
                                "{\"step\": 2, \"loss\": 2, \"tokens_per_s\": 4096, \"pixels\": 1024}\n");

    ck_assert_holds(svg, "nats per image");
    ck_assert_uint_eq(count(svg, "token"), 0);
    free(svg);
}

TEST_IF(a_run_becomes_an_svg_in_its_directory_or_a_png, has_gnuplot())
{
    char *svg = drawn("whole", whole);
    const size_t n = strlen(svg);

    ck_assert_str_eq(command_out(), "whole/report.svg: 3 steps\n");
    ck_assert_msg(strncmp(svg, "<?xml", 5) == 0 && n > 10 && strstr(svg + n - 10, "</svg>"), "%s", svg);
    ck_assert_holds(svg, "first_moment", "held out", "late");
    free(svg);
    expect("eps report whole --out picture.png", 0);
    char *png = processes_read("picture.png");
    ck_assert_mem_eq(png, "\x89PNG\r\n\x1a\n", 8);
    free(png);
    expect("find picture.png -size +5000c", 0, "picture.png");
}

/* The first and the second colour, 4477aa and ee6677, as gnuplot writes them: the legend's box and the band on each
 * side, or the first alone. Nothing shows through anything. */
TEST_IF(areas_have_the_colours_of_their_legend, has_gnuplot())
{
    char *svg = drawn("bands", "{\"step\": 1, \"memory\": {\"host\": {\"weights\": 4000000, \"first_moment\": "
                               "3000000}, \"device\": {\"stash\": 2000000}}}\n");

    ck_assert_uint_eq(count(svg, "<polygon fill = 'rgb( 68, 119, 170)'"), 4);
    ck_assert_uint_eq(count(svg, "<polygon fill = 'rgb(238, 102, 119)'"), 2);
    ck_assert_uint_eq(count(svg, "fill-opacity"), 0);
    free(svg);
}

/* And a point of each curve of a single step, beside that of the legend. */
TEST_IF(the_budget_is_a_line_or_a_word_and_what_stands_alone_a_point, has_gnuplot())
{
    static char gaps[8192]; /* every second loss is none: a line would show nothing */
    const char *line = "{\"step\": 1, \"loss\": 3, \"memory\": {\"host\": {\"weights\": 5}, \"device\": "
                       "{\"stash\": 2000000}, \"device_budget\": ";
    char *svg = drawn("near", print("%s3145728}}\n", line));

    ck_assert_holds(svg, "<title>budget 3.0 MiB"); /* and, of the title's group, a line of two points */
    ck_assert_holds(strstr(svg, "<title>budget 3.0 MiB"), "stroke-width=\"2");
    free(svg), svg = drawn("far", print("%s34359738368}}\n", line));
    ck_assert_holds(svg, "(budget 32.0 GiB)");
    free(svg), svg = drawn("single", "{\"step\": 1, \"loss\": 3, \"tokens_per_s\": 5, \"eval_loss\": 2}\n");
    ck_assert_uint_eq(count(svg, "<use xlink:href='#gpPt6' transform"), 4);
    for (int i = 1; i <= 99; i++)
        strcat(gaps, print("{\"step\": %d, \"loss\": %s}\n", i, i % 2 ? "3" : "null"));
    free(svg), svg = drawn("gaps", gaps);
    ck_assert_uint_ge(count(svg, "<use xlink:href='#gpPt6' transform"), 50);
    free(svg);
}

/* What a step takes varies with the machine's load: it is no panel. Of the losses the first is 8: gnuplot alone would
 * round the range to -1 and 9. */
TEST_IF(losses_have_their_own_range_and_the_lowest_is_marked, has_gnuplot())
{
    char *svg = drawn("ranged", "{\"step\": 1, \"loss\": 8, \"eval_loss_before\": 7.9, \"tokens_per_s\": 5}\n"
                                "{\"step\": 2, \"loss\": 0.1, \"eval_loss\": 0.5, \"tokens_per_s\": 5}\n"
                                "{\"step\": 3, \"loss\": 0.05, \"eval_loss\": 0.6, \"tokens_per_s\": 5}\n");

    ck_assert_holds(svg, "nats per token", "<text> 8</text>", "best: step 2");
    ck_assert_uint_eq(count(svg, "<text>-1</text>"), 0);
    ck_assert_uint_eq(count(svg, "tokens/s"), 0);
    free(svg);
}

/* By what a run measures: preferences their rewards, rows with labels their accuracy, or a correlation. */
TEST_IF(a_task_has_its_own_panels, has_gnuplot())
{
    char *svg = drawn("preferred", "{\"step\": 1, \"loss\": 0.7, \"rewards/chosen\": 0.1, \"rewards/rejected\": -0.1, "
                                   "\"rewards/margins\": 0.2, \"rewards/accuracies\": 0.5, \"logps/chosen\": -9}\n"
                                   "{\"step\": 2, \"loss\": 0.6, \"rewards/chosen\": 0.2, \"eval_loss\": 0.5, "
                                   "\"eval_rewards/margins\": 0.3}\n");

    ck_assert_holds(svg, "loss of preferences", ">reward<", "<title>chosen<", "<title>rejected<", "<title>margin<");
    ck_assert_holds(svg, "<title>margin, held out<", ">accuracy<");
    free(svg), svg = drawn("classified", "{\"step\": 1, \"loss\": 0.7}\n{\"step\": 2, \"loss\": 0.6, \"eval_loss\": "
                                         "0.5, \"eval_accuracy\": 0.9, \"eval_f1\": 0.8}\n");
    ck_assert_holds(svg, "nats per row", ">accuracy<", "<title>accuracy, held out<", "<title>F1, held out<");
    ck_assert_uint_eq(count(svg, ">reward<"), 0);
    free(svg), svg = drawn("regressed", "{\"step\": 1, \"loss\": 0.7, \"eval_loss\": 0.5, \"eval_pearson\": 0.9}\n");
    ck_assert_holds(svg, "squared error", ">correlation<");
    free(svg);
}

/* Above the single steps in grey. */
TEST_IF(many_steps_are_drawn_as_a_running_mean, has_gnuplot())
{
    static char lines[8192];

    for (int i = 1; i <= 100; i++)
        strcat(lines, print("{\"step\": %d, \"loss\": %d}\n", i, i % 2));
    char *svg = drawn("noisy", lines);
    ck_assert_holds(svg, "rgb(204, 204, 204)", "<title>training, running mean<");
    free(svg);
}

TEST_EACH(any_file_with_a_step_can_be_drawn, has_gnuplot() ? 9 : 0)
{
    static const char *const texts[] = {
        "{\"step\": 7}\n",                                                         /* nothing known of it */
        "{\"step\": 1, \"loss\": null}\n{\"step\": 2, \"loss\": null}\n",          /* never a number */
        "{\"step\": 1, \"loss\": 3, \"tokens_per_s\": 5}\n",                       /* one point */
        "{\"step\": 1, \"loss\": 3}\n{\"step\": 2, \"loss\": 3}\n",                /* always the same */
        "{\"step\": 1, \"loss\": 3}\n{\"step\": 2, \"loss\": null}\n{\"step\": 3", /* a gap, and half a line */
        "{\"step\": 9007199254740993, \"loss\": 1e308}\n",
        "{\"step\": 1, \"loss\": null}\n{\"step\": 9223372036854775807, \"loss\": 1}\n",
        "{\"step\": 1, \"memory\": {\"host\": {}}}\n",
        "{\"step\": 1, \"memory\": {\"host\": {\"'`x`\\n\\\"\": 5}, \"device\": {\"y\": 3}}}\n",
    };
    char *svg = drawn(print("any-%d", _i), texts[_i]);

    ck_assert_holds(svg, "<?xml", "</svg>");
    free(svg);
}

TEST_IF(lines_that_are_none_are_counted, has_gnuplot())
{
    free(drawn("broken", "{\"step\": 1, \"loss\": 3}\n[]\n{\"step\": 2, \"loss\": 2}\n"));
    ck_assert_str_eq(command_out(), "broken/report.svg: 2 steps; 1 line of metrics.jsonl was passed over\n");
    free(drawn("binary", "\x01\xff\n{\"step\": 1, \"loss\": 3}\n\n\n"));
    ck_assert_str_eq(command_out(), "binary/report.svg: 1 step; 3 lines of metrics.jsonl were passed over\n");
}

/* 3 curves of at most 1024 points. */
TEST_IF(a_long_run_becomes_a_small_picture, has_gnuplot())
{
    put_run("long", "");
    expect("seq 50000 | awk '{printf \"{\\\"step\\\": %d, \\\"loss\\\": %g, \\\"tokens_per_s\\\": 10, \\\"memory\\\": "
           "{\\\"host\\\": {\\\"weights\\\": %d}}}\\n\", $1, 5 / $1, $1}' >long/metrics.jsonl",
           0);
    expect("eps report long", 0, "50000 steps");
    expect("find long/report.svg -size -300000c", 0, "report.svg");
}

/* Names that a shell, or gnuplot, would carry out. */
TEST_IF(a_run_may_be_called_anything, has_gnuplot())
{
    static const char *const names[] = {"a'; system('touch pwned') #", "b`touch pwned`", "c$(touch pwned)",
                                        "d\"; ! touch pwned", "e'.system('touch pwned').'"};
    char quoted[200];

    for (int i = 0; i < COUNT(names); i++) {
        put_run(names[i], whole);
        expect(print("eps report %s", eps_quote(quoted, sizeof quoted, names[i])), 0);
        ck_assert_int_ne(access("pwned", F_OK), 0);
    }
}

/* Held-out loss, training loss and speed; a legend's word in each panel that has its curve. Runs of one name are called
 * by their paths. */
TEST_IF(runs_are_drawn_beside_each_other, has_gnuplot())
{
    put_run("adam", whole);
    put_run("never-evaluated", "{\"step\": 4, \"loss\": 3, \"tokens_per_s\": 5}\n{\"step\": 9, \"loss\": 2}\n");
    ck_assert_int_eq(mkdir("deep", 0777), 0);
    put_run("deep/adam", whole);
    expect("eps report adam/ never-evaluated --out both.svg", 0, "both.svg: 2 runs\n");
    char *svg = processes_read("both.svg");
    ck_assert_uint_eq(count(svg, "<title>adam"), 3);
    ck_assert_uint_eq(count(svg, "<title>never-evaluated"), 2);
    free(svg);
    expect("eps report adam// never-evaluated deep/adam --out all.svg", 0, "all.svg: 3 runs\n");
    svg = processes_read("all.svg");
    ck_assert_uint_eq(count(svg, "<title>adam//</title>"), 3);
    ck_assert_uint_eq(count(svg, "<title>deep/adam</title>"), 3);
    free(svg);
}

TEST_IF(what_cannot_be_drawn_is_refused_in_a_sentence, has_gnuplot())
{
    static const struct refusal wrongs[] = {
        {"eps report fine --out x.pdf", 2, "--out x.pdf: a report is a .svg or a .png", NULL},
        {"eps report fine --out svg", 2, "--out svg", NULL},
        {"eps report no-such-run", 1, "no-such-run", NULL},
        {"eps report $(yes fine | head -n 15) --out x.svg", 2, "more than 14 runs", NULL},
        {"eps report fine fine", 2, "--out is needed for several runs", NULL},
        {"eps report fine empty --out x.svg", 1, "empty/metrics.jsonl has no step yet", NULL},
        {"eps report empty", 1, "empty/metrics.jsonl has no step yet", NULL},
        {"eps report fine --out no/such/directory.svg", 1, "no/such/directory.svg: No such file", NULL},
    };

    put_run("empty", "");
    put_run("fine", whole);
    for (int i = 0; i < COUNT(wrongs); i++)
        expect_refusal(&wrongs[i]);
}

TEST_IF(a_link_that_another_has_planted_is_not_followed, has_gnuplot() && geteuid() == 0)
{
    static const struct refusal wrongs[] = {
        {"eps report linked --out full.svg", 1, "full.svg: it is a link", "another user's"},
        {"eps report linked", 1, "linked/report.svg: it is a link", "another user's"},
    };

    put_run("linked", whole);
    ck_assert(symlink("mine", "full.svg") == 0 && lchown("full.svg", 4321, 4321) == 0);
    ck_assert(symlink("../mine", "linked/report.svg") == 0 && lchown("linked/report.svg", 4321, 4321) == 0);
    for (int i = 0; i < COUNT(wrongs); i++)
        expect_refusal(&wrongs[i]);
    ck_assert_int_ne(access("mine", F_OK), 0);
}

TEST_IF(a_link_of_ones_own_is_followed, has_gnuplot())
{
    put_run("followed", whole);
    ck_assert_int_eq(symlink("../picture", "followed/report.svg"), 0);
    expect("eps report followed", 0, "followed/report.svg: 3 steps");
    ck_assert_int_eq(symlink("/dev/stdout", "shown.svg"), 0);
    expect("eps report followed --out shown.svg | (sleep 0.2; cat)", 0, "<?xml");
    expect("echo before >all; eps report followed --out shown.svg >>all; cat all", 0, "before\n<?xml",
           "</svg>\n\nshown.svg: 3 steps");
    expect("head -c 5 picture", 0, "<?xml");
}

static bool can_fill_a_disk(void)
{
    return has_gnuplot() && system("unshare -rm bash -c 'mount --bind /dev/full /dev/null' 2>/dev/null") == 0;
}

TEST_IF(a_full_disk_is_said, can_fill_a_disk())
{
    put_run("filled", whole);
    expect_refusal(
        &(struct refusal){"touch filled.svg; unshare -rm bash -c 'mount --bind /dev/full filled.svg; eps report "
                          "filled --out filled.svg'",
                          1, "filled.svg: No space left", NULL});
}

/* Gnuplot repeats the script, points at the fault, and ends with where and what it is. */
TEST(what_gnuplot_says_last_is_the_reason)
{
    processes_put_text("gnuplot",
                       "#!/bin/sh\nprintf 'plot x y\\n       ^\\n\"-\", line 7: no \\\\x\\n\\n' >&2\nexit 1\n");
    ck_assert_int_eq(chmod("gnuplot", 0700), 0);
    put_run("faulty", whole);
    setenv("PATH", print("%s:%s", processes_directory(), getenv("PATH")), 1);
    expect_refusal(&(struct refusal){"eps report faulty", 1, "gnuplot failed: \"-\", line 7: no \\x", NULL});
}

TEST(without_gnuplot_the_package_is_named)
{
    put_run("undrawn", whole);
    setenv("PATH", processes_path("absent"), 1);
    expect_refusal(&(struct refusal){"eps report undrawn", 1, "apt-get install gnuplot-nox", NULL});
    ck_assert_int_ne(access("undrawn/report.svg", F_OK), 0);
}
