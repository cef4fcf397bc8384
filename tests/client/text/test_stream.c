/* Characters out of bytes that come in pieces. */
#include "tests/kit/test.h"

#include "client/text/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define NO "\xEF\xBF\xBD"

static const struct {
    const char *bytes, *text;
} cases[] = {
    {"", ""},
    {"plain", "plain"},
    {"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x8C\x8D", "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x8C\x8D"}, /* 2, 3 and 4 bytes */
    {"\xC3", NO},
    {"\xF0\x9F\x8C", NO}, /* three bytes that begin one character: one mark */
    {"\xF0\x9F\x8C!", NO "!"},
    {"\xC3\xC3\xA9", NO "\xC3\xA9"},
    {"\x80\xBF", NO NO},
    {"\xC0\x80", NO NO},               /* overlong */
    {"\xE0\x80\xAF", NO NO NO},        /* overlong: E0 is followed by A0 at least */
    {"\xED\xA0\x80", NO NO NO},        /* a surrogate */
    {"\xF4\x90\x80\x80", NO NO NO NO}, /* beyond U+10FFFF */
    {"\xF5\xFF", NO NO},
    /* The example of Unicode 15, table 3-11. */
    {"\x41\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\x41" NO NO NO NO "\x41"},
    {"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\xF0\x90\x80\x80\xE0\xA0\x80\xC2\x80",
     "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\xF0\x90\x80\x80\xE0\xA0\x80\xC2\x80"}, /* the ends of each range */
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* All that comes out when the bytes come in pieces of `piece`. */
static void decode(char out[200], const char *bytes, size_t piece)
{
    struct client_stream stream = {0};
    const size_t n_bytes = strlen(bytes);
    const char *text;
    size_t n, used = 0;

    for (size_t at = 0; at < n_bytes; at += piece) {
        const size_t left = n_bytes - at;
        ck_assert_int_eq(client_stream_push(&stream, &text, &n, bytes + at, left < piece ? left : piece, false, NULL),
                         0);
        ck_assert_uint_eq(client_utf8_whole((const uint8_t *)text, n), n); /* no piece ends inside a character */
        memcpy(out + used, text, n);
        used += n;
    }
    ck_assert_int_eq(client_stream_push(&stream, &text, &n, "", 0, true, NULL), 0);
    memcpy(out + used, text, n);
    out[used + n] = 0;
    client_stream_free(&stream);
}

TEST_EACH(pieces_of_any_size_give_the_same_text, N_CASES)
{
    for (size_t piece = 1; piece < 25; piece++) {
        char out[200];
        decode(out, cases[_i].bytes, piece);
        ck_assert_str_eq(out, cases[_i].text);
    }
}

TEST(a_character_comes_as_soon_as_its_last_byte)
{
    struct client_stream stream = {0};
    static const size_t lengths[] = {0, 0, 0, 4, 1, 0, 2};
    const char *bytes = "\xF0\x9F\x8C\x8D.\xC3\xA9", *text;
    size_t n;

    for (size_t i = 0; i < 7; i++) {
        ck_assert_int_eq(client_stream_push(&stream, &text, &n, bytes + i, 1, i == 6, NULL), 0);
        ck_assert_uint_eq(n, lengths[i]);
    }
    ck_assert_int_eq(client_stream_push(&stream, &text, &n, "\xE2\x82", 2, true, NULL), 0);
    ck_assert_uint_eq(n, 3);
    client_stream_free(&stream);
}
