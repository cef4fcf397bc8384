/* client/corpus/labels.h - the classes that rows are labelled with: their names, and the numbers that stand for them.
 *
 * A model that is a classifier has its names in config.json (id2label), and its numbers stay. Otherwise the names are
 * those that the data gives, in the order of their bytes; or by value, if all of them are whole numbers. */
#ifndef CLIENT_CORPUS_LABELS_H
#define CLIENT_CORPUS_LABELS_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLIENT_LABELS_MOST = 65536, CLIENT_LABELS_NAME_BYTES = 256 };

struct client_labels {
    char **names;  /* (n), owned */
    json_t *index; /* {name: number}, owned */
    uint32_t n, cap;
    bool numbers;  /* rows are labelled with real numbers, not with classes: regression */
    bool fixed;    /* no name is added any more */
    bool by_index; /* fixed, and no name is a number: a class may also be given by its own */
};

int client_labels_init(struct client_labels *out, bool numbers, struct error *err);
void client_labels_free(struct client_labels *labels); /* safe on a zeroed struct */

/* Takes the n names of a classifier from its config.json and fixes them. Without id2label they are LABEL_0, LABEL_1,
 * ... -EINVAL with a sentence that names the key. */
int client_labels_take(struct client_labels *labels, const char *config, size_t bytes, uint32_t n, struct error *err);

/* The number of a name, which is added if names are not fixed. A fixed list also takes a class by its number, unless
 * any of its names is a number. -EINVAL with a sentence that names the label: it is no class, it is empty, too long,
 * not UTF-8, or has a control character in it; -E2BIG: there are too many. */
int client_labels_find(uint32_t *out, struct client_labels *labels, const char *name, size_t bytes, struct error *err);

/* Sorts the names and fixes them. to[i] (n, from the caller) becomes the new number of the name with the number i.
 * -ENOMEM: nothing has changed. */
int client_labels_sort(struct client_labels *labels, uint32_t *to, struct error *err);

/* Refuses classes of which there are fewer than two: -EINVAL with a sentence that begins "`every` 'name'". */
int client_labels_check(const struct client_labels *labels, const char *every, struct error *err);

/* The label of a row of a regression: the bits of a number. -EINVAL with a sentence. */
int client_labels_number(uint32_t *out, const char *text, size_t bytes, struct error *err);

/* "2 classes: negative, positive", cut to fit. */
void client_labels_say(char *out, size_t cap, const struct client_labels *labels);

#endif
