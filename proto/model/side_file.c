#include "proto/model/side_file.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

bool side_file_is_binary(const char *name)
{
    return strcmp(name, "tokenizer.model") == 0;
}

/* out: 4 digits for every 3 bytes, the last ones filled up with '='. */
static void encode(char *out, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i += 3, out += 4) {
        const size_t left = n - i;
        const uint32_t second = left > 1 ? bytes[i + 1] : 0, third = left > 2 ? bytes[i + 2] : 0;
        const uint32_t group = (uint32_t)bytes[i] << 16 | second << 8 | third;
        out[0] = digits[group >> 18];
        out[1] = digits[group >> 12 & 63];
        out[2] = digits[group >> 6 & 63];
        out[3] = digits[group & 63];
        if (left < 3)
            memset(out + left + 1, '=', 3 - left);
    }
}

json_t *side_file_string(const char *name, const char *bytes, size_t n)
{
    if (!side_file_is_binary(name))
        return memchr(bytes, 0, n) ? NULL : json_stringn(bytes, n);
    const size_t n_text = (n + 2) / 3 * 4;
    char *text = malloc(n_text + 1);
    if (!text)
        return NULL;
    encode(text, (const uint8_t *)bytes, n);
    json_t *string = json_stringn(text, n_text);
    free(text);
    return string;
}

/* -1: no digit. */
static int value_of(char digit)
{
    if (digit >= 'A' && digit <= 'Z')
        return digit - 'A';
    if (digit >= 'a' && digit <= 'z')
        return digit - 'a' + 26;
    if (digit >= '0' && digit <= '9')
        return digit - '0' + 52;
    return digit == '+' ? 62 : digit == '/' ? 63 : -1;
}

/* out NULL: only checks and counts. Bits beyond the last byte must be 0, so that a file has one string alone. */
static int decode(char *out, size_t *n, const char *text, size_t n_text)
{
    size_t n_digits = n_text, used = 0;

    if (n_text % 4 != 0)
        return -EINVAL;
    while (n_digits > 0 && n_text - n_digits < 2 && text[n_digits - 1] == '=')
        n_digits--;
    for (size_t i = 0; i < n_digits; i += 4) {
        const size_t left = n_digits - i < 4 ? n_digits - i : 4;
        uint32_t group = 0;
        for (size_t k = 0; k < left; k++) {
            const int value = value_of(text[i + k]);
            if (value < 0)
                return -EINVAL;
            group |= (uint32_t)value << (18 - 6 * k);
        }
        if ((group & (0xFFFFFFu >> 8 * (left - 1))) != 0)
            return -EINVAL;
        for (size_t k = 0; k + 1 < left; k++, used++)
            if (out)
                out[used] = (char)(group >> (16 - 8 * k) & 255);
    }
    *n = used;
    return 0;
}

int side_file_size(size_t *n, const char *name, const json_t *string)
{
    if (!json_is_string(string))
        return -EINVAL;
    *n = json_string_length(string);
    return side_file_is_binary(name) ? decode(NULL, n, json_string_value(string), *n) : 0;
}

int side_file_bytes(const char **out, size_t *n, char **made, const char *name, const json_t *string)
{
    const char *text = json_string_value(string);
    const size_t n_text = json_string_length(string);

    *out = text, *n = n_text, *made = NULL;
    if (!side_file_is_binary(name))
        return 0;
    *out = *made = malloc(n_text / 4 * 3 + 1);
    if (!*made)
        return -ENOMEM;
    const int rc = decode(*made, n, text, n_text);
    assert(rc == 0);
    return 0;
}
