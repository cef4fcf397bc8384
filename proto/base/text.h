/* proto/base/text.h - texts and names. */
#ifndef PROTO_BASE_TEXT_H
#define PROTO_BASE_TEXT_H

#include <stdbool.h>
#include <string.h>

/* True if the text has this end, and something before it. */
static inline bool text_ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);

    return n > n_end && strcmp(text + n - n_end, end) == 0;
}

#endif
