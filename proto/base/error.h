/* proto/base/error.h - one sentence for the person who can put it right.
 *
 * Functions that meet the world's mistakes (files, options, messages, memory that is not there) return 0 or -errno, and
 * say in a struct error what is wrong, where, and what to do about it. The sentence travels: the daemon sends it to the
 * client, which prints it. It fits one message (512 bytes of text). */
#ifndef PROTO_BASE_ERROR_H
#define PROTO_BASE_ERROR_H

#include <stdarg.h>

enum { ERROR_TEXT_BYTES = 512 };

struct error {
    char text[ERROR_TEXT_BYTES]; /* one sentence, no full stop, no newline; empty if nothing went wrong */
};

/* Writes the sentence and returns code, so that a check reads `return error_set(err, -EINVAL, "...")`. err may be NULL.
 * Control characters become '?'; what does not fit is cut off. */
int error_set(struct error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "what: " in front of the sentence that is there: a file's name before what is wrong with its content. err may be
 * NULL. */
void error_prefix(struct error *err, const char *what);

/* Adds to the sentence that is there, which keeps its first 300 bytes at least: what can be done about it. */
void error_append(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One line on stderr, "name: text", for the events of a daemon's or worker's life. name is set once, in main, before
 * any thread starts; it defaults to "eps". Safe from every thread (one write each).
 *
 * It never waits: an event loop that did would be taken for dead, because of a terminal that was stopped or a pipe that
 * nobody reads. A line that stderr does not take at once is dropped; the next one that is taken comes after "N lines of
 * the log were dropped". */
void log_name(const char *name);
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
