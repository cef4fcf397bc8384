/* eps report: a picture of any metrics.jsonl, and a sentence where there can be none. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdarg.h>
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
    char path[400];

    ck_assert_int_eq(mkdir(processes_path(name), 0777), 0);
    snprintf(path, sizeof path, "%s/metrics.jsonl", processes_path(name));
    FILE *file = fopen(path, "w");
    ck_assert_int_ge(fputs(lines, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* Draws it, and says what eps did not like. */
static void check_drawn(const char *arguments)
{
    expect(print("eps report %s", arguments), 0);
}

static void check_svg(const char *name)
{
    char *text = processes_read(processes_path(name));
    const size_t n = strlen(text);

    ck_assert_msg(strncmp(text, "<?xml", 5) == 0, "%s: %.100s", name, text);
    ck_assert_msg(n > 10 && strstr(text + n - 10, "</svg>") != NULL, "%s has no end", name);
    free(text);
}

static const char whole[] =
    "{\"step\": 1, \"loss\": 5.5, \"tokens_per_s\": 100, \"eval_loss\": 5.6, \"memory\": {\"host\": "
    "{\"weights\": 4000000, \"first_moment\": 3000000}, \"device\": {\"stash\": 2000000}}}\n"
    "{\"step\": 2, \"loss\": 5.4, \"tokens_per_s\": 110}\n"
    "{\"step\": 3, \"loss\": 5.3, \"tokens_per_s\": 120, \"memory\": {\"host\": {\"weights\": "
    "4000000, \"late\": 1000}, \"device\": {\"stash\": 2000000}}}\n";

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST_IF(a_run_becomes_an_svg_in_its_directory_or_a_png, has_gnuplot())
{
    struct stat st;
    unsigned char head[8];

    put_run("whole", whole);
    check_drawn("whole");
    expect_file("out", "whole/report.svg: 3 steps\n");
    check_svg("whole/report.svg");
    expect_file("whole/report.svg", "first_moment", "held out", "late");
    check_drawn("whole --out picture.png");
    FILE *file = fopen(processes_path("picture.png"), "r");
    ck_assert_uint_eq(fread(head, 1, 8, file), 8);
    fclose(file);
    ck_assert_mem_eq(head, "\x89PNG\r\n\x1a\n", 8);
    ck_assert_int_eq(stat(processes_path("picture.png"), &st), 0);
    ck_assert_int_gt((int)st.st_size, 5000);
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;

    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

/* The first and the second colour, 4477aa and ee6677, as gnuplot writes them: the legend's box and the band on each
 * side, or the first alone. Nothing shows through anything. */
TEST_IF(areas_have_the_colours_of_their_legend, has_gnuplot())
{
    put_run("bands", "{\"step\": 1, \"memory\": {\"host\": {\"weights\": 4000000, \"first_moment\": 3000000}, "
                     "\"device\": {\"stash\": 2000000}}}\n");
    check_drawn("bands");
    char *svg = processes_read(processes_path("bands/report.svg"));
    ck_assert_uint_eq(count(svg, "<polygon fill = 'rgb( 68, 119, 170)'"), 4);
    ck_assert_uint_eq(count(svg, "<polygon fill = 'rgb(238, 102, 119)'"), 2);
    ck_assert_uint_eq(count(svg, "fill-opacity"), 0);
    free(svg);
}

TEST_IF(the_budget_is_a_line_or_a_word, has_gnuplot())
{
    static const char format[] = "{\"step\": 1, \"loss\": 3, \"memory\": {\"host\": {\"weights\": 5}, \"device\": "
                                 "{\"stash\": 2000000}, \"device_budget\": %s}}\n";
    char lines[300];

    snprintf(lines, sizeof lines, format, "3145728");
    put_run("near", lines);
    check_drawn("near");
    expect_file("near/report.svg", "budget 3.0 MiB<"); /* and, of the title's group, a line of two points */
    snprintf(lines, sizeof lines, format, "34359738368");
    put_run("far", lines);
    check_drawn("far");
    expect_file("far/report.svg", "(budget 32.0 GiB)");
    char *near = processes_read(processes_path("near/report.svg")), *at = strstr(near, "<title>budget 3.0 MiB");
    ck_assert_ptr_nonnull(at);
    ck_assert_msg(strstr(at, "stroke-width=\"2") != NULL, "%s", at);
    free(near);
}

/* A point of each curve, beside that of the legend. */
TEST_IF(a_single_step_is_seen, has_gnuplot())
{
    put_run("single", "{\"step\": 1, \"loss\": 3, \"tokens_per_s\": 5, \"eval_loss\": 2}\n");
    check_drawn("single");
    char *svg = processes_read(processes_path("single/report.svg"));
    ck_assert_uint_eq(count(svg, "<use xlink:href='#gpPt6' transform"), 5);
    free(svg);
    put_run("gaps", "");
    FILE *file = fopen(processes_path("gaps/metrics.jsonl"), "w");
    for (int i = 1; i <= 101; i++) /* every second loss is none: a line would show nothing */
        fprintf(file, i % 2 ? "{\"step\": %d, \"loss\": 3}\n" : "{\"step\": %d, \"loss\": null}\n", i);
    fclose(file);
    check_drawn("gaps");
    svg = processes_read(processes_path("gaps/report.svg"));
    ck_assert_uint_ge(count(svg, "<use xlink:href='#gpPt6' transform"), 51);
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
    char name[20], file[40];

    snprintf(name, sizeof name, "any-%d", _i);
    snprintf(file, sizeof file, "%s/report.svg", name);
    put_run(name, texts[_i]);
    check_drawn(name);
    check_svg(file);
}

TEST_IF(lines_that_are_none_are_counted, has_gnuplot())
{
    put_run("broken", "{\"step\": 1, \"loss\": 3}\n[]\n{\"step\": 2, \"loss\": 2}\n");
    check_drawn("broken");
    expect_file("out", "broken/report.svg: 2 steps; 1 line of metrics.jsonl was passed over\n");
    put_run("binary", "\x01\xff\n{\"step\": 1, \"loss\": 3}\n\n\n");
    check_drawn("binary");
    expect_file("out", "binary/report.svg: 1 step; 3 lines of metrics.jsonl were passed over\n");
}

TEST_IF(a_long_run_becomes_a_small_picture, has_gnuplot())
{
    struct stat st;
    char path[400];

    put_run("long", "");
    snprintf(path, sizeof path, "%s/metrics.jsonl", processes_path("long"));
    FILE *file = fopen(path, "w");
    for (int i = 1; i <= 50000; i++)
        fprintf(file, "{\"step\": %d, \"loss\": %g, \"tokens_per_s\": 10, \"memory\": {\"host\": {\"weights\": %d}}}\n",
                i, 5.0 / i, i);
    fclose(file);
    check_drawn("long");
    expect_file("out", "50000 steps");
    ck_assert_int_eq(stat(processes_path("long/report.svg"), &st), 0);
    ck_assert_int_lt((int)st.st_size, 300000); /* 3 curves of at most 1024 points */
}

/* Names that a shell, or gnuplot, would carry out. */
TEST_IF(a_run_may_be_called_anything, has_gnuplot())
{
    static const char *const names[] = {"a'; system('touch pwned') #", "b`touch pwned`", "c$(touch pwned)",
                                        "d\"; ! touch pwned", "e'.system('touch pwned').'"};
    char quoted[200];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        put_run(names[i], whole);
        char *at = quoted;
        *at++ = '\''; /* for the shell of processes_eps */
        for (const char *c = names[i]; *c; c++)
            at += sprintf(at, *c == '\'' ? "'\\''" : "%c", *c);
        strcpy(at, "'");
        check_drawn(quoted);
        ck_assert_int_ne(access(processes_path("pwned"), F_OK), 0);
    }
}

TEST_IF(what_cannot_be_drawn_is_refused_in_a_sentence, has_gnuplot())
{
    put_run("empty", "");
    put_run("fine", whole);
    expect_refusal(&(struct refusal){"eps report", 2, "RUN is needed", NULL});
    expect_refusal(
        &(struct refusal){"eps report fine --out x.pdf", 2, "--out x.pdf: a report is a .svg or a .png", NULL});
    expect_refusal(&(struct refusal){"eps report fine --out svg", 2, "--out svg", NULL});
    expect_refusal(&(struct refusal){"eps report no-such-run", 1, "no-such-run", NULL});
    expect_refusal(&(struct refusal){"eps report empty", 1, "empty/metrics.jsonl has no step yet", NULL});
    expect_refusal(&(struct refusal){"eps report fine --out no/such/directory.svg", 1,
                                     "no/such/directory.svg: No such file", NULL});
}

TEST(without_gnuplot_the_package_is_named)
{
    char *path = strdup(getenv("PATH"));

    put_run("undrawn", whole);
    ck_assert_int_eq(mkdir(processes_path("bin"), 0777), 0);
    setenv("PATH", processes_path("bin"), 1);
    expect_refusal(&(struct refusal){"eps report undrawn", 1, "apt-get install gnuplot-nox", NULL});
    setenv("PATH", path, 1);
    free(path);
    ck_assert_int_ne(access(processes_path("undrawn/report.svg"), F_OK), 0);
}

TEST_IF(a_full_disk_leaves_nothing, has_gnuplot())
{
    put_run("full", whole);
    ck_assert_int_eq(symlink("/dev/full", processes_path("full.svg")), 0);
    expect_refusal(&(struct refusal){"eps report full --out full.svg", 1, "full.svg: No space left", NULL});
}
