/* Prometheus wants all samples of a metric in one group, so metrics are the outer loop, and daemons the inner one. They
 * are read from the objects of eps mem --json, so that both say the same. */
#include "tools/screen/memory.h"

#include "tools/live.h"

#include <inttypes.h>
#include <stdbool.h>

static void memory_print_row(FILE *out, const char *name, const struct eps_memory_row *row, bool planned)
{
    char a[24], b[24], c[24];

    fprintf(out, "  %-16s %12s %12s", name, eps_format_bytes(a, row->current), eps_format_bytes(b, row->peak));
    if (planned)
        fprintf(out, " %12s", eps_format_bytes(c, row->planned));
    fputc('\n', out);
}

static void print_difference(FILE *out, const struct eps_memory *side)
{
    const bool more = side->current > side->planned;

    if (side->current == side->planned)
        fprintf(out, "  as planned, to the byte\n");
    else
        fprintf(out, "  %" PRIu64 " B %s than planned\n",
                more ? side->current - side->planned : side->planned - side->current, more ? "more" : "less");
}

static void print_pages(FILE *out, const struct eps_pages *pages)
{
    char text[24];

    fprintf(out, "  resident %s", eps_format_bytes(text, pages->resident));
    fprintf(out, ", locked %s", eps_format_bytes(text, pages->locked));
    fprintf(out, ", in huge pages %s", eps_format_bytes(text, pages->huge));
    for (size_t i = 0; i < pages->n_nodes && pages->n_nodes > 1; i++)
        fprintf(out, "%s node %zu %s", i ? "," : ";", i, eps_format_bytes(text, pages->nodes[i]));
    fputc('\n', out);
}

void memory_print(FILE *out, const struct eps_memory *side)
{
    const struct eps_memory_row total = {"total", side->current, side->peak, side->planned};
    const bool planned = side->planned > 0;
    char name[64], budget[24];

    if (side->worker == 0)
        snprintf(name, sizeof name, "host");
    else
        snprintf(name, sizeof name, "worker %u: %.24s, of %s", side->worker, side->device,
                 eps_format_bytes(budget, side->budget));
    fprintf(out, "%-30s %s         peak%s\n", name, "now", planned ? "      planned" : "");
    for (size_t i = 0; i < side->n_rows; i++)
        memory_print_row(out, side->rows[i].category, &side->rows[i], planned);
    memory_print_row(out, total.category, &total, planned);
    if (planned)
        print_difference(out, side);
    if (side->pages.known)
        print_pages(out, &side->pages);
    if (side->pid)
        fprintf(out, "  on %s, pid %" PRIu32 "\n", *side->host ? side->host : "an unnamed host", side->pid);
}

/* ---- For Prometheus ---- */

/* A metric: one key of a side, or of each of its categories. */
static const struct metric {
    const char *name, *help, *key;
    bool categories;
} metrics[] = {
    {"eps_memory_bytes", "Bytes in use now, as the ledger counts them.", "current", true},
    {"eps_memory_peak_bytes", "Most bytes that were in use at a time.", "peak", true},
    {"eps_memory_planned_bytes", "Bytes that the plan foresees.", "planned", true},
    {"eps_memory_peak_total_bytes", "Most bytes that all categories together had in use at a time.", "peak", false},
    {"eps_memory_budget_bytes", "What a worker may use, or a job of the host.", "budget", false},
    {"eps_memory_resident_bytes", "Resident bytes, as the system counts them.", "resident", false},
    {"eps_memory_locked_bytes", "Resident bytes that cannot be swapped out.", "locked", false},
    {"eps_memory_huge_page_bytes", "Resident bytes in huge pages.", "huge", false},
    {"eps_memory_node_bytes", "Resident bytes on a NUMA node.", "numa", false},
};

/* Metrics of a daemon, or of its run. */
static const struct {
    const char *name, *help, *key;
} run_metrics[] = {
    {"eps_step", "Steps that the run has done.", "step"},
    {"eps_steps", "Steps of the whole run.", "steps"},
    {"eps_loss", "Training loss of the last step.", "loss"},
    {"eps_learning_rate", "Learning rate of the last step.", "lr"},
    {"eps_tokens", "Tokens that the run has trained on.", "tokens"},
    {"eps_tokens_per_second", "Tokens per second over the last steps.", "tokens_per_s"},
    {"eps_workers", "Workers of the daemon.", "workers"},
    {"eps_queued_jobs", "Jobs that wait for the daemon.", "queued"},
};

struct side {
    const char *daemon; /* the daemon's address */
    const json_t *object;
    const char *kind;
};

static void print_label(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\' || *value == '\n')
            fputc('\\', out);
        fputc(*value == '\n' ? 'n' : *value, out);
    }
    fputs("\"", out);
}

/* Prints "NAME{daemon="lab",side="worker",worker="3",device="cpu",category="stash"} 4096". Empty labels are omitted. */
static void print_sample(FILE *out, const struct metric *metric, const struct side *side, const char *label,
                         const char *of, const json_t *value)
{
    const json_t *id = json_object_get(side->object, "id");

    if (!json_is_integer(value))
        return;
    fprintf(out, "%s{", metric->name);
    print_label(out, "daemon", live_name(side->daemon));
    fputc(',', out);
    print_label(out, "side", side->kind);
    if (id) {
        fprintf(out, ",worker=\"%" JSON_INTEGER_FORMAT "\",", json_integer_value(id));
        print_label(out, "device", json_string_value(json_object_get(side->object, "device")));
    }
    if (label) {
        fputc(',', out);
        print_label(out, label, of);
    }
    fprintf(out, "} %" JSON_INTEGER_FORMAT "\n", json_integer_value(value));
}

static void memory_print_side(FILE *out, const struct metric *metric, const struct side *side)
{
    const json_t *value = json_object_get(side->object, metric->key);
    const char *name;
    json_t *row;
    size_t i;

    if (metric->categories) {
        json_object_foreach(json_object_get(side->object, "categories"), name, row)
            print_sample(out, metric, side, "category", name, json_object_get(row, metric->key));
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, row)
        {
            char node[24];
            snprintf(node, sizeof node, "%zu", i);
            print_sample(out, metric, side, "node", node, row);
        }
    } else {
        print_sample(out, metric, side, NULL, NULL, value);
    }
}

static void print_daemon(FILE *out, const struct metric *metric, const json_t *daemon)
{
    struct side side = {json_string_value(json_object_get(daemon, "address")), json_object_get(daemon, "host"), "host"};
    size_t i;

    memory_print_side(out, metric, &side);
    side.kind = "worker";
    json_array_foreach(json_object_get(daemon, "workers"), i, side.object) memory_print_side(out, metric, &side);
}

static void print_run(FILE *out, size_t metric, const json_t *daemon)
{
    const char *key = run_metrics[metric].key;
    const json_t *of_run = json_object_get(json_object_get(daemon, "run"), key);
    const json_t *value = of_run ? of_run : json_object_get(daemon, key);

    if (!json_is_number(value) && !json_is_array(value))
        return;
    fprintf(out, "%s{", run_metrics[metric].name);
    print_label(out, "daemon", live_name(json_string_value(json_object_get(daemon, "address"))));
    fprintf(out, "} %.15g\n", json_is_array(value) ? (double)json_array_size(value) : json_number_value(value));
}

void mem_metrics_print(FILE *out, const json_t *list)
{
    size_t at;
    json_t *daemon;

    for (size_t i = 0; i < sizeof run_metrics / sizeof *run_metrics; i++) {
        fprintf(out, "# HELP %s %s\n# TYPE %s gauge\n", run_metrics[i].name, run_metrics[i].help, run_metrics[i].name);
        json_array_foreach(list, at, daemon) print_run(out, i, daemon);
    }
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        fprintf(out, "# HELP %s %s\n# TYPE %s gauge\n", metrics[i].name, metrics[i].help, metrics[i].name);
        json_array_foreach(list, at, daemon) print_daemon(out, &metrics[i], daemon);
    }
}
