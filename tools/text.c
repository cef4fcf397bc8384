#include "tools/text.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of the character that begins here, at most `left`; 0 if none does. jansson is the judge. */
static size_t character(const char *text, size_t left)
{
    for (size_t n = 1; n <= 4 && n <= left; n++) {
        json_t *string = json_stringn(text, n);
        json_decref(string);
        if (string)
            return n;
    }
    return 0;
}

json_t *text_json(const char *text)
{
    static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */
    const size_t n = strlen(text);
    json_t *string = json_string(text);
    char *out = string ? NULL : malloc(3 * n + 1), *to = out;

    for (size_t i = 0; out && i < n;) {
        const size_t bytes = character(text + i, n - i);
        const char *from = bytes ? text + i : replacement;
        const size_t width = bytes ? bytes : 3;
        memcpy(to, from, width);
        to += width;
        i += bytes ? bytes : 1;
    }
    if (out)
        string = json_stringn(out, (size_t)(to - out));
    free(out);
    return string;
}
