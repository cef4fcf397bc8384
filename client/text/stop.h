/* client/text/stop.h - ends a text before a stop string, wherever tokens and pieces of it begin and end.
 *
 * Of several stop strings, the one that is complete first counts; of those that are complete at the same byte, the
 * longest. So the text does not depend on how it was divided into tokens. */
#ifndef CLIENT_TEXT_STOP_H
#define CLIENT_TEXT_STOP_H

#include "client/text/utf8.h"

struct client_stop {
    const char *const *texts; /* (n_texts), borrowed */
    size_t n_texts;
    struct client_text held;   /* bytes that may still belong to a stop string */
    struct client_text passed; /* what the last call returned */
    bool met;                  /* a stop string was found; nothing more is passed on */
};

/* -EDOM with a sentence that begins with "--stop": a text is empty or not UTF-8. */
int client_stop_check(const char *const *texts, size_t n_texts, struct error *err);

/* texts: checked. Undo: client_stop_free. */
void client_stop_init(struct client_stop *stop, const char *const *texts, size_t n_texts);
void client_stop_free(struct client_stop *stop); /* safe on a zeroed struct */

/* Begins a new text. */
void client_stop_begin(struct client_stop *stop);

/* Adds n_bytes bytes to the text. Sets *text (*n bytes) to those that are now known to come before a stop string,
 * borrowed until the next call. last: the text ends here. -ENOMEM. */
int client_stop_push(struct client_stop *stop, const char **text, size_t *n, const char *bytes, size_t n_bytes,
                     bool last, struct error *err);

#endif
