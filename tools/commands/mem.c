/* eps mem: the ledger of a daemon and its workers. Text and JSON are made in callbacks, side by side with the messages
 * as they arrive, so a daemon with many workers needs no table of them here. Unknown numbers are null in JSON, never
 * 0. */
#include "client/eps.h"
#include "tools/commands.h"
#include "tools/live.h"
#include "tools/screen/memory.h"
#include "tools/screen/text.h"

#include <math.h>
#include <stdint.h>

static void mem_print_side(void *user, const struct eps_memory *side)
{
    FILE *out = user;

    if (side->worker > 0)
        fputc('\n', out);
    memory_print(out, side);
}

static int mem_print(FILE *out, struct eps_observer *observer, struct eps_error *error)
{
    return eps_observer_mem(observer, true, mem_print_side, out, error);
}

struct sums {
    uint64_t host, workers, budget;
};

static void mem_add_sums(void *user, const struct eps_memory *side)
{
    struct sums *sums = user;

    *(side->worker ? &sums->workers : &sums->host) += side->current;
    sums->budget += side->worker ? side->budget : 0;
}

static int mem_print_line(FILE *out, struct eps_observer *observer, struct eps_error *error)
{
    char host[24], workers[24], budget[24];
    struct sums sums = {0};
    struct eps_status status;
    int rc = eps_observer_mem(observer, false, mem_add_sums, &sums, error);

    if (!rc)
        rc = eps_observer_status(observer, &status, error);
    if (rc)
        return rc;
    live_print_status(out, &status);
    fprintf(out, "  host %s, workers %s of %s\n", eps_format_bytes(host, sums.host),
            eps_format_bytes(workers, sums.workers), eps_format_bytes(budget, sums.budget));
    return 0;
}

static json_t *mem_sizes(uint64_t current, uint64_t peak, bool is_planned, uint64_t planned)
{
    json_t *object = json_pack("{s:I, s:I}", "current", (json_int_t)current, "peak", (json_int_t)peak);

    json_object_set_new(object, "planned", is_planned ? json_integer((json_int_t)planned) : json_null());
    return object;
}

static void add_pages(json_t *object, const struct eps_pages *pages)
{
    const struct {
        const char *key;
        uint64_t bytes;
    } rows[] = {{"resident", pages->resident}, {"locked", pages->locked}, {"huge", pages->huge}};
    json_t *nodes = pages->known ? json_array() : json_null();

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        json_object_set_new(object, rows[i].key, pages->known ? json_integer((json_int_t)rows[i].bytes) : json_null());
    for (size_t i = 0; i < pages->n_nodes; i++)
        json_array_append_new(nodes, json_integer((json_int_t)pages->nodes[i]));
    json_object_set_new(object, "numa", nodes);
}

static json_t *mem_side_to_json(const struct eps_memory *side)
{
    const bool is_planned = side->planned > 0;
    json_t *object = mem_sizes(side->current, side->peak, is_planned, side->planned), *categories = json_object();

    for (size_t i = 0; i < side->n_rows; i++) {
        const struct eps_memory_row *row = &side->rows[i];
        json_object_set_new(categories, row->category, mem_sizes(row->current, row->peak, is_planned, row->planned));
    }
    json_object_set_new(object, "categories", categories);
    json_object_set_new(object, "budget", side->budget ? json_integer((json_int_t)side->budget) : json_null());
    add_pages(object, &side->pages);
    return object;
}

static void mem_add_side(void *user, const struct eps_memory *side)
{
    json_t *all = user, *object = mem_side_to_json(side);

    json_object_set_new(object, "on", *side->host ? text_json(side->host) : json_null());
    json_object_set_new(object, "pid", json_integer(side->pid));
    if (side->worker == 0) {
        json_object_set_new(all, "host", object);
        return;
    }
    json_object_set_new(object, "id", json_integer(side->worker));
    json_object_set_new(object, "device", json_string(side->device));
    json_array_append_new(json_object_get(all, "workers"), object);
}

static json_t *real_or_null(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

/* The queue, and the run beside which the memory stands; null without one. */
static int mem_add_run(json_t *all, struct eps_observer *observer, struct eps_error *error)
{
    struct eps_status status;
    struct eps_recent recent = {.tokens_per_s = NAN, .lr = NAN};
    int rc = eps_observer_status(observer, &status, error);

    json_object_set_new(all, "run", json_null());
    if (rc)
        return rc;
    json_object_set_new(all, "queued", json_integer((json_int_t)status.n_queued));
    if (status.n_steps == 0)
        return 0;
    json_t *run = json_pack("{s:I, s:I, s:o}", "step", (json_int_t)status.step, "steps", (json_int_t)status.n_steps,
                            "loss", real_or_null(status.loss));
    rc = eps_observer_recent(observer, &recent, error);
    json_object_set_new(run, "lr", real_or_null(recent.lr));
    json_object_set_new(run, "tokens", json_integer((json_int_t)recent.tokens));
    json_object_set_new(run, "tokens_per_s", real_or_null(recent.tokens_per_s));
    json_object_set_new(all, "run", run);
    return rc;
}

static int mem_to_json(json_t **out, struct eps_observer *observer, struct eps_error *error)
{
    json_t *all = json_pack("{s:o, s:[]}", "address", text_json(eps_observer_address(observer)), "workers");
    int rc = eps_observer_mem(observer, true, mem_add_side, all, error);

    if (!rc)
        rc = mem_add_run(all, observer, error);
    if (rc)
        json_decref(all);
    else
        *out = all;
    return rc;
}

int command_mem(int argc, char **argv)
{
    static const struct live_view view = {
        "eps mem",
        "Shows the memory of a live daemon and its workers by category: current, peak and planned (a worker "
        "claims what is planned in one piece, so its categories are the plan's); and the operating system's figures: "
        "resident, locked, in huge pages, by NUMA node. Lists several daemons, one line each.",
        "print an object, in bytes; unknown values are null:\n{\"host\": {\"current\", \"peak\", "
        "\"planned\",\n\"categories\": {NAME: {\"current\", \"peak\", \"planned\"}},\n\"budget\", \"resident\", "
        "\"locked\", \"huge\", \"numa\": [...], \"on\", \"pid\"},\n\"workers\": [{\"id\", \"device\", and as host}],\n"
        "\"queued\",\n\"run\": {\"step\", \"steps\", \"loss\", \"lr\",\n\"tokens\", \"tokens_per_s\"} or null, "
        "\"address\"};\nseveral daemons: {\"daemons\": [...]}. With --watch one object per line",
        mem_print,
        mem_print_line,
        mem_to_json,
        mem_metrics_print,
        .lines_in_pipe = false,
    };

    return live_command(argc, argv, &view);
}
