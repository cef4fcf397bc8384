#include "client/data/jsonl.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_KEY "\\u0001number" /* as JSON */

enum { MOST_SPELLED = 40 };

static bool is_alone(const char *line, size_t n, size_t end)
{
    return end == n || !strchr("+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_", line[end]) ||
           !line[end];
}

/* Bytes of the number without a place that begins at `at`; 0: another one, or none. */
static size_t odd_number(const char *line, size_t n, size_t at)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    size_t end = at;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t length = strlen(words[i]);
        if (n - at >= length && memcmp(line + at, words[i], length) == 0 && is_alone(line, n, at + length))
            return length;
    }
    while (end < n && line[end] && strchr("+-.0123456789eE", line[end]))
        end++;
    const size_t length = end - at;
    const bool is_whole =
        !memchr(line + at, '.', length) && !memchr(line + at, 'e', length) && !memchr(line + at, 'E', length);
    if (length == 0 || (line[at] != '-' && (line[at] < '0' || line[at] > '9')))
        return 0;
    char *copy = strndup(line + at, length);
    if (!copy)
        return 0;
    errno = 0;
    const bool odd = is_whole ? (strtoll(copy, NULL, 10), errno == ERANGE) : isinf(strtod(copy, NULL));
    free(copy);
    return odd ? length : 0;
}

/* The line with objects in the place of such numbers; *n becomes its length. Owned; NULL: there is none, or no memory. */
static char *replaced(const char *line, size_t *n)
{
    char *out = NULL;
    size_t used = 0, size;
    bool in_text = false, any = false;
    FILE *to = open_memstream(&out, &size);

    if (!to)
        return NULL;
    for (size_t at = 0; at < *n; at += used) {
        const char c = line[at];
        const bool begins = !in_text && (at == 0 || is_alone(line, *n, at - 1));
        const size_t odd = begins ? odd_number(line, *n, at) : 0;
        used = odd > 0 ? odd : in_text && c == '\\' && at + 1 < *n ? 2 : 1;
        in_text ^= c == '"';
        if (odd > 0)
            fprintf(to, "{\"" NUMBER_KEY "\": \"%.*s%s\"}", (int)(odd < MOST_SPELLED ? odd : MOST_SPELLED), line + at,
                    odd > MOST_SPELLED ? "..." : "");
        else
            fwrite(line + at, 1, used, to);
        any |= odd > 0;
    }
    if (fclose(to) || !any) {
        free(out);
        return NULL;
    }
    *n = size;
    return out;
}

json_t *client_jsonl_load(const char *line, size_t n, json_error_t *why)
{
    json_t *value = json_loadb(line, n, JSON_ALLOW_NUL, why);
    char *other = value ? NULL : replaced(line, &n);

    if (other)
        value = json_loadb(other, n, JSON_ALLOW_NUL, why);
    free(other);
    return value;
}

const char *client_jsonl_spelling(const json_t *value)
{
    const char *found = json_string_value(json_object_get(value, "\1number"));
    json_t *item;
    const char *key;
    size_t i;

    if (found)
        return found;
    if (json_is_object(value))
        json_object_foreach((json_t *)(uintptr_t)value, key, item)
        {
            if ((found = client_jsonl_spelling(item)))
                return found;
        }
    json_array_foreach((json_t *)(uintptr_t)value, i, item)
    {
        if ((found = client_jsonl_spelling(item)))
            return found;
    }
    return NULL;
}
