/* A report is not worth a failure: without memory it is left out. Files are looked for before they are named, and a
 * command's names are quoted, so that it can be pasted into a shell. */
#include "tools/account.h"

#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LABEL = 13 }; /* columns of "loss         " */

/* Collects lines in memory before they are printed. */
struct lines {
    char *text;
    size_t n;
};

/* NULL: no memory; then nothing is reported. */
static FILE *account_open_lines(struct lines *lines)
{
    *lines = (struct lines){NULL, 0};
    return open_memstream(&lines->text, &lines->n);
}

/* Closes out and prints its lines. Each is a label and a text, which is wrapped to the terminal's width. */
static void print_lines(FILE *out, struct lines *lines)
{
    const char *colour = terminal_style(stdout, TERMINAL_LABEL), *plain = terminal_style(stdout, TERMINAL_PLAIN);

    fclose(out);
    for (char *line = lines->text, *end; line && *line; line = end + 1) {
        end = line + strcspn(line, "\n");
        if (!*end) /* each line ends with one */
            break;
        *end = 0;
        const size_t label = strlen(line) < LABEL ? strlen(line) : LABEL;
        printf("%s%.*s%s", colour, (int)label, line, plain);
        terminal_wrap(stdout, line + label, LABEL, LABEL, terminal_columns(stdout));
        putchar('\n');
    }
    free(lines->text);
    fflush(stdout);
}

/* free_memory: --device-mem was left unset. */
static void print_workers(FILE *out, const struct eps_train_options *o, bool free_memory)
{
    const char *margin = strcmp(o->device, "cpu") == 0 ? "7/8 of free memory" : "31/32 of free memory";
    char text[24];

    if (o->connect)
        fprintf(out, "workers      those of the daemon %s, on %s\n", o->connect, o->device);
    else
        fprintf(out, "workers      %u on %s, device memory %s each%s%s\n", o->workers, o->device,
                eps_format_bytes(text, o->device_mem), free_memory ? ": " : "", free_memory ? margin : "");
}

static void print_optimizer(FILE *out, const struct eps_train_options *o)
{
    const bool adamw = o->optimizer == EPS_ADAMW || o->parts == 1; /* with one part they are the same */

    if (o->optimizer == EPS_SGD)
        fprintf(out, "optimizer    sgd, momentum %g%s", o->momentum, o->nesterov ? " (Nesterov's)" : "");
    else
        fprintf(out, "optimizer    %s, betas %g,%g, epsilon %g", adamw ? "adamw" : "adama", o->beta1, o->beta2,
                o->epsilon);
    fprintf(out, ", weight decay %g%s\n", o->weight_decay, o->deterministic ? ", deterministic" : "");
    fprintf(out, "commit       %s", eps_commit_name(o->commit));
    if (!isnan(o->clip_norm))
        fprintf(out, ", gradient clipped to a norm of %g", o->clip_norm);
    if (!isnan(o->clip_update))
        fprintf(out, ", updates clipped to %g", o->clip_update);
    fprintf(out, "\nnumbers      %s%s, moments %s, gradients %s%s\n", text_number(o->precision), text_master(o->master),
            text_number(o->moments), text_number(o->grad_dtype), o->sums == EPS_BF16 ? ", sums bf16" : "");
    if (o->approximate)
        fprintf(out, "approximate  %s: %s\n", o->approximate, eps_approximate_text(o->approximate));
}

void account_options(const struct eps_train_options *o, uint64_t n_parameters, bool free_memory)
{
    static const char *const schedules[] = {"default", "cosine", "linear", "constant", "inverse-sqrt", "step"};
    const bool whole = *o->task_note, drawn = whole && isnan(o->mask_fraction);
    char count[24];
    struct lines text;
    FILE *out = account_open_lines(&text);

    if (!out)
        return;
    fprintf(out, "model        %s%s%s, %s parameters\n", o->model, *o->model_note ? ", " : "", o->model_note,
            text_count(count, n_parameters));
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
    fprintf(out, "data         %s%s, %s order, seed %" PRIu64 "\n", o->data[0], o->n_data > 1 ? " and more" : "",
            o->order == EPS_SEQUENTIAL ? "sequential" : "shuffled", o->seed);
    if (!isnan(o->mask_fraction))
        fprintf(out, "masks        %g %% of the tokens, anew in each epoch\n", 100 * o->mask_fraction);
    if (o->task)
        fprintf(out, "task         %s: %s\n", o->task == EPS_REGRESS ? "regress" : "classify", o->task_note);
    else if (*o->task_note)
        fprintf(out, "rows         %s\n", o->task_note);
    fprintf(out, "held out     %s\n",
            o->eval_data ? o->eval_data
            : o->pack    ? "a tenth of the conversations, drawn by the seed"
            : drawn      ? "a tenth of the rows, drawn by the seed"
                         : "the last 1 % of the data, at least one sequence");
    fprintf(out, "steps        %" PRIu64 " of %u %s of %s%u tokens, in %u part%s\n", o->steps, o->batch,
            whole ? "rows" : "sequences", whole ? "at most " : "", o->seq, o->parts, o->parts == 1 ? "" : "s");
    print_optimizer(out, o);
    if (o->schedule == EPS_SCHEDULE_STEP)
        fprintf(out, "rate         %g, times %g after each of the steps %s", o->lr, o->lr_factor, o->lr_steps);
    else
        fprintf(out, "rate         %g %s %g, %s", o->lr,
                o->schedule == EPS_SCHEDULE_INVERSE_SQRT ? "to at least" : "to", o->min_lr, schedules[o->schedule]);
    fprintf(out, ", %" PRIu64 " step%s of warm-up\n", o->warmup, o->warmup == 1 ? "" : "s");
    print_workers(out, o, free_memory);
    fprintf(out, "checkpoints  ");
    if (o->no_save)
        fprintf(out, "none: --no-save");
    else if (o->save_every == 0 || o->save_every >= o->steps)
        fprintf(out, "at the end");
    else
        fprintf(out, "every %" PRIu64 " step%s", o->save_every, o->save_every == 1 ? "" : "s");
    if (o->save_every > 0 && o->save_minutes > 0)
        fprintf(out, ", and every %g minute%s", o->save_minutes, o->save_minutes == 1 ? "" : "s");
    if (o->keep > 0 && !o->no_save)
        fprintf(out, ", the last %u stay", o->keep);
    fprintf(out, "\nout          %s\n", o->out);
    print_lines(out, &text);
}

void account_disk(uint64_t checkpoint_bytes, uint64_t n_most, uint64_t free_bytes)
{
    const uint64_t all = n_most * checkpoint_bytes;
    char each[24], most[24], room[24];
    struct lines text;
    FILE *out = account_open_lines(&text);

    if (!out)
        return;
    fprintf(out, "disk         %s a checkpoint", eps_format_bytes(each, checkpoint_bytes));
    if (n_most > 1)
        fprintf(out, ", at most %" PRIu64 " at once: %s", n_most, eps_format_bytes(most, all));
    if (free_bytes < UINT64_MAX)
        fprintf(out, "; %s free", eps_format_bytes(room, free_bytes));
    fputc('\n', out);
    print_lines(out, &text);
}

/* Prints "device 47 MiB of 64 MiB: workspace 20 MiB, stash 8 MiB, ...": the largest terms of the plan. */
static void print_planned(FILE *out, const struct eps_memory *side)
{
    enum { NAMED = 4 };
    char bytes[24], budget[24];
    const uint64_t like = text_unit(side->planned, side->budget);
    uint64_t left = side->planned, told = 0; /* bit i: row i was printed */

    fprintf(out, "%s %s", side->worker ? "device" : "host", eps_format_bytes_like(bytes, side->planned, like));
    if (side->budget)
        fprintf(out, " of %s", eps_format_bytes_like(budget, side->budget, like));
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
                eps_format_bytes_like(bytes, side->rows[most].planned, like));
    }
    fprintf(out, "%s\n", left > 0 ? ", ..." : "");
}

/* like: " like h.0" if the model has others. */
static void account_print_kept(FILE *out, const struct eps_blocks *blocks, const char *like)
{
    const bool all = strcmp(blocks->kept.names, "all") == 0, rest = strcmp(blocks->kept_below.names, "nothing") == 0;

    if (blocks->n_kept == 0 || (all && rest)) {
        fprintf(out, "activations of %u of %u blocks%s kept", blocks->n_kept, blocks->n, like);
        return;
    }
    fprintf(out, "activations kept of %u of %u blocks%s: %s", blocks->n_kept, blocks->n, like, blocks->kept.names);
    if (blocks->n_kept < blocks->n && !rest)
        fprintf(out, "; of the others: %s", blocks->kept_below.names);
}

static void print_blocks(FILE *out, const struct eps_choice *choice)
{
    for (uint32_t i = 0; i < choice->n_blocks; i++) {
        char like[48] = "";
        if (choice->n_blocks > 1)
            snprintf(like, sizeof like, " like %s", choice->blocks[i].lowest);
        fprintf(out, "%s", i ? "; " : "");
        account_print_kept(out, &choice->blocks[i], like);
    }
}

void account_plan(const struct eps_choice *choice, const struct eps_memory *host, const struct eps_memory *device)
{
    struct lines text;
    FILE *out = device->planned > 0 ? account_open_lines(&text) : NULL;

    if (!out)
        return;
    fprintf(out, "plan         micro-batches of %u, ", choice->microbatch);
    if (choice->group_parts > 0)
        fprintf(out, "row groups of %u part%s, ", choice->group_parts, choice->group_parts > 1 ? "s" : "");
    fprintf(out, "activation checkpoints ");
    if (choice->n_stored < choice->n_inputs)
        fprintf(out, "of %u of %u layers%s ", choice->n_stored, choice->n_inputs,
                choice->derives ? ", the others derived again," : "");
    fprintf(out, "on the %s, ", choice->host_stash ? "host" : "device");
    print_blocks(out, choice);
    fprintf(out, ", %u weight buffer%s, %u unit%s resident%s%s, %s\n", choice->n_weight_buffers,
            choice->n_weight_buffers == 1 ? "" : "s", choice->n_resident, choice->n_resident == 1 ? "" : "s",
            choice->whole_head ? ", the head whole" : "",
            choice->sparse_singly ? ", sparse weights in place one matrix at a time" : "", choice->replay);
    fprintf(out, "planned      ");
    print_planned(out, device);
    fprintf(out, "             ");
    print_planned(out, host);
    print_lines(out, &text);
}

/* True if a file of the run exists; its directory may have been removed or moved. */
static bool exists(const struct account *a, const char *name)
{
    char path[sizeof a->out + 64];

    snprintf(path, sizeof path, "%s/%s", a->out, name);
    return access(path, F_OK) == 0;
}

/* Prints the run's existing files and their purpose; the newest checkpoint may be older than the last step. */
static void print_files(const struct account *a)
{
    char name[4096], directory[4 * sizeof a->out]; /* ready to paste into a shell */
    char step[32];
    const char *const eps = eps_quote(name, sizeof name, program_invocation_name);
    const char *const out = eps_quote(directory, sizeof directory, a->out);
    const uint64_t saved = a->saved;

    if (!exists(a, "metrics.jsonl")) {
        printf("files        no longer in %s: it was moved or removed\n", a->out);
        return;
    }
    if (saved == UINT64_MAX) {
        printf("files        steps in %s/metrics.jsonl\n", a->out);
        return;
    }
    snprintf(step, sizeof step, "step-%" PRIu64, saved);
    printf("files        weights in %s/step-%" PRIu64 ", steps in %s/metrics.jsonl\n", a->out, saved, a->out);
    if (exists(a, "best"))
        printf("             the lowest held-out loss: weights in %s/best\n", a->out);
    if (saved < a->n_steps && !a->complete)
        printf("next         %s train --resume %s\n", eps, out);
    else
        printf("next         %s %s --model %s/%s%s\n"
               "             %s train --resume %s --steps %" PRIu64 "\n",
               eps, a->silent ? "eval" : "generate", out, exists(a, "latest/config.json") ? "latest" : step,
               a->silent ? " --data FILE" : "", eps, out, 2 * saved);
}

static void print_against(FILE *out, uint64_t peak, uint64_t planned)
{
    char text[24];

    if (peak == planned)
        fprintf(out, " (as planned)\n");
    else if (planned > 0)
        fprintf(out, " (%s planned)\n", eps_format_bytes_like(text, planned, peak));
    else
        fputc('\n', out);
}

/* A measured profile that is this far off no longer tells of the machine, or of its load. */
static const double most_off = 0.15;

/* "; a step took 120 ms, 100 predicted: ..." if they differ by more, over enough steps; and which line did. */
static void print_surprise(FILE *out, const struct account *a, uint64_t n)
{
    enum { FEW = 5 };
    const double each = a->ms / (double)n, optimizer = a->optimizer_ms / (double)n;

    if (n < FEW || a->predicted_ms <= 0 || fabs(each / a->predicted_ms - 1) <= most_off)
        return;
    fprintf(out, "; a step took %.4g ms, where %.4g were predicted from what eps bench measured here: ", each,
            a->predicted_ms);
    if (fabs(optimizer - a->predicted_optimizer_ms) > most_off * a->predicted_optimizer_ms)
        fprintf(out, "the optimizer worked for %.4g of them, where %.4g were predicted", optimizer,
                a->predicted_optimizer_ms);
    else
        fprintf(out,
                "the optimizer worked for %.4g of them, about as predicted, so it was the device, of which %.4g were "
                "predicted, or its link",
                optimizer, a->predicted_compute_ms);
}

/* Loss and speed of the steps that were run. */
static void print_steps(FILE *out, const struct account *a)
{
    const uint64_t n = a->last - a->first;

    if (n > 0)
        fprintf(out, "loss         %.4f at step %" PRIu64, a->loss, a->last);
    if (!isnan(a->after))
        fprintf(out, n > 0 ? "; held out %.4f%s" : "loss         held out %.4f%s", a->after,
                isnan(a->before) ? "" : ", ");
    if (!isnan(a->before))
        fprintf(out, "%.4f before the first step", a->before);
    for (size_t i = 0; i < a->n_scores; i++)
        fprintf(out, "%s%s %.4f", i ? ", " : "\nscores       ", a->scores[i].name, a->scores[i].value);
    if (n > 0) {
        fprintf(out, "\nspeed        %.0f %s/s over %" PRIu64 " step%s",
                a->ms > 0 ? a->tokens * 1000 / a->ms / (a->pixels ? a->pixels : 1) : 0, a->pixels ? "images" : "tokens",
                n, n == 1 ? "" : "s");
        print_surprise(out, a, n);
    }
    fputc('\n', out);
    if (a->n_skipped > 0)
        fprintf(out, "skipped      %" PRIu64 " of these steps, whose gradient was not finite\n", a->n_skipped);
}

void account_end(const struct account *a)
{
    const uint64_t like = text_unit(a->device_peak, a->device_budget);
    char peak[24], budget[24], host[24];
    struct lines text;
    FILE *out = account_open_lines(&text);

    if (!out)
        return;
    print_steps(out, a);
    fprintf(out, "memory       device %s of %s at most", eps_format_bytes_like(peak, a->device_peak, like),
            eps_format_bytes_like(budget, a->device_budget, like));
    print_against(out, a->device_peak, a->device_planned);
    fprintf(out, "             host %s", eps_format_bytes(host, a->host_peak));
    print_against(out, a->host_peak, a->host_planned);
    putchar('\n'); /* above the lines, which are still in memory */
    print_lines(out, &text);
    print_files(a);
}
