/* client/options/value.h - the value of an option in struct eps_train_options, by its row in the table of options:
 * whether it is set, compared with another, printed, and as JSON. So no other module needs to know an option's type. */
#ifndef CLIENT_OPTIONS_VALUE_H
#define CLIENT_OPTIONS_VALUE_H

#include "client/eps.h"

#include <jansson.h>
#include <stdbool.h>

enum {
    CLIENT_OPTION_KEY = 40,   /* bytes of a key in training.json, and of a choice's word */
    CLIENT_OPTION_TEXT = 160, /* of a printed value; a longer text is cut */
};

/* The row whose key in training.json is the key-th, from 1. NULL after the last. */
const struct eps_option *client_option_stored(unsigned key);

/* Formats the key: "min_lr" for --min-lr. Returns out. */
const char *client_option_key(char out[CLIENT_OPTION_KEY], const struct eps_option *row);

/* Unsets the option. */
void client_option_clear(struct eps_train_options *options, const struct eps_option *row);
bool client_option_is_set(const void *options, const struct eps_option *row);

/* Copies the value; a text stays its owner's. */
void client_option_copy(struct eps_train_options *to, const struct eps_train_options *from,
                        const struct eps_option *row);

/* Compares real numbers with a tolerance of the last bits: a value computed from others, such as a tenth of 3e-4, is
 * not quite the typed 3e-5. Two unset options are the same. */
bool client_option_same(const struct eps_train_options *a, const struct eps_train_options *b,
                        const struct eps_option *row);

/* Formats the value as it is typed; a real number in its shortest exact form, a flag that is set as nothing. Unset:
 * "none", or "default without it" of a flag or a text. Returns out. Not of EPS_OPTION_TEXTS. */
const char *client_option_print(char out[CLIENT_OPTION_TEXT], const void *options, const struct eps_option *row);

/* The value as in training.json: an unset real number or text is null. Owned; NULL: no memory, or a text that is not
 * UTF-8. Not of EPS_OPTION_TEXTS. */
json_t *client_option_to_json(const struct eps_train_options *options, const struct eps_option *row);

/* The reverse. A text stays json's. json NULL: the key is missing. False if the row does not allow this value. */
bool client_option_from_json(struct eps_train_options *options, const struct eps_option *row, const json_t *json);

#endif
