/* client/model/classifier.h - makes a classifier of a model that predicts masked tokens, or of one without a head.
 *
 * config.json says what a model is, and the daemon, workers, checkpoints and exports all read it. So the client
 * rewrites it, in memory: architectures, id2label, label2id, problem_type. A model that is a classifier already keeps
 * its own. */
#ifndef CLIENT_MODEL_CLASSIFIER_H
#define CLIENT_MODEL_CLASSIFIER_H

#include "client/corpus/labels.h"
#include "client/eps.h"
#include "client/model/model.h"

/* As client_model_open, for a task. The config is then that of a classifier with two classes, or one number, until
 * client_classifier_label; unless the model is a classifier. EPS_TASK_DEFAULT: the model as it is. -EDOM if the model's
 * family cannot do the task; -EINVAL if it is a classifier for the other one, or as client_model_open, and then the
 * sentence says so if a task would take the model. */
int client_classifier_open(struct client_model *out, const struct client_model_name *name, enum eps_task task,
                           struct error *err);

/* client_classifier_open, but ignores the weights. */
int client_classifier_open_fresh(struct client_model *out, const struct client_model_name *name, enum eps_task task,
                                 struct error *err);

/* -EDOM with a sentence: a type of model has no classifier, and which types have one. preset: the name of such a model;
 * NULL: the caller names it. */
int client_classifier_refuse(enum eps_task task, const char *preset, const char *type, struct error *err);

/* Appends that --task would take this model, if it would, to the sentence that refuses it without. */
void client_classifier_suggest(struct error *err, const struct client_model_name *name);

/* The model's own task: EPS_TASK_DEFAULT if it predicts tokens. */
enum eps_task client_classifier_task(const struct client_model *model);

/* Labels for the model's data: its own, if it was a classifier when it was opened; else an empty list. Undo:
 * client_labels_free. */
int client_classifier_labels(struct client_labels *out, const struct client_model *model, struct error *err);

/* Completes the config of a new classifier with the data's labels. Does nothing for one that has its own. -E2BIG if
 * there are too many for a job's config. */
int client_classifier_label(struct client_model *model, const struct client_labels *labels, struct error *err);

/* Gives a new classifier n classes, for a plan; 0: it has two. -EDOM with a sentence that names --labels; -E2BIG. */
int client_classifier_count(struct client_model *model, uint32_t n, struct error *err);

/* The config.json (text, n bytes) of such a classifier; labels NULL: not known yet. Owned: free. NULL with a
 * sentence. */
char *client_classifier_config(const char *text, size_t n, const char *architecture, enum eps_task task,
                               const struct client_labels *labels, struct error *err);

#endif
