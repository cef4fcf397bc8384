/* After the first fault the position no longer matters, as every number is 0 and the message is refused as a whole. So
 * codecs list their fields without asking after each one; only a count must not be used before.
 *
 * Texts reach terminals and logs: when read, anything but printable UTF-8 in its shortest form is a fault, and so are
 * bytes behind the end, as two encodings of one text would be two messages. */
#include "proto/wire/wire.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void wire_wrong(struct wire *w, const char *why)
{
    if (!w->why)
        w->why = why;
}

/* True if n more bytes fit. */
static bool wire_take(struct wire *w, size_t n)
{
    if (n > w->end - w->at)
        wire_wrong(w, "shorter than its kind");
    return !w->why;
}

void wire_put(uint8_t *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

uint64_t wire_get(const uint8_t *from, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

/* Writes value to the message, or reads it (0 after a fault). */
static uint64_t number(struct wire *w, uint64_t value, unsigned bytes)
{
    if (!wire_take(w, bytes))
        return 0;
    if (w->to)
        wire_put(w->to + w->at, value, bytes);
    else
        value = wire_get(w->from + w->at, bytes);
    w->at += bytes;
    return value;
}

void wire_u64(struct wire *w, uint64_t *value)
{
    *value = number(w, *value, 8);
}

void wire_u16(struct wire *w, uint16_t *value)
{
    *value = (uint16_t)number(w, *value, 2);
}

void wire_u32(struct wire *w, uint32_t *value)
{
    *value = (uint32_t)number(w, *value, 4);
}

void wire_u32_in(struct wire *w, uint32_t *value, uint32_t first, uint32_t last)
{
    wire_u32(w, value);
    if (*value < first || *value > last)
        wire_wrong(w, "a count or an index out of range");
}

void wire_f64(struct wire *w, double *value)
{
    uint64_t bits;

    memcpy(&bits, value, 8);
    wire_u64(w, &bits);
    memcpy(value, &bits, 8);
}

void wire_f64_finite(struct wire *w, double *value)
{
    wire_f64(w, value);
    if (!isfinite(*value))
        wire_wrong(w, "a number that is not finite");
}

void wire_f64_from_0(struct wire *w, double *value)
{
    wire_f64_finite(w, value);
    if (signbit(*value))
        wire_wrong(w, "a number below zero");
}

void wire_f32(struct wire *w, float *value)
{
    uint32_t bits;

    memcpy(&bits, value, 4);
    wire_u32(w, &bits);
    memcpy(value, &bits, 4);
}

void wire_flag(struct wire *w, bool *value)
{
    uint64_t byte = number(w, *value, 1);

    if (byte > 1)
        wire_wrong(w, "a flag that is neither 0 nor 1");
    *value = byte == 1;
}

/* An enumeration in one byte. */
unsigned wire_choice(struct wire *w, unsigned value, unsigned first, unsigned last)
{
    assert(!w->to || value <= UINT8_MAX);
    value = (unsigned)number(w, value, 1);
    if (value < first || value > last)
        wire_wrong(w, "an enumeration out of range");
    return value;
}

/* Length of the printable UTF-8 character at s (n > 0 bytes); 0 for control characters, overlong forms, surrogates and
 * truncation. So a text is safe for a terminal. */
static size_t wire_character(const uint8_t *s, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = s[0] < 0x80 ? 1 : s[0] >= 0xF8 ? 0 : s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : s[0] >= 0xC0 ? 2 : 0;
    uint32_t code = length == 1 ? s[0] : s[0] & (0x7Fu >> length);

    if (length == 0 || length > n)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3F);
    }
    bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    bool surrogate = code >= 0xD800 && code < 0xE000;
    return control || surrogate || code < least[length] || code > 0x10FFFF ? 0 : length;
}

/* A sentence may quote a file, so unprintable bytes become '?' without an error. */
static void wire_write_text(uint8_t *to, const char *text, size_t size)
{
    size_t n = strnlen(text, size - 1), length;

    memset(to, 0, size);
    memcpy(to, text, n);
    for (size_t i = 0; i < n; i += length) {
        length = wire_character(to + i, n - i);
        if (length == 0) {
            to[i] = '?';
            length = 1;
        }
    }
}

static void wire_read_text(struct wire *w, char *text, const uint8_t *from, size_t size)
{
    const uint8_t *stop = memchr(from, 0, size);
    size_t n = stop ? (size_t)(stop - from) : 0, length = 1;

    if (!stop)
        wire_wrong(w, "a text without its end");
    for (size_t i = n; i < size; i++)
        if (stop && from[i])
            wire_wrong(w, "bytes after the end of a text");
    for (size_t i = 0; i < n && length > 0; i += length) {
        length = wire_character(from + i, n - i);
        if (length == 0)
            wire_wrong(w, "a text that is not printable UTF-8");
    }
    if (!w->why)
        memcpy(text, from, size);
}

void wire_text(struct wire *w, char *value, size_t size)
{
    if (!wire_take(w, size))
        return;
    if (w->to)
        wire_write_text(w->to + w->at, value, size);
    else
        wire_read_text(w, value, w->from + w->at, size);
    w->at += size;
}
