/* The memory of daemons as metrics: the text that Prometheus' textfile collector reads, and eps mem's tables. */
#include "tests/kit/test.h"
#include "tools/screen/memory.h"

#include <stdlib.h>
#include <string.h>

static char *said;
static size_t n_said;

static void say_metrics(const char *text)
{
    json_t *list = json_loads(text, 0, NULL);
    FILE *file = open_memstream(&said, &n_said);

    ck_assert_ptr_nonnull(list);
    mem_metrics_print(file, list);
    fclose(file);
    json_decref(list);
}

static void drop(void)
{
    free(said);
}

SUITE_FIXTURE(NULL, drop)

TEST(each_side_and_category_is_a_sample_with_labels)
{
    say_metrics(
        "[{\"address\": \"/run/eps/lab\", \"host\": {\"current\": 7, \"peak\": 8, \"planned\": 9, \"locked\": 5,"
        " \"numa\": [3, 4], \"categories\": {\"weights\": {\"current\": 1, \"peak\": 2, \"planned\": 3}}},"
        " \"workers\": [{\"id\": 3, \"device\": \"cpu\", \"budget\": 100, \"current\": 6, \"peak\": 6,"
        " \"planned\": null, \"locked\": null, \"numa\": null, \"categories\": {\"stash\": {\"current\": 4,"
        " \"peak\": 5, \"planned\": null}}}]}]");
    ck_assert_holds(
        said,
        "\n# TYPE eps_memory_peak_bytes gauge\n"
        "eps_memory_peak_bytes{daemon=\"lab\",side=\"host\",category=\"weights\"} 2\n"
        "eps_memory_peak_bytes{daemon=\"lab\",side=\"worker\",worker=\"3\",device=\"cpu\",category=\"stash\"} 5\n"
        "# HELP ",
        "\neps_memory_planned_bytes{daemon=\"lab\",side=\"host\",category=\"weights\"} 3\n# HELP ",
        "\neps_memory_budget_bytes{daemon=\"lab\",side=\"worker\",worker=\"3\",device=\"cpu\"} 100\n",
        "\neps_memory_node_bytes{daemon=\"lab\",side=\"host\",node=\"1\"} 4\n",
        "\neps_memory_locked_bytes{daemon=\"lab\",side=\"host\"} 5\n# HELP ");
    ck_assert_holds(said, "# HELP eps_memory_bytes ");
    ck_assert_ptr_null(strstr(said, "eps_loss{"));
}

/* A loss of a run whose speed is not known yet; a daemon without a run has no samples. */
TEST(a_run_has_its_loss_steps_and_speed)
{
    say_metrics("[{\"address\": \"/run/eps/lab\", \"host\": {\"peak\": 1}, \"workers\": [], \"run\": {\"step\": 7,"
                " \"steps\": 5000000000, \"loss\": 2.25, \"lr\": 0.0003, \"tokens\": 1024, \"tokens_per_s\": null}},"
                " {\"address\": \"idle\", \"host\": {\"peak\": 1, \"budget\": 3}, \"workers\": [{\"id\": 1}],"
                " \"queued\": 2, \"run\": null}]");
    ck_assert_holds(
        said,
        "# HELP eps_step Steps that the run has done.\n# TYPE eps_step gauge\neps_step{daemon=\"lab\"} 7\n# HELP ",
        "\neps_steps{daemon=\"lab\"} 5000000000\n", "\neps_loss{daemon=\"lab\"} 2.25\n",
        "\neps_tokens{daemon=\"lab\"} 1024\n", "\n# TYPE eps_tokens_per_second gauge\n# HELP ",
        "\neps_learning_rate{daemon=\"lab\"} 0.0003\n",
        "\neps_workers{daemon=\"lab\"} 0\neps_workers{daemon=\"idle\"} 1\n", "\neps_queued_jobs{daemon=\"idle\"} 2\n",
        "\neps_memory_budget_bytes{daemon=\"idle\",side=\"host\"} 3\n");
}

/* Puts the metric that a text begins with among the keys of seen. Returns its length. */
static size_t note_metric(json_t *seen, const char *text)
{
    const size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
    char name[64];

    ck_assert_uint_lt(n, sizeof name);
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    json_object_set_new(seen, name, json_true());
    return n;
}

static void note_queries(json_t *seen, const json_t *panel)
{
    size_t i;
    json_t *target;

    ck_assert_uint_gt(json_array_size(json_object_get(panel, "targets")), 0);
    json_array_foreach(json_object_get(panel, "targets"), i, target)
    {
        const char *at = json_string_value(json_object_get(target, "expr"));
        ck_assert_ptr_nonnull(at);
        while ((at = strstr(at, "eps_")))
            at += note_metric(seen, at);
    }
}

TEST(the_dashboard_shows_all_metrics_and_no_others)
{
    json_t *dashboard = json_load_file(TESTS_DIR "/../tools/grafana/eps.json", 0, NULL), *panel;
    json_t *shown = json_object(), *printed = json_object();
    size_t i;

    ck_assert_ptr_nonnull(dashboard);
    json_array_foreach(json_object_get(dashboard, "panels"), i, panel) note_queries(shown, panel);
    say_metrics("[]");
    for (const char *at = said; (at = strstr(at, "# TYPE "));)
        at += strlen("# TYPE ") + note_metric(printed, at + strlen("# TYPE "));
    char *const shown_text = json_dumps(shown, JSON_SORT_KEYS), *const printed_text =
                                                                    json_dumps(printed, JSON_SORT_KEYS);
    ck_assert_str_eq(shown_text, printed_text);
    free(shown_text);
    free(printed_text);
    json_decref(dashboard);
    json_decref(shown);
    json_decref(printed);
}

/* A metric's samples stand together, whatever daemon they are of: the format wants it. */
TEST(several_daemons_share_a_metric)
{
    say_metrics("[{\"address\": \"a\", \"host\": {\"peak\": 1}, \"workers\": []},"
                " {\"address\": \"/x/b\\\"c\\nd\", \"host\": {\"peak\": 2}, \"workers\": []}]");
    ck_assert_holds(said, "eps_memory_peak_total_bytes{daemon=\"a\",side=\"host\"} 1\n"
                          "eps_memory_peak_total_bytes{daemon=\"b\\\"c\\nd\",side=\"host\"} 2\n");
}

TEST_EACH(a_table_shows_the_plan_and_the_pages_where_they_are_known, 4)
{
    static const char *const tables[] = {
        "worker 3: cpu, of 1.0 MiB      now         peak\n"
        "  weights               1.0 KiB      2.0 KiB\n"
        "  total                 1.0 KiB      2.0 KiB\n",
        "worker 3: cpu, of 1.0 MiB      now         peak      planned\n"
        "  weights               1.0 KiB      2.0 KiB      4.0 KiB\n"
        "  total                 1.0 KiB      2.0 KiB      4.0 KiB\n"
        "  3072 B less than planned\n"
        "  resident 8.0 KiB, locked 1.0 KiB, in huge pages 0 B; node 0 4.0 KiB, node 1 4.0 KiB\n",
        "      4.0 KiB\n  as planned, to the byte\n",
        "\n  1 B more than planned\n",
    };
    static const uint64_t current[] = {1024, 1024, 4096, 4097};
    const struct eps_memory_row row = {"weights", 1024, 2048, 4096};
    const struct eps_memory side = {.worker = 3,
                                    .device = "cpu",
                                    .budget = 1 << 20,
                                    .current = current[_i],
                                    .peak = 2048,
                                    .planned = _i ? 4096 : 0,
                                    .rows = &row,
                                    .n_rows = 1,
                                    .pages = {_i == 1, 8192, 1024, 0, 2, {4096, 4096}}};

    FILE *file = open_memstream(&said, &n_said);
    memory_print(file, &side);
    fclose(file);
    ck_assert_holds(said, tables[_i]);
    if (_i < 2)
        ck_assert_str_eq(said, tables[_i]);
}
