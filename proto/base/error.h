/* proto/base/error.h - one sentence for the person who can correct the fault.
 *
 * Functions that meet external faults (files, options, messages, lack of memory) return 0 or -errno. A struct error
 * says what is wrong, where, and what to do about it. The daemon sends the sentence to the client, which prints it. It
 * fits one message (512 bytes of text). */
#ifndef PROTO_BASE_ERROR_H
#define PROTO_BASE_ERROR_H

#include "proto/base/log.h" /* whoever meets a fault may have to log it */

#include <stdarg.h>

enum { ERROR_TEXT_BYTES = 512 };

struct error {
    char text[ERROR_TEXT_BYTES]; /* one sentence, no full stop, no newline; empty without an error */
};

/* Writes the sentence and returns code, for `return error_set(err, -EINVAL, "...")`. err may be NULL. Control
 * characters become '?'; an overlong sentence is cut off. */
int error_set(struct error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts a question mark in the place of each control character: no text of a stranger's may steer a terminal. */
void error_clean(char *text);

/* error_set for a want that nobody can name a remedy for: "out of memory", -ENOMEM. */
int error_memory(struct error *err);

/* Puts "what: " before the sentence, such as a file's name before the fault in its content. err may be NULL. */
void error_prefix(struct error *err, const char *what);

/* Appends to the sentence, usually the remedy. At least its first 300 bytes are kept. */
void error_append(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
