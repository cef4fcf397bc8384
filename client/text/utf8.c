/* One function decides what a character is, client_utf8_character, and all others ask it: a text that one of them
 * accepts is accepted by all. It tells "cut off" from "invalid", as a stream has to wait for the one and replace the
 * other. In a stream the room is made before the first byte is taken, so a call either takes all bytes or none. */
#include "client/text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int client_utf8_character(const uint8_t *text, size_t n)
{
    const uint8_t first = text[0];
    uint8_t low = 0x80, high = 0xBF; /* range of the next byte; only the second byte's is narrower */

    if (first < 0x80)
        return 1;
    if (first < 0xC2 || first > 0xF4)
        return -1;
    const int length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (first == 0xE0)
        low = 0xA0;
    else if (first == 0xED)
        high = 0x9F;
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n)
            return 0;
        if (text[i] < low || text[i] > high)
            return -1;
        low = 0x80, high = 0xBF;
    }
    return length;
}

size_t client_utf8_whole(const uint8_t *text, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint64_t words[4];
        while (n - i >= sizeof words) { /* long runs of ASCII are common */
            memcpy(words, text + i, sizeof words);
            if ((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080)
                break;
            i += sizeof words;
        }
        for (size_t end = n - i < sizeof words ? n : i + sizeof words; i < end;) {
            const int length = client_utf8_character(text + i, n - i);
            if (length <= 0)
                return i;
            i += (size_t)length;
        }
    }
    return i;
}

size_t client_utf8_before(const char *text, size_t from, size_t at)
{
    at--;
    while (at > from && ((uint8_t)text[at] & 0xC0) == 0x80)
        at--;
    return at;
}

size_t client_utf8_count(const char *text, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((uint8_t)text[i] & 0xC0) != 0x80;
    return count;
}

/* ---- A growing text ---- */

int client_text_reserve(struct client_text *text, size_t n, struct error *err)
{
    if (n <= text->cap - text->n)
        return 0;
    const size_t cap = text->n + n > 2 * text->cap ? text->n + n : 2 * text->cap;
    char *larger = realloc(text->bytes, cap);
    if (!larger)
        return error_set(err, -ENOMEM, "no memory for a text of %zu bytes", cap);
    text->bytes = larger, text->cap = cap;
    return 0;
}

int client_text_add(struct client_text *text, const char *bytes, size_t n, struct error *err)
{
    int rc = client_text_reserve(text, n, err);

    if (rc || n == 0)
        return rc;
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
    return 0;
}

/* ---- A stream ---- */

static void emit(struct client_stream *s, const void *bytes, size_t n)
{
    memcpy(s->text.bytes + s->text.n, bytes, n);
    s->text.n += n;
}

static void give_mark(struct client_stream *s)
{
    emit(s, "\xEF\xBF\xBD", 3); /* U+FFFD */
}

/* Held bytes always begin a character. A byte that does not continue it ends it, and may begin the next one. */
static void take_byte(struct client_stream *s, uint8_t byte)
{
    s->held[s->n_held++] = byte;
    int length = client_utf8_character(s->held, s->n_held);
    if (length < 0) {
        give_mark(s);
        s->held[0] = byte;
        length = s->n_held > 1 ? client_utf8_character(s->held, 1) : 0;
        s->n_held = s->n_held > 1;
        if (length < 0) {
            give_mark(s);
            s->n_held = 0;
        }
    }
    if (length > 0) {
        emit(s, s->held, s->n_held);
        s->n_held = 0;
    }
}

int client_stream_push(struct client_stream *stream, const char **text, size_t *n, const void *bytes, size_t n_bytes,
                       bool last, struct error *err)
{
    stream->text.n = 0;
    int rc = client_text_reserve(&stream->text, 3 * (n_bytes + sizeof stream->held), err); /* each may become three */

    for (size_t i = 0; !rc && i < n_bytes; i++)
        take_byte(stream, ((const uint8_t *)bytes)[i]);
    if (!rc && last && stream->n_held > 0) {
        give_mark(stream);
        stream->n_held = 0;
    }
    *text = stream->text.bytes;
    *n = stream->text.n;
    return rc;
}

void client_stream_free(struct client_stream *stream)
{
    free(stream->text.bytes);
    *stream = (struct client_stream){0};
}
