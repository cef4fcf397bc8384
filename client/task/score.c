/* Three counts of each class give all metrics of classes: a table of label by prediction would take gigabytes with tens
 * of thousands of classes. Ranks take the place of the numbers that they rank, so Spearman's correlation comes after
 * Pearson's, and is the same function. Real numbers are equal here if neither is less. A logit that is no number makes
 * its row wrong, whatever its label. */
#include "client/task/score.h"

#include "proto/base/number.h"

#include <math.h>
#include <stdlib.h>

static void score_add(struct client_scores *out, const char *name, double value)
{
    out->list[out->n++] = (struct eps_score){name, value};
}

uint32_t client_score_class(const float *logits, uint32_t n_labels)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < n_labels; i++) {
        if (isnan(logits[i]))
            return n_labels;
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}

/* Counts of one class: rows labelled so, predicted so, and both. */
struct count {
    uint64_t labelled, predicted, both;
};

static double f1_of(const struct count *c)
{
    const uint64_t all = c->labelled + c->predicted;

    return all ? 2 * (double)c->both / (double)all : 0;
}

/* Matthews 1975, of the second of two classes among n rows; 0 if a class is never labelled, or never predicted. */
static double matthews_of(const struct count *c, size_t n)
{
    const double p = (double)c->predicted, l = (double)c->labelled, all = (double)n;
    const double spread = p * (all - p) * l * (all - l);

    return spread > 0 ? (all * (double)c->both - p * l) / sqrt(spread) : 0;
}

static double macro_f1_of(const struct count *counts, uint32_t n_labels)
{
    double sum = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_labels; i++) {
        const bool occurs = counts[i].labelled + counts[i].predicted > 0;
        n += occurs;
        sum += occurs ? f1_of(&counts[i]) : 0;
    }
    return n ? sum / n : 0;
}

int client_score_classes(struct client_scores *out, const float *logits, const uint32_t *labels, size_t n,
                         uint32_t n_labels, struct error *err)
{
    struct count *counts = calloc(n_labels + 1, sizeof *counts); /* the last: predicted as no class */
    uint64_t right = 0;

    *out = (struct client_scores){.n = 0};
    if (!counts)
        return error_memory(err);
    for (size_t i = 0; i < n; i++) {
        const uint32_t class = client_score_class(logits + i * n_labels, n_labels);
        counts[labels[i]].labelled++;
        counts[class].predicted++;
        counts[class].both += class == labels[i];
        right += class == labels[i];
    }
    score_add(out, "accuracy", n ? (double)right / (double)n : NAN);
    if (n_labels == 2) {
        score_add(out, "f1", f1_of(&counts[1]));
        score_add(out, "matthews", matthews_of(&counts[1], n));
    } else {
        score_add(out, "macro_f1", macro_f1_of(counts, n_labels));
    }
    free(counts);
    return 0;
}

/* How many classes are likelier than the label, or may be, as a logit is no number. */
static uint32_t rank_of(const float *logits, uint32_t label, uint32_t n_labels)
{
    uint32_t rank = n_labels - 1;

    for (uint32_t i = 0; i < n_labels; i++)
        rank -= logits[i] < logits[label] || (i > label && logits[i] <= logits[label]);
    return rank;
}

void client_score_add_top5(struct client_scores *scores, const float *logits, const uint32_t *labels, size_t n,
                           uint32_t n_labels)
{
    enum { TOP = 5 };
    uint64_t right = 0;

    for (size_t i = 0; n_labels > TOP && i < n; i++)
        right += rank_of(logits + i * n_labels, labels[i], n_labels) < TOP;
    if (n_labels > TOP)
        score_add(scores, "top5_accuracy", n ? (double)right / (double)n : NAN);
}

static bool varies(const double *x, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (x[i] < x[0] || x[i] > x[0])
            return true;
    return false;
}

/* Two passes, so that large means lose no digits. */
static double correlation(const double *x, const double *y, size_t n)
{
    double mean_x = 0, mean_y = 0, xx = 0, yy = 0, xy = 0;

    if (!varies(x, n) || !varies(y, n))
        return NAN;
    for (size_t i = 0; i < n; i++)
        mean_x += x[i] / (double)n, mean_y += y[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        const double dx = x[i] - mean_x, dy = y[i] - mean_y;
        xx += dx * dx, yy += dy * dy, xy += dx * dy;
    }
    return xy / (sqrt(xx) * sqrt(yy));
}

struct ranked {
    double value;
    size_t at;
};

static int by_value(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

/* Replaces numbers by their ranks; equal ones share the mean of theirs. work (n) */
static void score_rank(double *x, struct ranked *work, size_t n)
{
    for (size_t i = 0; i < n; i++)
        work[i] = (struct ranked){x[i], i};
    qsort(work, n, sizeof *work, by_value);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && work[end].value <= work[i].value;)
            end++;
        for (size_t k = i; k < end; k++)
            x[work[k].at] = (double)(i + end - 1) / 2;
    }
}

int client_score_numbers(struct client_scores *out, const float *logits, const uint32_t *labels, size_t n,
                         struct error *err)
{
    double *x = calloc(n + 1, sizeof *x), *y = calloc(n + 1, sizeof *y);
    struct ranked *work = calloc(n + 1, sizeof *work);
    const bool room = x && y && work;

    *out = (struct client_scores){.n = 0};
    for (size_t i = 0; room && i < n; i++)
        x[i] = (double)logits[i], y[i] = (double)number_from_pattern(labels[i]);
    if (room) {
        score_add(out, "pearson", correlation(x, y, n));
        score_rank(x, work, n);
        score_rank(y, work, n);
        score_add(out, "spearman", correlation(x, y, n));
    }
    free(x);
    free(y);
    free(work);
    return room ? 0 : error_memory(err);
}
