/* The progress line, against a terminal of the test's own: what it shows is read from the other end. */
#include "tests/kit/test.h"

#include "tools/screen/progress.h"

#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int master;
static FILE *out;
static char shown[65536];
static struct progress progress;
static struct eps_step step;

static void setup(void)
{
    int slave;

    ck_assert_int_eq(openpty(&master, &slave, NULL, NULL, &(struct winsize){.ws_row = 24, .ws_col = 60}), 0);
    out = fdopen(slave, "w");
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
}

static void teardown(void)
{
    fclose(out);
    close(master);
}

SUITE_FIXTURE(setup, teardown)

/* What has come to the terminal since the last call; a mark of our own says where it ends. */
static const char *look(void)
{
    size_t n = 0;

    fputs("\006", out);
    fflush(out);
    while (n == 0 || shown[n - 1] != '\006') {
        ssize_t got = read(master, shown + n, sizeof shown - 1 - n);
        ck_assert_int_gt(got, 0);
        n += (size_t)got;
    }
    shown[n - 1] = 0;
    return shown;
}

static struct eps_step step_of(uint64_t number, uint64_t n_steps)
{
    return (struct eps_step){.step = number,
                             .n_steps = n_steps,
                             .loss = 2.34567,
                             .tokens_per_s = 12345.4,
                             .step_ms = 1000,
                             .device_peak_bytes = 120 << 20,
                             .device_budget_bytes = 2ull << 30};
}

static void resize(unsigned short columns)
{
    ck_assert_int_eq(ioctl(master, TIOCSWINSZ, &(struct winsize){.ws_row = 24, .ws_col = columns}), 0);
}

/* A terminal of so many columns, on which a run is at this step. */
static void begin(unsigned short columns, uint64_t number, uint64_t n_steps)
{
    resize(columns);
    progress_init(&progress, out);
    step = step_of(number, n_steps);
}

static const char *shown_for(uint64_t number)
{
    step.step = number;
    progress_step(&progress, &step);
    return look();
}

TEST(a_line_says_where_the_run_is)
{
    char line[200];

    progress = (struct progress){.mean_ms = 1000, .saved = UINT64_MAX, .step = step_of(120, 200)};
    progress_format(line, sizeof line, &progress);
    ck_assert_str_eq(line, "step 120/200  loss 2.3457  12345 tokens/s  1 min 20 s left  device 120.0 MiB of 2.0 GiB");
    progress.saved = 100, progress.trouble = true;
    progress_format(line, sizeof line, &progress);
    ck_assert_str_eq(line, "step 120/200  loss 2.3457  NOT SAVED  12345 tokens/s  1 min 20 s left  device 120.0 MiB of "
                           "2.0 GiB  saved 100");
    progress_format(line, 9, &progress);
    ck_assert_str_eq(line, "step 120");
    progress.step.skipped = true;
    progress_format(line, 40, &progress);
    ck_assert_str_eq(line, "step 120/200  loss 2.3457  skipped  NOT");
    progress = (struct progress){.mean_ms = 1000, .saved = UINT64_MAX, .step = step_of(120, 200)};
    progress.step.pixels = 1000;
    progress_format(line, sizeof line, &progress);
    ck_assert_str_eq(line, "step 120/200  loss 2.3457  12 images/s  1 min 20 s left  device 120.0 MiB of 2.0 GiB");
}

TEST(a_line_is_cut_one_short_of_the_width_and_erases_what_it_leaves)
{
    begin(60, 1, 200);
    ck_assert_str_eq(shown_for(1), "\rstep 1/200  loss 2.3457  12345 tokens/s  3 min 19 s left  d\033[K");
    ck_assert_uint_eq(progress.n_columns, 59);
    resize(20); /* the old line is wrapped, so a new one is begun */
    ck_assert_str_eq(shown_for(200), "\r\nstep 200/200  loss \033[K");
    resize(15);
    progress_clear(&progress);
    ck_assert_str_eq(look(), "\r\033[K");
    progress_clear(&progress);
    ck_assert_str_eq(look(), "");
}

TEST(a_terminal_sees_a_line_at_once_then_after_a_tenth_of_a_second_and_no_line_twice)
{
    begin(60, 1, 7);
    ck_assert_holds(shown_for(1), "step 1/7");
    ck_assert_str_eq(shown_for(2), "");
    progress.shown_ns -= 100000000;
    ck_assert_holds(shown_for(2), "step 2/7");
    ck_assert_holds(shown_for(7), "step 7/7");
    ck_assert_str_eq(shown_for(7), "");
    progress_finish(&progress);
    ck_assert_str_eq(look(), "\r\n"); /* the terminal's own \r */
}

TEST(trouble_stays_above_the_line_and_in_it_until_something_is_saved)
{
    begin(200, 7, 7);
    shown_for(7);
    progress_trouble(&progress, "step 5: No space left on device");
    ck_assert_holds(look(), "\r\033[K\033[31mnot saved: step 5: No space left on device\033[0m\r\n",
                    "\rstep 7/7  loss 2.3457  \033[31mNOT SAVED\033[0m  12345 tokens/s");
    progress_saved(&progress, 7, "runs/x/step-7");
    const char *said = look();
    ck_assert_ptr_null(strstr(said, "NOT SAVED"));
    ck_assert_holds(said, "2.0 GiB  saved 7\033[K");
    setenv("NO_COLOR", "1", 1);
    begin(200, 7, 7);
    shown_for(7);
    progress_trouble(&progress, "full");
    ck_assert_holds(look(), "NOT SAVED");
    ck_assert_ptr_null(strstr(shown, "\033[3"));
    unsetenv("NO_COLOR");
}

/* So much of an evaluation, after so long without a word. */
static const char *evaluated(uint64_t n_tokens, double seconds)
{
    progress.evaluating_ns -= (uint64_t)(seconds * 1e9);
    progress_evaluating(&progress, n_tokens, 300);
    return look();
}

/* Ten seconds without a word are long enough for a line in a pipe, half a second on a terminal, where it is a part of
 * the line until the next step. */
TEST(an_evaluation_that_takes_long_is_told_of)
{
    setenv("TERM", "dumb", 1);
    begin(60, 1, 1);
    ck_assert_str_eq(evaluated(0, 0), "");
    ck_assert_str_eq(evaluated(100, 0.5), "");
    ck_assert_holds(evaluated(150, 9.5), "evaluating 50 %");
    ck_assert_str_eq(evaluated(200, 0), "");

    setenv("TERM", "xterm", 1);
    begin(200, 7, 9);
    ck_assert_str_eq(evaluated(0, 0), "");
    ck_assert_str_eq(evaluated(100, 0), "");
    ck_assert_str_eq(evaluated(200, 0.5), "\revaluating 66 %\033[K"); /* before the first step */
    progress_clear(&progress);
    look();
    ck_assert_ptr_null(strstr(shown_for(7), "evaluating"));
    evaluated(0, 0);
    ck_assert_holds(evaluated(299, 0.5), "\rstep 7/9  loss 2.3457  evaluating 99 %  12345 tokens/s");
    ck_assert_ptr_null(strstr(shown_for(9), "evaluating"));
}

TEST_EACH(a_dumb_terminal_gets_plain_lines, 3)
{
    static const char *const terms[] = {"dumb", "", NULL};

    if (terms[_i])
        setenv("TERM", terms[_i], 1);
    else
        unsetenv("TERM");
    begin(60, 7, 7);
    progress_step(&progress, &step);
    progress_clear(&progress);
    progress_saved(&progress, 7, "runs/x/step-7");
    progress_finish(&progress);
    ck_assert_str_eq(look(), "step 7/7  loss 2.3457  12345 tokens/s  0 s left  device 120.0 MiB of 2.0 GiB\r\n"
                             "saved runs/x/step-7\r\n");
}

/* The first step, and each that completes a hundredth: of 100 steps every one, of 5000 every 50th. */
TEST(a_pipe_sees_every_step_of_a_short_run_and_a_hundredth_of_a_long_one_or_one_in_ten_seconds)
{
    static const unsigned counts[][2] = {{1, 1}, {73, 73}, {100, 100}, {5000, 101}};

    for (int i = 0; i < COUNT(counts); i++) {
        FILE *file = tmpfile();
        unsigned n = 0;
        progress_init(&progress, file);
        for (uint64_t k = 1; k <= counts[i][0]; k++)
            step = step_of(k, counts[i][0]), progress_step(&progress, &step);
        rewind(file);
        for (int c; (c = getc(file)) != EOF;)
            n += c == '\n';
        fclose(file);
        ck_assert_uint_eq(n, counts[i][1]);
    }
    progress_init(&progress, tmpfile());
    step = step_of(1, 1000000), progress_step(&progress, &step);
    step.step = 2, progress_step(&progress, &step);
    ck_assert_uint_eq(progress.shown_step, 1);
    progress.shown_ns -= 10000000000;
    progress_step(&progress, &step);
    ck_assert_uint_eq(progress.shown_step, 2);
    fclose(progress.out);
}
