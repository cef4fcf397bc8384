/* What a run is, before its first step. Two forms of the same facts: six lines, which a newcomer reads; or, with
 * --verbose, a line for each setting. A figure that the six lines have is not left out of the others, so that either is
 * whole. What on_disk and on_plan lack of the options is kept in struct account as text. */
#include "tools/account.h"

#include "tools/live.h"
#include "tools/screen/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* ---- Settings ---- */

static void start_print_workers(FILE *out, const struct eps_train_options *o, bool free_memory)
{
    const char *margin = strcmp(o->device, "cpu") == 0 ? "7/8 of free memory" : "31/32 of free memory";
    char text[24];

    if (o->connect)
        fprintf(out, "workers      those of the daemon %s, on %s\n", o->connect, o->device);
    else
        fprintf(out, "workers      %u on %s, device memory %s each%s%s\n", o->workers, o->device,
                eps_format_bytes(text, o->device_mem), free_memory ? ": " : "", free_memory ? margin : "");
}

/* As the help names it: with one part AdamA and AdamW are the same. */
static const char *start_optimizer(const struct eps_train_options *o)
{
    return o->optimizer == EPS_SGD ? "sgd" : o->optimizer == EPS_ADAMW || o->parts == 1 ? "adamw" : "adama";
}

static void start_print_optimizer(FILE *out, const struct eps_train_options *o)
{
    fprintf(out, "optimizer    %s, ", start_optimizer(o));
    if (o->optimizer == EPS_SGD)
        fprintf(out, "momentum %g%s", o->momentum, o->nesterov ? " (Nesterov's)" : "");
    else
        fprintf(out, "betas %g,%g, epsilon %g", o->beta1, o->beta2, o->epsilon);
    fprintf(out, ", weight decay %g%s\n", o->weight_decay, o->deterministic ? ", deterministic" : "");
    fprintf(out, "commit       %s", eps_commit_name(o->commit));
    if (!isnan(o->clip_norm))
        fprintf(out, ", gradient clipped to a norm of %g", o->clip_norm);
    if (!isnan(o->clip_update))
        fprintf(out, ", updates clipped to %g", o->clip_update);
    fprintf(out, "\nnumbers      %s%s, moments %s, gradients %s%s\n", text_number(o->precision), text_master(o->master),
            text_moments(o->moments), text_number(o->grad_dtype), o->sums == EPS_BF16 ? ", sums bf16" : "");
    if (o->approximate)
        fprintf(out, "approximate  %s: %s\n", o->approximate, eps_approximate_text(o->approximate));
}

static void start_print_rate(FILE *out, const struct eps_train_options *o)
{
    static const char *const schedules[] = {"default", "cosine", "linear", "constant", "inverse-sqrt", "step"};

    if (o->schedule == EPS_SCHEDULE_STEP)
        fprintf(out, "rate         %g, times %g after each of the steps %s", o->lr, o->lr_factor, o->lr_steps);
    else
        fprintf(out, "rate         %g %s %g, %s", o->lr,
                o->schedule == EPS_SCHEDULE_INVERSE_SQRT ? "to at least" : "to", o->min_lr, schedules[o->schedule]);
    fprintf(out, ", %" PRIu64 " step%s of warm-up\n", o->warmup, plural(o->warmup));
}

/* Where the held-out rows come from. */
static const char *start_held_out(const struct account *a, const struct eps_train_options *o)
{
    return o->eval_data                               ? o->eval_data
           : o->pack                                  ? "a tenth of the conversations, drawn by the seed"
           : *o->task_note && isnan(o->mask_fraction) ? "a tenth of the rows, drawn by the seed"
           : a->verbose                               ? "the last 1 % of the data, at least one sequence"
                                                      : "the last 1 % of it";
}

/* "30 of 16 sequences of 128 tokens": rows are as long as they are, and images of one size. */
static void start_print_steps(FILE *out, const struct eps_train_options *o)
{
    const bool whole = *o->task_note;

    if (o->teaches == EPS_OF_IMAGES) {
        fprintf(out, "steps        %" PRIu64 " of %u images", o->steps, o->batch);
        return;
    }
    fprintf(out, "steps        %" PRIu64 " of %u %s%s of %s%u tokens", o->steps, o->batch, whole ? "row" : "sequence",
            o->batch == 1 ? "" : "s", whole ? "at most " : "", o->seq);
}

/* Of why it was chosen, six lines have room for the first reason. */
static void start_print_model(FILE *out, const struct account *a, const struct eps_train_options *o)
{
    const size_t n = a->verbose ? strlen(o->model_note) : strcspn(o->model_note, ",");
    char count[24];

    fprintf(out, "model        %s%s%.*s, %s parameters", o->model, n > 0 ? ", " : "", (int)n, o->model_note,
            text_count(count, a->n_parameters));
}

static void start_print_trained(FILE *out, const struct eps_train_options *o)
{
    if (o->lora)
        fprintf(out, "adapters     %s%s%s\n", o->lora, o->base > EPS_BASE_FULL ? ", the base" : "", text_base(o->base));
    if (o->freeze)
        fprintf(out, "frozen       %s%s", o->freeze, text_base(o->base));
    if (o->freeze && o->freeze_until)
        fprintf(out, ", until step %" PRIu64 " is done", o->freeze_until);
    if (o->freeze)
        fputc('\n', out);
    if (o->sparse)
        fprintf(out, "sparse       %s, of blocks' matrices\n", o->sparse);
    if (o->drop_layers > 0)
        fprintf(out, "dropped      blocks, each with probability %g in each step\n", o->drop_layers);
}

static void start_print_settings(FILE *out, const struct account *a, const struct eps_train_options *o)
{
    start_print_model(out, a, o);
    fputc('\n', out);
    start_print_trained(out, o);
    fprintf(out, "data         %s%s, %s order, seed %" PRIu64 "\n", o->data[0], o->n_data > 1 ? " and more" : "",
            o->order == EPS_SEQUENTIAL ? "sequential" : "shuffled", o->seed);
    if (!isnan(o->mask_fraction))
        fprintf(out, "masks        %g %% of the tokens, anew in each epoch\n", 100 * o->mask_fraction);
    if (o->task)
        fprintf(out, "task         %s: %s\n", o->task == EPS_REGRESS ? "regress" : "classify", o->task_note);
    else if (*o->task_note)
        fprintf(out, "rows         %s\n", o->task_note);
    fprintf(out, "held out     %s\n", start_held_out(a, o));
    start_print_steps(out, o);
    fprintf(out, ", in %u part%s\n", o->parts, plural(o->parts));
    start_print_optimizer(out, o);
    start_print_rate(out, o);
    start_print_workers(out, o, a->free_memory);
    fprintf(out, "checkpoints  %s\n", o->no_save ? "none: --no-save" : a->saves);
    fprintf(out, "out          %s\n", o->out);
}

/* ---- The same in three lines ---- */

/* What of the model is trained, if that is not all. */
static void start_print_part(FILE *out, const struct eps_train_options *o)
{
    if (o->lora)
        fprintf(out, "; adapters %s%s%s", o->lora, o->base > EPS_BASE_FULL ? ", the base" : "", text_base(o->base));
    else if (o->freeze)
        fprintf(out, "; frozen %s%s", o->freeze, text_base(o->base));
    if (o->freeze_until)
        fprintf(out, ", until step %" PRIu64 " is done", o->freeze_until);
    if (o->sparse)
        fprintf(out, "; sparse %s", o->sparse);
}

static void start_print_brief(FILE *out, const struct account *a, const struct eps_train_options *o)
{
    start_print_model(out, a, o);
    start_print_part(out, o);
    fprintf(out, "\ndata         %s", o->data[0]);
    if (o->n_data > 1)
        fprintf(out, " and %zu more", o->n_data - 1);
    if (*o->task_note)
        fprintf(out, ": %s", o->task_note);
    if (o->eval_data || !*o->task_note)
        fprintf(out, "; held out: %s", start_held_out(a, o));
    fputc('\n', out);
    start_print_steps(out, o);
    if (o->schedule == EPS_SCHEDULE_STEP)
        fprintf(out, "; rate %g, times %g after steps %s", o->lr, o->lr_factor, o->lr_steps);
    else if (o->schedule == EPS_SCHEDULE_CONSTANT)
        fprintf(out, "; rate %g", o->lr);
    else
        fprintf(out, "; rate %g to %g", o->lr, o->min_lr);
    fprintf(out, "; %s, %s\n", start_optimizer(o), text_number(o->precision));
    if (o->no_save) /* then account_disk is not called */
        fprintf(out, "saves        nothing (--no-save); steps in %s\n", o->out);
}

/* "every 3 steps, and every 10 minutes, the last 2 stay"; of six lines "every 3 steps" */
static void start_describe_saves(char *out, size_t cap, const struct account *a, const struct eps_train_options *o)
{
    int n = o->save_every == 0 || o->save_every >= o->steps
                ? snprintf(out, cap, "at the end")
                : snprintf(out, cap, "every %" PRIu64 " step%s", o->save_every, plural(o->save_every));

    if (!a->verbose)
        return;
    if (o->save_every > 0 && o->save_minutes > 0)
        n += snprintf(out + n, cap - (size_t)n, ", and every %g minute%s", o->save_minutes,
                      o->save_minutes == 1 ? "" : "s");
    if (o->keep > 0)
        snprintf(out + n, cap - (size_t)n, ", the last %u stay", o->keep);
}

void account_start(struct account *a, const struct eps_train_options *o, uint64_t n_parameters)
{
    struct account_lines text;
    FILE *out = account_lines_open(&text);

    if (a->began_ms == 0)
        a->began_ms = live_now_ms();
    snprintf(a->out, sizeof a->out, "%s", o->out);
    snprintf(a->model, sizeof a->model, "%s", o->model);
    if (o->connect)
        snprintf(a->workers, sizeof a->workers, "workers of %.60s, on %.20s", o->connect, o->device);
    else
        snprintf(a->workers, sizeof a->workers, "%u worker%s on %.20s", o->workers, plural(o->workers), o->device);
    start_describe_saves(a->saves, sizeof a->saves, a, o);
    a->n_steps = o->steps;
    a->n_parameters = n_parameters;
    a->teaches = o->teaches, a->task = o->task;
    a->smoothed = o->label_smoothing > 0;
    if (!out)
        return;
    (a->verbose ? start_print_settings : start_print_brief)(out, a, o);
    account_lines_print(out, &text);
}

void account_disk(const struct account *a, uint64_t checkpoint_bytes, uint64_t n_most, uint64_t free_bytes)
{
    char each[24], most[24], room[24];
    struct account_lines text;
    FILE *out = account_lines_open(&text);

    if (!out)
        return;
    eps_format_bytes(each, checkpoint_bytes);
    eps_format_bytes(most, n_most * checkpoint_bytes);
    if (!a->verbose) {
        fprintf(out, "saves        %s, %s: %s each", a->out, a->saves, each);
        if (n_most > 1)
            fprintf(out, ", at most %s", most);
    } else {
        fprintf(out, "disk         %s a checkpoint", each);
        if (n_most > 1)
            fprintf(out, ", at most %" PRIu64 " at once: %s", n_most, most);
        if (free_bytes < UINT64_MAX)
            fprintf(out, "; %s free", eps_format_bytes(room, free_bytes));
    }
    fputc('\n', out);
    account_lines_print(out, &text);
}

/* ---- The plan ---- */

/* "device 47 MiB of 64 MiB: workspace 20 MiB, stash 8 MiB, ...": the largest terms. */
static void start_print_side(FILE *out, const struct eps_memory *side)
{
    enum { NAMED = 4 };
    char bytes[24];
    uint64_t left = side->planned, told = 0; /* bit i: row i was printed */

    fprintf(out, "%s %s", side->worker ? "device" : "host", eps_format_bytes(bytes, side->planned));
    if (side->budget)
        fprintf(out, " of %s", eps_format_bytes(bytes, side->budget));
    for (unsigned n = 0; n < NAMED && left > 0; n++) {
        size_t most = side->n_rows;
        for (size_t i = 0; i < side->n_rows && i < 64; i++)
            if (!(told >> i & 1) && (most == side->n_rows || side->rows[i].planned > side->rows[most].planned))
                most = i;
        if (most == side->n_rows)
            break;
        told |= (uint64_t)1 << most;
        left -= side->rows[most].planned;
        fprintf(out, "%s %s %s", n ? "," : ":", side->rows[most].category,
                eps_format_bytes(bytes, side->rows[most].planned));
    }
    fprintf(out, "%s\n", left > 0 ? ", ..." : "");
}

/* Some of a block's activations: neither all nor none. */
static bool start_is_part(const struct eps_kept *kept)
{
    return strcmp(kept->names, "all") != 0 && strcmp(kept->names, "nothing") != 0;
}

static bool start_keeps_part(const struct eps_blocks *blocks)
{
    return (blocks->n_kept > 0 && start_is_part(&blocks->kept)) ||
           (blocks->n_kept < blocks->n && start_is_part(&blocks->kept_below));
}

/* "activations kept: 8 of 8 blocks", of all classes of blocks. Nothing of a model without blocks. */
static void start_print_kept(FILE *out, const struct eps_choice *choice)
{
    uint32_t n = 0, n_kept = 0;
    bool parts = false;

    for (uint32_t i = 0; i < choice->n_blocks; i++) {
        n += choice->blocks[i].n;
        n_kept += choice->blocks[i].n_kept;
        parts |= start_keeps_part(&choice->blocks[i]);
    }
    if (n > 0)
        fprintf(out, "activations kept: %u of %u block%s%s", n_kept, n, plural(n), parts ? ", in part" : "");
}

/* What blocks of each class keep, a line each, where the sum above does not say it. */
static void start_print_classes(FILE *out, const struct eps_choice *choice)
{
    for (const struct eps_blocks *b = choice->blocks; b < choice->blocks + choice->n_blocks; b++) {
        const bool parts = start_keeps_part(b);
        if (choice->n_blocks == 1 && !parts)
            return;
        fprintf(out, "               %u of %u", b->n_kept, b->n);
        if (choice->n_blocks > 1)
            fprintf(out, " like %s", b->lowest);
        if (parts && b->n_kept > 0)
            fprintf(out, ": %s", b->kept.names);
        if (parts && b->n_kept < b->n)
            fprintf(out, "; the others: %s", b->kept_below.names);
        fputc('\n', out);
    }
}

static void start_print_plan(FILE *out, const struct eps_choice *choice)
{
    fprintf(out, "plan         micro-batches of %u", choice->microbatch);
    if (choice->group_parts > 0)
        fprintf(out, ", row groups of %u part%s", choice->group_parts, plural(choice->group_parts));
    fprintf(out, "\n             ");
    if (choice->n_blocks > 0) {
        start_print_kept(out, choice);
        fputc('\n', out);
        start_print_classes(out, choice);
        fprintf(out, "             ");
    }
    fprintf(out, "activation checkpoints: ");
    if (choice->n_stored < choice->n_inputs)
        fprintf(out, "%u of %u layers, %s", choice->n_stored, choice->n_inputs,
                choice->derives ? "the others derived again, " : "");
    fprintf(out, "on the %s\n", choice->host_stash ? "host" : "device");
    fprintf(out, "             weights: %u unit%s resident%s, %u buffer%s%s\n", choice->n_resident,
            plural(choice->n_resident), choice->whole_head ? ", the head whole" : "", choice->n_weight_buffers,
            plural(choice->n_weight_buffers),
            choice->sparse_singly ? "; sparse ones in place one matrix at a time" : "");
    fprintf(out, "             %s\n", choice->replay);
}

/* The same in one line: what the budget has decided. */
static void start_print_plan_brief(FILE *out, const struct eps_choice *choice)
{
    fprintf(out, "plan         micro-batches of %u; ", choice->microbatch);
    start_print_kept(out, choice);
    fprintf(out, "%s%u unit%s resident", choice->n_blocks > 0 ? "; " : "", choice->n_resident,
            plural(choice->n_resident));
    if (choice->host_stash)
        fprintf(out, "; activation checkpoints on the host");
    if (choice->group_parts > 0)
        fprintf(out, "; row groups of %u part%s", choice->group_parts, plural(choice->group_parts));
    fputc('\n', out);
}

static void start_print_memory(FILE *out, const struct account *a, const struct eps_memory *host,
                               const struct eps_memory *device)
{
    char text[24];

    fprintf(out, "memory       device %s", eps_format_bytes(text, device->planned));
    if (device->budget)
        fprintf(out, " of %s", eps_format_bytes(text, device->budget));
    fprintf(out, ", host %s", eps_format_bytes(text, host->planned));
    if (host->budget)
        fprintf(out, " of %s", eps_format_bytes(text, host->budget));
    fprintf(out, "; %s\n", a->workers);
}

void account_plan(struct account *a, const struct eps_choice *choice, const struct eps_memory *host,
                  const struct eps_memory *device)
{
    struct account_lines text;
    FILE *out = device->planned > 0 ? account_lines_open(&text) : NULL;

    a->predicted_ms = choice->predicted_ms;
    a->predicted_compute_ms = choice->predicted_compute_ms;
    a->predicted_optimizer_ms = choice->predicted_optimizer_ms;
    if (!out)
        return;
    if (a->verbose) {
        start_print_plan(out, choice);
        fprintf(out, "planned      ");
        start_print_side(out, device);
        fprintf(out, "             ");
        start_print_side(out, host);
    } else {
        start_print_plan_brief(out, choice);
        start_print_memory(out, a, host, device);
    }
    account_lines_print(out, &text);
}
