/* The memory of daemons as metrics: the text that Prometheus' textfile collector reads, and eps mem's tables. */
#include "tests/kit/test.h"
#include "tools/screen/memory.h"

#include <stdlib.h>
#include <string.h>

static char *metrics_of(const char *text)
{
    json_t *list = json_loads(text, 0, NULL);
    char *out = NULL;
    size_t n;
    FILE *file = open_memstream(&out, &n);

    ck_assert_ptr_nonnull(list);
    mem_metrics_print(file, list);
    fclose(file);
    json_decref(list);
    return out;
}

static void check_holds(const char *text, const char *line)
{
    ck_assert_msg(strstr(text, line) != NULL, "no %s in:\n%s", line, text);
}

TEST(each_side_and_category_is_a_sample_with_labels)
{
    char *said = metrics_of(
        "[{\"address\": \"/run/eps/lab\", \"host\": {\"current\": 7, \"peak\": 8, \"planned\": 9, \"locked\": 5,"
        " \"numa\": [3, 4], \"categories\": {\"weights\": {\"current\": 1, \"peak\": 2, \"planned\": 3}}},"
        " \"workers\": [{\"id\": 3, \"device\": \"cpu\", \"budget\": 100, \"current\": 6, \"peak\": 6,"
        " \"planned\": null, \"locked\": null, \"numa\": null, \"categories\": {\"stash\": {\"current\": 4,"
        " \"peak\": 5, \"planned\": null}}}]}]");

    check_holds(said, "\n# TYPE eps_memory_peak_bytes gauge\n"
                      "eps_memory_peak_bytes{daemon=\"lab\",side=\"host\",category=\"weights\"} 2\n"
                      "eps_memory_peak_bytes{daemon=\"lab\",side=\"worker\",worker=\"3\",device=\"cpu\","
                      "category=\"stash\"} 5\n# HELP ");
    check_holds(said, "\neps_memory_planned_bytes{daemon=\"lab\",side=\"host\",category=\"weights\"} 3\n# HELP ");
    check_holds(said, "\neps_memory_budget_bytes{daemon=\"lab\",side=\"worker\",worker=\"3\",device=\"cpu\"} 100\n");
    check_holds(said, "\neps_memory_node_bytes{daemon=\"lab\",side=\"host\",node=\"1\"} 4\n");
    check_holds(said, "\neps_memory_locked_bytes{daemon=\"lab\",side=\"host\"} 5\n# HELP ");
    ck_assert_int_eq(strncmp(said, "# HELP eps_memory_bytes ", 24), 0);
    free(said);
}

/* A metric's samples stand together, whatever daemon they are of: the format wants it. */
TEST(several_daemons_share_a_metric)
{
    char *said = metrics_of("[{\"address\": \"a\", \"host\": {\"peak\": 1}, \"workers\": []},"
                            " {\"address\": \"/x/b\\\"c\", \"host\": {\"peak\": 2}, \"workers\": []}]");

    check_holds(said, "eps_memory_peak_total_bytes{daemon=\"a\",side=\"host\"} 1\n"
                      "eps_memory_peak_total_bytes{daemon=\"b\\\"c\",side=\"host\"} 2\n");
    free(said);
}

static char *table_of(const struct eps_memory *side)
{
    char *out = NULL;
    size_t n;
    FILE *file = open_memstream(&out, &n);

    memory_print(file, side);
    fclose(file);
    return out;
}

TEST(a_table_shows_the_plan_and_the_pages_where_they_are_known)
{
    const struct eps_memory_row row = {"weights", 1024, 2048, 4096};
    struct eps_memory side = {
        .worker = 3, .device = "cpu", .budget = 1 << 20, .current = 1024, .peak = 2048, .rows = &row, .n_rows = 1};
    char *said = table_of(&side);

    ck_assert_str_eq(said, "worker 3: cpu, of 1.0 MiB      now         peak\n"
                           "  weights               1.0 KiB      2.0 KiB\n"
                           "  total                 1.0 KiB      2.0 KiB\n");
    free(said);
    side.planned = 4096;
    side.pages = (struct eps_pages){true, 8192, 1024, 0, 2, {4096, 4096}};
    said = table_of(&side);
    ck_assert_str_eq(said,
                     "worker 3: cpu, of 1.0 MiB      now         peak      planned\n"
                     "  weights               1.0 KiB      2.0 KiB      4.0 KiB\n"
                     "  total                 1.0 KiB      2.0 KiB      4.0 KiB\n"
                     "  3072 B less than planned\n"
                     "  resident 8.0 KiB, locked 1.0 KiB, in huge pages 0.0 KiB; node 0 4.0 KiB, node 1 4.0 KiB\n");
    free(said);
    side.current = 4096;
    side.pages.known = false;
    said = table_of(&side);
    check_holds(said, "      4.0 KiB\n  as planned, to the byte\n");
    free(said);
    side.current = 4097;
    said = table_of(&side);
    check_holds(said, "\n  1 B more than planned\n");
    free(said);
}
