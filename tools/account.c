#include "tools/account.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* free_memory: nobody said how much. */
static void print_workers(const struct eps_train_options *o, bool free_memory)
{
    const char *margin = strcmp(o->device, "cpu") == 0 ? "an eighth" : "a 32nd";
    char text[24];

    if (o->connect)
        printf("workers      those of the daemon %s, on %s\n", o->connect, o->device);
    else
        printf("workers      %u on %s, device memory %s each%s%s\n", o->workers, o->device,
               eps_format_bytes(text, o->device_mem), free_memory ? ": what is free but a margin of " : "",
               free_memory ? margin : "");
}

static void print_optimizer(const struct eps_train_options *o)
{
    static const char *const numbers[] = {"default", "fp32", "bf16"};

    printf("optimizer    %s, betas %g,%g, epsilon %g, weight decay %g%s\n",
           o->optimizer == EPS_ADAMW ? "adamw" : "adama", o->beta1, o->beta2, o->epsilon, o->weight_decay,
           o->deterministic ? ", deterministic" : "");
    printf("commit       %s", o->commit == EPS_FENCED ? "fenced" : "eager");
    if (!isnan(o->clip_norm))
        printf(", gradient clipped to a norm of %g", o->clip_norm);
    if (!isnan(o->clip_update))
        printf(", updates clipped to %g", o->clip_update);
    printf("\nnumbers      %s, moments %s, gradients %s\n", numbers[o->precision], numbers[o->moments],
           numbers[o->grad_dtype]);
}

void account_options(const struct eps_train_options *o, uint64_t n_parameters, bool free_memory)
{
    static const char *const schedules[] = {"default", "cosine", "linear", "constant"};

    printf("model        %s%s%s, %" PRIu64 " parameters\n", o->model, *o->model_note ? ", " : "", o->model_note,
           n_parameters);
    printf("data         %s%s, %s order, seed %" PRIu64 "\n", o->data[0], o->n_data > 1 ? " and more" : "",
           o->order == EPS_SEQUENTIAL ? "sequential" : "shuffled", o->seed);
    printf("held out     %s\n", o->eval_data ? o->eval_data : "the end of the data: 1 %, at least a row");
    printf("steps        %" PRIu64 " of %u rows of %u tokens, in %u part%s\n", o->steps, o->batch, o->seq, o->parts,
           o->parts == 1 ? "" : "s");
    print_optimizer(o);
    printf("rate         %g to %g, %s, %" PRIu64 " steps of warm-up\n", o->lr, o->min_lr, schedules[o->schedule],
           o->warmup);
    print_workers(o, free_memory);
    printf("checkpoints  ");
    if (o->save_every == 0 || o->save_every >= o->steps)
        printf("at the end");
    else
        printf("every %" PRIu64 " step%s", o->save_every, o->save_every == 1 ? "" : "s");
    if (o->keep > 0)
        printf(", the last %u stay", o->keep);
    printf("\nout          %s\n", o->out);
    fflush(stdout);
}

/* "device 47 MiB of 64 MiB: workspace 20 MiB, stash 8 MiB, ...": the largest terms of what is planned. */
static void print_planned(const struct eps_memory *side)
{
    enum { NAMED = 4 };
    char bytes[24], budget[24];
    uint64_t left = side->planned, told = 0; /* bit i: row i */

    printf("%s %s", side->worker ? "device" : "host", eps_format_bytes(bytes, side->planned));
    if (side->budget)
        printf(" of %s", eps_format_bytes(budget, side->budget));
    for (unsigned n = 0; n < NAMED && left > 0; n++) {
        size_t most = side->n_rows;
        for (size_t i = 0; i < side->n_rows && i < 64; i++)
            if (!(told >> i & 1) && (most == side->n_rows || side->rows[i].planned > side->rows[most].planned))
                most = i;
        if (most == side->n_rows)
            break;
        told |= (uint64_t)1 << most;
        left -= side->rows[most].planned;
        printf("%s %s %s", n ? "," : ":", side->rows[most].category, eps_format_bytes(bytes, side->rows[most].planned));
    }
    printf("%s\n", left > 0 ? ", ..." : "");
}

void account_plan(const struct eps_choice *choice, const struct eps_memory *host, const struct eps_memory *device)
{
    if (device->planned == 0)
        return;
    printf("plan         %u row%s at a time, ", choice->microbatch, choice->microbatch == 1 ? "" : "s");
    printf("stash on the %s, %u of %u blocks kept, %u weight buffer%s, %u unit%s resident%s\n",
           choice->host_stash ? "host" : "device", choice->n_kept, choice->n_blocks, choice->n_weight_buffers,
           choice->n_weight_buffers == 1 ? "" : "s", choice->n_resident, choice->n_resident == 1 ? "" : "s",
           choice->whole_head ? ", the head whole" : "");
    printf("planned      ");
    print_planned(device);
    printf("             ");
    print_planned(host);
    fflush(stdout);
}

/* Whether a file of the run is where it should be: the directory may have been removed, or moved. */
static bool stands(const struct account *a, const char *name)
{
    char path[sizeof a->out + 64];

    snprintf(path, sizeof path, "%s/%s", a->out, name);
    return access(path, F_OK) == 0;
}

/* What stands, which need not be the last step's, and what it is good for. */
static void print_files(const struct account *a)
{
    const char *const eps = program_invocation_name; /* to be pasted: as it was called this time */
    const uint64_t saved = a->saved;

    if (!stands(a, "metrics.jsonl")) {
        printf("files        no longer in %s: it was moved or removed\n", a->out);
        return;
    }
    if (saved == UINT64_MAX) {
        printf("files        steps in %s/metrics.jsonl\n", a->out);
        return;
    }
    printf("files        weights in %s/step-%" PRIu64 ", steps in %s/metrics.jsonl\n", a->out, saved, a->out);
    if (saved < a->n_steps)
        printf("next         %s train --resume %s\n", eps, a->out);
    else
        printf("next         %s generate --model %s/latest\n"
               "             %s train --resume %s --steps %" PRIu64 "\n",
               eps, a->out, eps, a->out, 2 * saved);
}

static void print_against(uint64_t peak, uint64_t planned)
{
    char text[24];

    if (peak == planned)
        printf(" (as planned)");
    else if (planned > 0)
        printf(" (%s planned)", eps_format_bytes(text, planned));
}

void account_end(const struct account *a)
{
    char peak[24], budget[24], host[24];

    printf("\nloss         %.4f at step %" PRIu64, a->loss, a->last);
    if (!isnan(a->after))
        printf("; held out %.4f%s", a->after, isnan(a->before) ? "" : ", ");
    if (!isnan(a->before))
        printf("%.4f before the first step", a->before);
    putchar('\n');
    printf("speed        %.0f tokens/s over %" PRIu64 " step%s\n", a->ms > 0 ? a->tokens * 1000 / a->ms : 0,
           a->last - a->first, a->last - a->first == 1 ? "" : "s");
    if (a->n_skipped > 0)
        printf("skipped      %" PRIu64 " of these steps, whose gradient was not finite\n", a->n_skipped);
    printf("memory       device %s of %s at most", eps_format_bytes(peak, a->device_peak),
           eps_format_bytes(budget, a->device_budget));
    print_against(a->device_peak, a->device_planned);
    printf(", host %s", eps_format_bytes(host, a->host_peak));
    print_against(a->host_peak, a->host_planned);
    putchar('\n');
    print_files(a);
}
