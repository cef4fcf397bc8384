/* client/task/score.h - GLUE's metrics of predictions, by the definitions of scikit-learn and SciPy.
 *
 * Of classes: accuracy; with two of them F1 of the second class and Matthews' correlation, with more the mean F1 of the
 * classes (macro) that occur among labels or predictions. Of numbers: the correlations of Pearson and of Spearman. A
 * prediction is the class with the largest logit, the first of equal ones; or the only logit. */
#ifndef CLIENT_TASK_SCORE_H
#define CLIENT_TASK_SCORE_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLIENT_SCORES_MOST = 3 };

struct client_scores {
    struct eps_score list[CLIENT_SCORES_MOST];
    size_t n;
};

/* The class of a row's logits (n_labels); n_labels if one of them is no number. */
uint32_t client_score_class(const float *logits, uint32_t n_labels);

/* logits (n, n_labels), labels (n): classes below n_labels. -ENOMEM. */
int client_score_classes(struct client_scores *out, const float *logits, const uint32_t *labels, size_t n,
                         uint32_t n_labels, struct error *err);

/* Adds top5_accuracy, of more than five classes: the share of rows whose label is among the five likeliest classes; of
 * equal logits the first are. */
void client_score_add_top5(struct client_scores *scores, const float *logits, const uint32_t *labels, size_t n,
                           uint32_t n_labels);

/* logits (n), labels (n): bits of numbers. A correlation is NAN if all predictions, or all labels, are equal.
 * -ENOMEM. */
int client_score_numbers(struct client_scores *out, const float *logits, const uint32_t *labels, size_t n,
                         struct error *err);

#endif
