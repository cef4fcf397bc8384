/* eps plan: everything that a run would take, from arithmetic alone. Text is for people and may change; the JSON is
 * stable, and programs read it. A plan that does not fit is printed like any other, and the exit status says so. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/screen/terminal.h"
#include "tools/commands/plan/frontier.h"
#include "tools/commands/plan/plan.h"
#include "tools/commands/plan/table.h"
#include "tools/commands/plan/timeline.h"
#include "tools/hub.h"
#include "tools/screen/text.h"
#include "tools/table_options.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void plan_print_side(const char *name, const struct eps_plan_side *side)
{
    char text[24];

    printf("%s\n", name);
    for (size_t i = 0; i < side->n_terms; i++)
        printf("  %-16s %16" PRIu64 " %12s\n", side->terms[i].category, side->terms[i].bytes,
               eps_format_bytes(text, side->terms[i].bytes));
    printf("  %-16s %16" PRIu64 " %12s", "total", side->bytes, eps_format_bytes(text, side->bytes));
    if (side->limit < UINT64_MAX)
        printf("   of %s", eps_format_bytes(text, side->limit));
    putchar('\n');
}

static void print_asked(const struct eps_plan *plan)
{
    const struct eps_train_options *o = &plan->options;
    char count[24];

    printf("%s: %u layers of %u, %s parameters", o->model, plan->n_layers, plan->width,
           text_count(count, plan->n_parameters));
    if (o->freeze && !plan->adapter_rank)
        printf(", %s of them frozen%s (%s)", text_count(count, plan->frozen.n_parameters), text_base(o->base),
               o->freeze);
    if (plan->adapter_rank)
        printf(", %s of them trained in adapters of rank ",
               text_count(count, plan->n_parameters - plan->frozen.n_parameters));
    if (plan->adapter_least_rank < plan->adapter_rank)
        printf("%u to ", plan->adapter_least_rank);
    if (plan->adapter_rank)
        printf("%u, the others frozen%s", plan->adapter_rank, text_base(o->base));
    if (o->task == EPS_CLASSIFY)
        printf(", to classify %ss: %u classes", text_row(plan), o->n_labels);
    else if (o->task == EPS_REGRESS)
        printf(", to predict a number of each row");
    putchar('\n');
    if (plan->image_height)
        printf("%u images of %ux%u pixels", o->batch, plan->image_height, plan->image_width);
    else
        printf("%u %s %u tokens", o->batch,
               o->task              ? "rows of at most"
               : isnan(o->dpo_beta) ? "sequences of"
                                    : "rows, two for each preference, of at most",
               o->seq);
    printf(" in %u part%s, on %u %s worker%s; %s%s, moments %s%s, gradients in %s, %s commit%s\n", o->parts,
           o->parts > 1 ? "s" : "", plan->n_workers, plan->device, plan->n_workers > 1 ? "s" : "",
           text_number(o->precision), text_master(o->master), o->moments == EPS_MOMENTS_CODED ? "" : "in ",
           text_moments(o->moments), text_number(o->grad_dtype), eps_commit_name(o->commit),
           o->sums == EPS_BF16 ? ", sums in bf16" : "");
    if (o->approximate)
        printf("approximate %s: %s\n", o->approximate, eps_approximate_text(o->approximate));
    if (plan->ignored)
        printf("%s in config.json has no effect: transformers does not read it there\n", plan->ignored);
    putchar('\n');
}

const char plan_not_measured[] =
    "            assumed: by rates of another machine, or of a data sheet; eps bench measures this "
    "one\n";

const char *plan_assumed(bool measured)
{
    return measured ? "" : " (assumed)";
}

/* What the form of --approximate saves, against an exact step in the same memory. Nothing if either does not fit. */
static void print_saving(const struct eps_plan *plan)
{
    struct eps_plan_form form;
    struct eps_error error;
    char text[32];

    if (!plan->options.approximate || eps_plan_one_form(&form, &plan->options, &error) || !form.is_there)
        return;
    if (form.exact_step_ms < 0) {
        printf("\nexact       gradients do not fit into as much device memory\n");
        return;
    }
    printf("\nexact       in as much device memory: %s a step%s", text_ms(text, form.exact_step_ms),
           plan_assumed(form.measured));
    printf(", activations kept %s", eps_format_bytes(text, form.exact_kept_bytes));
    printf(" (here %s)", eps_format_bytes(text, form.kept_bytes));
    printf(", host %s", eps_format_bytes(text, form.exact_host_bytes));
    printf(" (here %s)\n", eps_format_bytes(text, form.host_bytes));
}

/* "all", "nothing", or the operations whose results are kept. */
static bool is_part(const struct eps_kept *kept)
{
    return strcmp(kept->names, "all") != 0 && strcmp(kept->names, "nothing") != 0;
}

/* Prints what blocks keep if all can keep the same. */
static void plan_print_kept(const struct eps_blocks *blocks)
{
    const uint32_t n = blocks->n_kept, n_below = blocks->n - n;

    if (n == 0 || (!is_part(&blocks->kept) && !is_part(&blocks->kept_below))) {
        if (n == blocks->n)
            printf("            activations of all %u blocks kept\n", n);
        else
            printf("            activations of %u of %u blocks kept, of the others recomputed in the backward pass\n",
                   n, blocks->n);
        return;
    }
    if (n_below > 0)
        printf(
            "            activations kept of the top %u blocks: %s\n            activations kept of the other %u: %s\n",
            n, blocks->kept.names, n_below, blocks->kept_below.names);
    else
        printf("            activations kept of all %u blocks: %s\n", n, blocks->kept.names);
    printf("            all other activations are recomputed in the backward pass\n");
}

/* Prints what blocks that differ keep: a line for those that can keep the same. */
static void print_kept_by_class(const struct eps_plan *plan)
{
    for (const struct eps_blocks *blocks = plan->blocks; blocks < plan->blocks + plan->n_blocks; blocks++) {
        printf("            activations kept of %u of %u blocks like %s", blocks->n_kept, blocks->n, blocks->lowest);
        if (blocks->n_kept > 0)
            printf(": %s", blocks->kept.names);
        if (blocks->n_kept < blocks->n && strcmp(blocks->kept_below.names, "nothing") != 0)
            printf("; of the others: %s", blocks->kept_below.names);
        putchar('\n');
    }
    printf("            all other activations are recomputed in the backward pass\n");
}

static void print_choice(const struct eps_plan *plan)
{
    char text[24];

    printf("\nchosen      micro-batches of %u of a part's %u %s%s\n", plan->microbatch, plan->part_rows, text_row(plan),
           plan->part_rows > 1 ? "s" : "");
    if (plan->n_groups > 1)
        printf(
            "            %u row groups of %u part%s pass the model one after another, and pull the weights once each\n",
            plan->n_groups, plan->group_parts, plan->group_parts > 1 ? "s" : "");
    printf("            activation checkpoints ");
    if (plan->n_stored < plan->n_inputs)
        printf("of %u of %u layers; with those that are computed again, %s at a time", plan->n_stored, plan->n_inputs,
               plan->derives ? "elementwise, those of a stage" : "a segment");
    else
        printf("(the blocks' inputs)");
    printf(", %s, on the %s\n", eps_format_bytes(text, plan->stash_bytes),
           plan->host_stash ? "host; each micro-batch is copied when it is needed" : "device");
    if (plan->n_blocks == 1)
        plan_print_kept(plan->blocks);
    else
        print_kept_by_class(plan);
    printf("            weights of %u of %u units stay on the device; %u buffer%s for the others\n", plan->n_resident,
           plan->n_pulled, plan->n_weight_buffers, plan->n_weight_buffers == 1 ? "" : "s");
    if (plan->frozen.n_parameters > 0 && plan->n_resident > 0)
        printf("            what is frozen of these is uploaded once, in the first step\n");
    if (plan->sparse_singly)
        printf("            sparse weights in place one matrix at a time, each time that it is read\n");
    printf("            contributions: %u sum%s on the device, %u slots of a worker's inbox\n", plan->n_sums,
           plan->n_sums == 1 ? "" : "s", plan->n_slots);
    printf("            %s%s\n", plan->replay,
           plan->replays ? ": old weights stand until a step is folded, so that a lost worker's parts can be redone"
                         : "");
    printf("            the head's logits computed %s, at most %u %ss at a time\n",
           plan->one_pass ? "once" : "twice, as its weights are not on the device all at once", plan->head_tile,
           plan->options.task ? text_row(plan) : "token");
}

static void print_step(const struct eps_plan *plan)
{
    const uint64_t share = (plan->options.parts + plan->n_workers - 1) / plan->n_workers * (uint64_t)plan->part_rows;
    const uint64_t pixels = (uint64_t)plan->image_height * plan->image_width; /* each counts as a token */
    const struct {
        const char *name;
        double ms;
    } terms[] = {{"computing", plan->compute_ms}, {"pulls", plan->pull_ms},          {"contributions", plan->push_ms},
                 {"stash", plan->stash_ms},       {"optimizer", plan->optimizer_ms}, {"messages", plan->message_ms}};
    const size_t n_terms =
        sizeof terms / sizeof *terms - (plan->overlaps ? 1 : 0); /* the last is 0 where all overlap */
    const uint64_t down = plan->down_bytes, up = plan->up_bytes, stash = plan->stash_traffic;
    char text[32];

    printf("\na step      down %s", eps_format_bytes(text, down));
    printf(", up %s", eps_format_bytes(text, up));
    if (stash)
        printf(", stash %s", eps_format_bytes(text, stash));
    printf("%s\n            %s%s: ", plan->n_workers > 1 ? ", for each worker" : "", text_ms(text, plan->step_ms),
           plan_assumed(plan->measured));
    for (size_t i = 0; i < n_terms; i++)
        printf("%s%s %s", i ? ", " : "", terms[i].name, text_ms(text, terms[i].ms));
    printf(plan->overlaps ? " (in parallel)\n" : " (one after the other)\n");
    if (!plan->measured)
        printf("%s", plan_not_measured);
    printf("            transfers are hidden from %.0f %s per worker on%s; yours has %" PRIu64 "\n",
           ceil(plan->hiding_tokens / (double)(pixels ? pixels : 1)), pixels ? "images" : "tokens",
           plan_assumed(plan->measured), pixels ? share : share * plan->options.seq);
}

/* "            the optimizer binds: --moments bf16 would take 583 ms a step instead of 900 ms, --state bf16 451 ms":
 * nothing where it does not bind, or no narrower form helps. */
static void plan_print_narrower(const struct eps_plan *plan, const struct eps_train_options *options)
{
    struct eps_plan_narrower all[EPS_PLAN_NARROWER];
    char sentence[OPTIONS_TEXT], text[OPTIONS_TEXT], ms[2][32];
    struct eps_error error;
    size_t used = 0;
    uint32_t n;

    if (eps_plan_narrower(all, &n, plan, options, &error) || n == 0)
        return;
    for (uint32_t i = 0; i < n && used < sizeof sentence; i++)
        used += (size_t)snprintf(sentence + used, sizeof sentence - used, "%s`%s` %s%s %s%s%s", i ? ", " : "",
                                 all[i].member, all[i].value, i ? "" : " would take", text_ms(ms[0], all[i].step_ms),
                                 i ? "" : " a step instead of ", i ? "" : text_ms(ms[1], plan->step_ms));
    printf("            the optimizer binds: %s\n", arguments_options(text, sentence));
}

static void print_plan(const struct eps_plan *plan, const struct eps_train_options *options)
{
    char text[24];

    print_asked(plan);
    plan_print_side(plan->shared ? "host (free memory is shared with the workers)" : "host", &plan->host);
    plan_print_side(plan->n_workers > 1 ? "each worker" : "worker", &plan->worker);
    if (plan->allowance)
        printf("  (library is an estimate: the device tells its real size when a worker opens it)\n");
    print_choice(plan);
    print_step(plan);
    plan_print_narrower(plan, options);
    print_saving(plan);
    if (plan->options.freeze && !plan->adapter_rank) {
        printf("\nfrozen      saves %s of host memory", eps_format_bytes(text, plan->frozen.host_bytes));
        printf(" and %s of each worker's, with this choice\n", eps_format_bytes(text, plan->frozen.device_bytes));
    }
    if (plan->options.freeze_until) {
        printf("\nthawed      after step %" PRIu64 ": host %s", plan->options.freeze_until,
               eps_format_bytes(text, plan->thawed.host_bytes));
        printf(", each worker %s\n", eps_format_bytes(text, plan->thawed.device_bytes));
    }
    printf("\ndisk        %s a checkpoint", eps_format_bytes(text, plan->checkpoint_bytes));
    printf("; at most %" PRIu64 " at once: %s\n", plan->n_checkpoints,
           eps_format_bytes(text, plan->n_checkpoints * plan->checkpoint_bytes));
    printf("            (the last %u, the best with --eval-every, one by --save-minutes, and the one being written)\n",
           plan->options.keep);
    printf("\nsmallest    --device-mem %" PRIu64 "\n", plan->minimum);
    printf("fits        %s%s%s\n", terminal_style(stdout, plan->fits ? TERMINAL_GREEN : TERMINAL_RED),
           plan->fits ? "yes" : "no", terminal_style(stdout, TERMINAL_PLAIN));
}

static json_t *plan_sizes(uint64_t bytes)
{
    return json_pack("{s:I, s:I}", "current", (json_int_t)bytes, "peak", (json_int_t)bytes);
}

static json_t *plan_side_to_json(const struct eps_plan_side *side)
{
    json_t *object = plan_sizes(side->bytes), *categories = json_object();

    for (size_t i = 0; i < side->n_terms; i++)
        json_object_set_new(categories, side->terms[i].category, plan_sizes(side->terms[i].bytes));
    json_object_set_new(object, "categories", categories);
    return object;
}

static json_t *kept_to_json(const struct eps_blocks *blocks)
{
    return json_pack("{s:i, s:s, s:s}", "kept", (int)blocks->n_kept, "kept_activations", blocks->kept.names,
                     "kept_activations_below", blocks->kept_below.names);
}

/* A list of what blocks that differ keep: an object for those that can keep the same, named by the lowest. */
static json_t *blocks_to_json(const struct eps_plan *plan)
{
    json_t *list = json_array();

    for (const struct eps_blocks *blocks = plan->blocks; blocks < plan->blocks + plan->n_blocks; blocks++) {
        json_t *object = json_pack("{s:s, s:i}", "lowest", blocks->lowest, "blocks", (int)blocks->n);
        json_object_update_new(object, kept_to_json(blocks));
        json_array_append_new(list, object);
    }
    return json_pack("{s:o}", "blocks", list);
}

static json_t *choice_to_json(const struct eps_plan *plan)
{
    json_t *object = json_pack("{s:i, s:s, s:i, s:i, s:b}", "microbatch", (int)plan->microbatch, "stash",
                               plan->host_stash ? "host" : "device", "inputs", (int)plan->n_inputs, "stored_inputs",
                               (int)plan->n_stored, "derives_inputs", plan->derives);

    json_object_update_new(object, plan->n_blocks == 1 ? kept_to_json(plan->blocks) : blocks_to_json(plan));
    json_object_update_new(object,
                           json_pack("{s:i, s:i, s:i, s:i, s:i, s:b, s:i, s:b}", "row_groups", (int)plan->n_groups,
                                     "weight_buffers", (int)plan->n_weight_buffers, "resident", (int)plan->n_resident,
                                     "sums", (int)plan->n_sums, "slots", (int)plan->n_slots, "one_pass_head",
                                     plan->one_pass, "head_tile", (int)plan->head_tile, "replay", plan->replays));
    return object;
}

static json_t *times_to_json(const struct eps_plan *plan)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "step", plan->step_ms, "compute", plan->compute_ms, "pull",
                     plan->pull_ms, "push", plan->push_ms, "stash", plan->stash_ms, "optimizer", plan->optimizer_ms,
                     "messages", plan->message_ms);
}

json_t *plan_to_json(const struct eps_plan *plan)
{
    json_t *workers = json_array(), *host = plan_side_to_json(&plan->host);
    char why[OPTIONS_TEXT];

    for (uint32_t i = 0; i < plan->n_workers; i++) {
        json_t *worker = plan_side_to_json(&plan->worker);
        json_object_set_new(worker, "id", json_integer(i + 1));
        json_object_set_new(worker, "device", json_string(plan->device));
        if (plan->worker.limit < UINT64_MAX)
            json_object_set_new(worker, "budget", json_integer((json_int_t)plan->worker.limit));
        json_array_append_new(workers, worker);
    }
    if (plan->host.limit < UINT64_MAX)
        json_object_set_new(host, "budget", json_integer((json_int_t)plan->host.limit));
    json_t *all =
        json_pack("{s:o, s:o, s:b, s:b, s:o, s:o, s:{s:I, s:I, s:I}, s:o, s:f, s:I, s:I, s:{s:I, s:I}}", "host", host,
                  "workers", workers, "assumed", !plan->measured, "fits", plan->fits, "why",
                  text_json(arguments_options(why, plan->why)), "choice", choice_to_json(plan), "bytes_per_step",
                  "down", (json_int_t)plan->down_bytes, "up", (json_int_t)plan->up_bytes, "stash",
                  (json_int_t)plan->stash_traffic, "ms", times_to_json(plan), "hiding_tokens", plan->hiding_tokens,
                  "minimum", (json_int_t)plan->minimum, "parameters", (json_int_t)plan->n_parameters, "disk",
                  "checkpoint", (json_int_t)plan->checkpoint_bytes, "checkpoints", (json_int_t)plan->n_checkpoints);

    assert(all); /* all finite: a profile's numbers are checked */
    if (plan->ignored)
        json_object_set_new(all, "ignored", json_string(plan->ignored));
    if (plan->adapter_rank)
        json_object_set_new(all, "trained", json_integer((json_int_t)(plan->n_parameters - plan->frozen.n_parameters)));
    else if (plan->options.freeze)
        json_object_set_new(all, "frozen",
                            json_pack("{s:I, s:I, s:I}", "parameters", (json_int_t)plan->frozen.n_parameters, "host",
                                      (json_int_t)plan->frozen.host_bytes, "device",
                                      (json_int_t)plan->frozen.device_bytes));
    if (plan->options.freeze_until)
        json_object_set_new(all, "thawed",
                            json_pack("{s:I, s:I}", "host", (json_int_t)plan->thawed.host_bytes, "device",
                                      (json_int_t)plan->thawed.device_bytes));
    return all;
}

static void plan_print_json(const struct eps_plan *plan)
{
    json_t *all = plan_to_json(plan);

    answer_write(stdout, all, 0);
    putchar('\n');
    json_decref(all);
}

struct question {
    bool minimum, find_depth, find_batch, timeline, json;
    struct hub hub;
    int argc; /* the command line */
    char **argv;
};

/* A published model is planned by its numbers, without a file; of another one of the hub its config is needed. */
static int plan_find_model(struct eps_train_options *options, struct question *q, const struct command *command)
{
    const struct eps_published *listed;

    for (size_t i = 0; options->model && (listed = eps_published(i)); i++)
        if (strcmp(options->model, listed->name) == 0)
            return -1;
    return hub_find(&q->hub, &options->model, HUB_NO_WEIGHTS, command);
}

static int plan_answer(const struct command *command, const struct eps_train_options *options, const struct question *q)
{
    struct eps_error error;
    struct eps_plan plan;
    uint64_t bytes = 0;
    uint32_t n = 0;
    int rc;

    if (q->minimum + q->find_depth + q->find_batch + (q->timeline || q->json) > 1)
        return arguments_fail(command, -EDOM,
                              "give only one of --minimum, --find-depth, --find-batch and (--timeline or --json)");
    if (q->find_batch && options->batch)
        return arguments_fail(command, -EDOM, "--find-batch finds what --batch would say: give only one of them");
    if (eps_approximate_is_any(options->approximate)) {
        if (q->minimum || q->find_depth || q->find_batch || q->timeline)
            return arguments_fail(command, -EDOM,
                                  "--approximate any compares whole plans: of other questions name one form");
        return plan_frontier(command, options, q->json);
    }
    if (q->timeline)
        return plan_timeline(command, options, q->json);
    if (!options->model && !q->minimum && !q->find_depth && !q->find_batch)
        return plan_table(command, options, q->json, q->argc, q->argv);
    rc = q->minimum      ? eps_plan_minimum(&bytes, options, &error)
         : q->find_depth ? eps_plan_depth(&n, options, &error)
         : q->find_batch ? eps_plan_batch(&n, options, &error)
                         : eps_plan(&plan, options, &error);
    if (rc)
        return arguments_fail(command, rc, error.text);
    if (q->minimum || q->find_depth || q->find_batch) {
        printf("%" PRIu64 "\n", q->minimum ? bytes : n);
        return 0;
    }
    if (q->json)
        plan_print_json(&plan);
    else
        print_plan(&plan, options);
    return plan.fits ? 0 : arguments_fail(command, 1, plan.why);
}

/* Returns -1 to continue, as arguments_parse. */
static int take_data(const struct command *command, struct eps_train_options *options, bool finds_batch)
{
    const uint32_t batch = options->batch;
    struct eps_error error;
    const int rc = eps_plan_data(options, &error);

    if (finds_batch)
        options->batch = batch;
    return rc ? arguments_fail(command, rc, error.text) : -1;
}

int command_plan(int argc, char **argv)
{
    struct question question = {.argc = argc, .argv = argv};
    struct eps_train_options asked = eps_train_defaults();
    struct table_options options = {.options = &asked};
    const struct argument own[] = {
        {"Answer", .kind = ARGUMENT_HEADING},
        {"--minimum", NULL, ARGUMENT_FLAG, &question.minimum,
         "print only the smallest sufficient --device-mem, in bytes"},
        {"--find-depth", NULL, ARGUMENT_FLAG, &question.find_depth,
         "print only the largest number of layers of this width that fits"},
        {"--find-batch", NULL, ARGUMENT_FLAG, &question.find_batch, "print only the largest batch that fits"},
        {"--timeline", NULL, ARGUMENT_FLAG, &question.timeline,
         "simulate a step: its time, the bottleneck, what each queue waits for, and what computes it; with --json an "
         "object:\n{\"fits\", \"why\", \"measured\", \"assumed\", \"step_ms\", \"tokens_per_s\", \"tflops\", "
         "\"binds\", "
         "\"device_waits_ms\",\n\"queues\": {\"down\", \"compute\", \"up\", \"optimizer\": {\"busy_ms\", \"share\", "
         "\"waits_ms\"}},\n\"paths\": [{\"kind\", \"path\", \"busy_ms\", \"share\" of computing, \"tflops\"}]}"},
        {"--json", NULL, ARGUMENT_FLAG, &question.json,
         "print an object, in bytes:\n"
         "{\"host\": {\"current\", \"peak\", \"categories\": {NAME: {\"current\", \"peak\"}}},\n"
         "\"workers\": [the same with \"id\", \"device\", \"budget\"], \"assumed\": are times not measured here, "
         "\"fits\", \"why\", \"choice\", "
         "\"bytes_per_step\": {\"down\", \"up\", \"stash\"}, \"ms\", \"hiding_tokens\", \"minimum\", \"parameters\",\n"
         "\"disk\": {\"checkpoint\": bytes of one, \"checkpoints\": at most at once}};\n"
         "with --freeze also \"frozen\": {\"parameters\", \"host\", \"device\"}: the bytes that it saves; with "
         "--freeze-until \"thawed\": {\"host\", \"device\"}: the bytes after it; with adapters \"trained\", the "
         "parameters of these. Without --model:\n"
         "{\"machine\": {\"cores\", \"host\": {\"bytes\", \"available\"}, \"devices\": [{\"name\", \"bytes\", "
         "\"available\",\n\"computes\", \"why\"}]}, \"rows\": [{\"model\", \"published\": {\"parameters\", \"config\", "
         "\"date\"}, \"trained\",\n\"commands\": {\"train\", \"plan\"}, \"plan\": the object above, or \"refusal\"}]}"},
        HUB_YES(&question.hub),
    };

    table_options_take(&options, EPS_COMMAND_PLAN);
    table_options_add(&options, own, sizeof own / sizeof *own);
    const struct command command = {
        "eps plan",
        "Predicts what a training run takes: memory to the byte, the planner's choice, transfers and time of a step, "
        "disk for checkpoints. Needs no daemon, weights, data or device; with --data it plans for what eps train "
        "chooses "
        "by them. Exits with 1 if training does not fit. Without --model: this machine, and of some published models "
        "which fit, trained whole, by adapters, and by adapters on a base in nf4, with the command that trains each.",
        options.arguments, options.n};
    int status = table_options_parse(&options, &command, argc, argv);
    if (status < 0)
        status = plan_find_model(&asked, &question, &command);
    if (status < 0)
        status = take_data(&command, &asked, question.find_batch);
    if (status < 0)
        status = plan_answer(&command, &asked, &question);
    table_options_free(&options);
    return status;
}
