/* The table answers for one device. That is the one which --device or --card names; else, by --device-mem alone, a GPU
 * of that memory; else this machine's first GPU that eps trains on, with what is free of it; else the CPU. eps plan
 * --model takes the CPU where no option names a device. So what names the GPU is added to the options of every row: a
 * row is always what eps plan says of the model with these options. */
#include "tools/commands/plan/table.h"

#include "tools/commands/plan/plan.h"

#include "tools/commands.h"
#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a command; columns of the longest name of a way; columns from which on a command stands in its row. */
enum { TABLE_COMMAND = 2048, TABLE_WAY = 15, TABLE_WIDE = 140 };

struct table {
    struct eps_machine machine;
    struct eps_train_options options; /* of each row, but for its model */
    char added[96];                   /* to the options of eps plan, as words: what names a GPU */
    int argc;                         /* the words of the command line, its name first */
    char **argv;
    json_t *rows; /* NULL: they are printed, */
    FILE *out;    /* there: until a row has a plan, into `held` */
    char *held;
    size_t n_held;
    const struct eps_published *last; /* of the row before */
};

static const char *const table_ways[EPS_WAYS] = {
    [EPS_WAY_WHOLE] = "whole", [EPS_WAY_ADAPTERS] = "adapters", [EPS_WAY_ADAPTERS_ON_NF4] = "adapters on nf4"};
static const char *const table_options_of[EPS_WAYS] = {[EPS_WAY_WHOLE] = "",
                                                       [EPS_WAY_ADAPTERS] = " --lora rank=16",
                                                       [EPS_WAY_ADAPTERS_ON_NF4] = " --lora rank=16 --base nf4"};

/* ---- a row's command ---- */

/* The option of eps plan that a word names, or NULL. */
static const struct eps_option *table_find_option(const char *word)
{
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++)
        if (rows[i].name && rows[i].plan && strncmp(rows[i].name, word, strcspn(word, "=")) == 0 &&
            strlen(rows[i].name) == strcspn(word, "="))
            return &rows[i];
    return NULL;
}

/* Adds the command line's own options; of eps train those that it has. */
static void table_add_given(char *out, const struct table *table, bool train)
{
    const struct eps_option *option = NULL;
    size_t used = strlen(out);
    char word[200];

    for (int i = 1; i < table->argc && used < TABLE_COMMAND; i++) {
        const char *const given = table->argv[i];
        if (strncmp(given, "--", 2) == 0)
            option = table_find_option(given); /* others are about the answer: --json */
        if (option && (!train || option->train))
            used += (size_t)snprintf(out + used, TABLE_COMMAND - used, " %s", eps_quote(word, sizeof word, given));
    }
}

/* "eps plan --model ORG/NAME ..." or "eps train ... --data FILE", for a shell. */
static void table_write_command(char out[TABLE_COMMAND], const struct table *table, const struct eps_plan_row *row,
                                bool train)
{
    const bool tasked = !table->options.task && row->published->task == EPS_CLASSIFY;

    snprintf(out, TABLE_COMMAND, "eps %s --model %s%s%s", train ? "train" : "plan", row->published->name,
             tasked ? " --task classify" : "", table_options_of[row->way]);
    if (!train)
        snprintf(out + strlen(out), TABLE_COMMAND - strlen(out), "%s", table->added);
    table_add_given(out, table, train);
    if (train)
        snprintf(out + strlen(out), TABLE_COMMAND - strlen(out), " --data FILE");
}

/* ---- this machine ---- */

/* Whether eps bench has measured this kind of device. */
static bool table_is_measured(const char *device)
{
    struct eps_train_options options = eps_train_defaults();
    struct eps_error error;
    struct eps_plan plan;

    options.model = "byte-small", options.device = device;
    return eps_plan(&plan, &options, &error) == 0 && plan.measured;
}

/* "rtx-4090|...": begins with the card's word among those of --card. */
static const char *table_card(enum eps_card card)
{
    const char *at = table_find_option("--card")->value;

    for (unsigned i = 1; i < card; i++)
        at = strchr(at, '|') + 1;
    return at;
}

/* Names the device of the rows, unless --device or --card does. This machine's first GPU that computes gives its
 * memory, unless --device-mem names another, and its rates. */
static void table_choose_device(struct table *table)
{
    struct eps_train_options *o = &table->options;
    const struct eps_machine_device *d = table->machine.devices, *end = d + table->machine.n_devices;
    size_t used;

    while (d < end && !d->computes)
        d++;
    if (o->device || o->card || (!o->device_mem && d == end))
        return;
    o->device = "cuda";
    used = (size_t)snprintf(table->added, sizeof table->added, " --device cuda");
    if (!o->device_mem) {
        o->device_mem = d->default_mem;
        used +=
            (size_t)snprintf(table->added + used, sizeof table->added - used, " --device-mem %" PRIu64, o->device_mem);
    }
    if (d < end && d->card && !table_is_measured("cuda")) {
        o->card = d->card;
        snprintf(table->added + used, sizeof table->added - used, " --card %.*s",
                 (int)strcspn(table_card(d->card), "|"), table_card(d->card));
    }
}

static void table_print_machine(const struct eps_machine *m)
{
    char text[2][24];

    printf("this machine  %u core%s, ", m->n_cores, m->n_cores == 1 ? "" : "s");
    if (m->host_available_bytes < UINT64_MAX && m->host_bytes < UINT64_MAX)
        printf("%s of %s of host memory free\n", eps_format_bytes(text[0], m->host_available_bytes),
               eps_format_bytes(text[1], m->host_bytes));
    else
        printf("host memory not known\n");
    for (const struct eps_machine_device *d = m->devices; d < m->devices + m->n_devices; d++)
        printf("              %s, %s of %s free%s%s\n", d->name, eps_format_bytes(text[0], d->available_bytes),
               eps_format_bytes(text[1], d->bytes), d->why ? ", not used: " : "", d->why ? d->why : "");
    if (m->n_devices == 0)
        printf("              no CUDA device\n");
}

static json_t *table_bytes(uint64_t bytes)
{
    return bytes < UINT64_MAX ? json_integer((json_int_t)bytes) : json_null();
}

static json_t *table_machine_to_json(const struct eps_machine *m)
{
    json_t *devices = json_array();

    for (const struct eps_machine_device *d = m->devices; d < m->devices + m->n_devices; d++)
        json_array_append_new(devices, json_pack("{s:o, s:I, s:I, s:b, s:s*}", "name", text_json(d->name), "bytes",
                                                 (json_int_t)d->bytes, "available", (json_int_t)d->available_bytes,
                                                 "computes", d->computes, "why", d->why));
    return json_pack("{s:i, s:{s:o, s:o}, s:o}", "cores", (int)m->n_cores, "host", "bytes", table_bytes(m->host_bytes),
                     "available", table_bytes(m->host_available_bytes), "devices", devices);
}

/* ---- rows ---- */

/* What all rows have in common, by one of them. */
static void table_print_head(const struct eps_plan *plan)
{
    char text[24];

    printf("planned for   %s", plan->device);
    if (plan->worker.limit < UINT64_MAX)
        printf(" with %s%s", eps_format_bytes(text, plan->worker.limit), plan->n_workers > 1 ? " each" : "");
    if (plan->host.limit < UINT64_MAX)
        printf(", host memory of %s%s", eps_format_bytes(text, plan->host.limit),
               plan->shared ? " for host and device" : "");
    if (!plan->measured)
        printf(
            "\n*             estimated, by rates of another machine or of a data sheet: eps bench measures this one");
    printf("\n\n  %-4s %10s  %10s  %12s   %-*s  %s\n", "fits", "device", "host", "a step", TABLE_WAY, "trained",
           terminal_columns(stdout) > 0 && terminal_columns(stdout) < TABLE_WIDE ? "" : "command");
}

/* Which memory is too small, in few words: eps plan --model has the whole sentence. */
static void table_print_shortage(const struct table *table, const struct eps_plan *plan)
{
    const bool device = plan->shortage.device;
    char text[2][24];

    fprintf(table->out, "%s needs %s, has %s\n",
            device         ? "device"
            : plan->shared ? "host with device"
                           : "host",
            eps_format_bytes(text[0], plan->shortage.need), eps_format_bytes(text[1], plan->shortage.have));
}

static void table_print_plan(const struct table *table, const struct eps_plan_row *row)
{
    const size_t columns = terminal_columns(stdout);
    const struct eps_plan *plan = row->plan;
    char command[TABLE_COMMAND], step[32], device[24], host[24];

    fprintf(table->out, "  %s%-4s%s %10s  %10s  %12s%s  %-*s",
            terminal_style(stdout, plan->fits ? TERMINAL_GREEN : TERMINAL_RED), plan->fits ? "yes" : "no",
            terminal_style(stdout, TERMINAL_PLAIN), eps_format_bytes(device, plan->worker.bytes),
            eps_format_bytes(host, plan->host.bytes), text_ms(step, plan->step_ms), plan->measured ? " " : "*",
            TABLE_WAY, table_ways[row->way]);
    fprintf(table->out, columns > 0 && columns < TABLE_WIDE ? "\n      " : "  ");
    if (plan->fits) {
        table_write_command(command, table, row, true);
        fprintf(table->out, "%s\n", command);
    } else {
        table_print_shortage(table, plan);
    }
}

static void table_print_row(const struct table *table, const struct eps_plan_row *row)
{
    const struct eps_plan *plan = row->plan;
    char text[24], refusal[OPTIONS_TEXT];

    if (row->published != table->last) {
        fprintf(table->out, "%s%s%s, %s parameters", terminal_style(stdout, TERMINAL_BOLD), row->published->name,
                terminal_style(stdout, TERMINAL_PLAIN), text_count(text, row->published->n_parameters));
        if (plan)
            fprintf(table->out, ", %u row%s of %u tokens a step", plan->options.batch,
                    plan->options.batch == 1 ? "" : "s", plan->options.seq);
        fputc('\n', table->out);
    }
    if (plan)
        table_print_plan(table, row);
    else
        fprintf(table->out, "  %-4s %s: %s\n", "no", table_ways[row->way], arguments_options(refusal, row->refusal));
    fflush(table->out);
}

/* The first row that has a plan: what all have in common, then the rows before it. */
static void table_begin(struct table *table, const struct eps_plan *plan)
{
    fclose(table->out);
    table->out = stdout;
    table_print_machine(&table->machine);
    table_print_head(plan);
    fputs(table->held, stdout);
}

static json_t *table_row_to_json(const struct table *table, const struct eps_plan_row *row)
{
    const struct eps_published *p = row->published;
    char train[TABLE_COMMAND], plan[TABLE_COMMAND], refusal[OPTIONS_TEXT];

    table_write_command(train, table, row, true);
    table_write_command(plan, table, row, false);
    json_t *object = json_pack("{s:s, s:{s:I, s:o, s:s}, s:s, s:{s:s, s:s}}", "model", p->name, "published",
                               "parameters", (json_int_t)p->n_parameters, "config",
                               json_sprintf("https://huggingface.co/%s/blob/main/config.json", p->name), "date",
                               p->date, "trained", table_ways[row->way], "commands", "train", train, "plan", plan);
    if (row->plan)
        json_object_set_new(object, "plan", plan_to_json(row->plan));
    else
        json_object_set_new(object, "refusal", text_json(arguments_options(refusal, row->refusal)));
    return object;
}

static void table_on_row(void *user, const struct eps_plan_row *row)
{
    struct table *table = user;

    if (!table->rows && row->plan && table->out != stdout)
        table_begin(table, row->plan);
    if (table->rows)
        json_array_append_new(table->rows, table_row_to_json(table, row));
    else
        table_print_row(table, row);
    table->last = row->published;
}

static void table_print_json(struct table *table)
{
    json_t *all = json_pack("{s:o, s:o}", "machine", table_machine_to_json(&table->machine), "rows", table->rows);

    answer_write(stdout, all, 0);
    putchar('\n');
    json_decref(all);
}

int plan_table(const struct command *command, const struct eps_train_options *options, bool json, int argc, char **argv)
{
    struct table table = {.options = *options, .argc = argc, .argv = argv, .rows = json ? json_array() : NULL};
    struct eps_error error;

    table.out = open_memstream(&table.held, &table.n_held);
    if (!table.out)
        return arguments_fail(command, 1, "out of memory");
    eps_machine(&table.machine);
    table_choose_device(&table);
    const int rc = eps_plan_published(&table.options, table_on_row, &table, &error);
    if (table.out != stdout)
        fclose(table.out);
    free(table.held);
    if (rc)
        json_decref(table.rows);
    else if (json)
        table_print_json(&table);
    return rc ? arguments_fail(command, rc, error.text) : 0;
}
