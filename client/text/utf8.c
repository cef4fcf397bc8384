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

/* ---- A stream ---- */

static void emit(struct client_stream *s, const void *bytes, size_t n)
{
    memcpy(s->text + s->n, bytes, n);
    s->n += n;
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

/* Makes room for n more bytes: each byte, held ones included, can become three. */
static int make_room(struct client_stream *s, size_t n, struct error *err)
{
    const size_t need = 3 * (n + sizeof s->held);

    s->n = 0;
    if (need <= s->cap)
        return 0;
    char *text = realloc(s->text, need);
    if (!text)
        return error_set(err, -ENOMEM, "out of memory");
    s->text = text;
    s->cap = need;
    return 0;
}

int client_stream_push(struct client_stream *stream, const char **text, size_t *n, const void *bytes, size_t n_bytes,
                       bool last, struct error *err)
{
    int rc = make_room(stream, n_bytes, err);

    for (size_t i = 0; !rc && i < n_bytes; i++)
        take_byte(stream, ((const uint8_t *)bytes)[i]);
    if (!rc && last && stream->n_held > 0) {
        give_mark(stream);
        stream->n_held = 0;
    }
    *text = stream->text;
    *n = stream->n;
    return rc;
}

void client_stream_free(struct client_stream *stream)
{
    free(stream->text);
    *stream = (struct client_stream){0};
}
