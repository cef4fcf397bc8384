#include "tests/relay_trace.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const traces[] = {"walks-0", "walks-1", "walks-2", "walks-3", "walks-4",
                                     "walks-5", "chaos-0", "chaos-1", "chaos-2"};

static FILE *open_trace(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, TESTS_DIR "/relay/%s.trace", name);
    FILE *in = fopen(path, "r");
    ck_assert_msg(in, "%s: %s", path, strerror(errno));
    return in;
}

/* Every action of the specification under every event, in its order: tests/relay/generate.py wrote them. */
START_TEST(actions_are_those_of_the_specification)
{
    const char *name = traces[_i];
    struct relay_trace trace = {0};
    char *line = NULL, *said = NULL;
    size_t cap = 0, said_bytes = 0, at = 0;
    int n_line = 0, n_traces = 0;
    FILE *in = open_trace(name), *out = open_memstream(&said, &said_bytes);
    while (getline(&line, &cap, in) > 0) {
        n_line++;
        if (line[0] == ' ') {
            size_t n = strlen(line);
            ck_assert_msg(at + n <= said_bytes && !memcmp(said + at, line, n), "%s:%d: not %.40s", name, n_line,
                          said + at);
            at += n;
            continue;
        }
        ck_assert_msg(at == said_bytes, "%s:%d: before it, something more: %s", name, n_line, said + at);
        if (line[0] == '\n')
            continue;
        n_traces += !strncmp(line, "config ", 7);
        rewind(out);
        ck_assert_msg(!relay_trace_feed(&trace, line, out), "%s:%d: not an event", name, n_line);
        fflush(out);
        at = 0;
    }
    ck_assert_int_eq(n_traces, 40);
    ck_assert_uint_eq(at, said_bytes);
    fclose(in);
    fclose(out);
    free(said);
    free(line);
    relay_trace_free(&trace);
}
END_TEST

/* test_relay --trace FILE...: echoes each event and puts its actions under it, like the specification's own --trace. */
static int main_trace(int argc, char **argv)
{
    struct relay_trace trace = {0};
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    for (int i = 2; i < argc && !rc; i++) {
        FILE *in = fopen(argv[i], "r");
        if (!in) {
            perror(argv[i]);
            return 1;
        }
        while (!rc && getline(&line, &cap, in) > 0) {
            if (line[0] == ' ' || line[0] == '#' || line[0] == '\n')
                continue;
            fputs(line, stdout);
            rc = relay_trace_feed(&trace, line, stdout);
        }
        fclose(in);
    }
    free(line);
    relay_trace_free(&trace);
    return rc ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--trace"))
        return main_trace(argc, argv);
    Suite *suite = suite_create("relay");
    TCase *tcase = tcase_create("relay");
    tcase_add_loop_test(tcase, actions_are_those_of_the_specification, 0, sizeof traces / sizeof *traces);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed != 0;
}
