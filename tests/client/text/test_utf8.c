/* Every sequence of up to four bytes that matters, against the definition; and characters out of bytes that come in
 * pieces. */
#include "tests/kit/test.h"

#include "client/text/utf8.h"

#include <stdbool.h>
#include <string.h>

/* RFC 3629, section 3, as a table of scalar values: encodes one; the number of bytes. */
static int encode(uint8_t out[4], uint32_t c)
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    const int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)((0xF00 >> n) | c);
    return n;
}

TEST(every_character_is_one_and_its_beginnings_are_cut_off)
{
    uint8_t text[4];

    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        const int n = encode(text, c);
        const int expected = c >= 0xD800 && c <= 0xDFFF ? -1 : n;
        if (client_utf8_character(text, 4) != expected) /* Check's own assertions take too long for a million */
            ck_abort_msg("U+%04X", c);
        for (int cut = 1; cut < n && expected > 0; cut++) {
            if (client_utf8_character(text, (size_t)cut) != 0)
                ck_abort_msg("U+%04X, %d bytes", c, cut);
        }
    }
}

/* Of all 2^24 beginnings of three bytes, and four where the first asks for it: as many are characters as there are. */
TEST(nothing_else_is_a_character)
{
    uint64_t n_characters[5] = {0};

    for (uint32_t bits = 0; bits < 1 << 24; bits++) {
        const uint8_t text[4] = {(uint8_t)(bits >> 16), (uint8_t)(bits >> 8), (uint8_t)bits, 0x80};
        const int n = client_utf8_character(text, 4);
        if (n > 0)
            n_characters[n]++;
    }
    ck_assert_uint_eq(n_characters[1], 0x80 << 16);
    ck_assert_uint_eq(n_characters[2], (0x800 - 0x80) << 8);
    ck_assert_uint_eq(n_characters[3], 0x10000 - 0x800 - 0x800); /* no surrogates */
    ck_assert_uint_eq(n_characters[4], 0x100000 / 0x40);         /* the last byte is one of 64 */
}

TEST(whole_characters_end_where_something_is_wrong_or_cut)
{
    static const char text[] = "abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz\xE2\x82\xAC-";
    uint8_t copy[sizeof text];
    const size_t n = sizeof text - 1;

    ck_assert_uint_eq(client_utf8_whole((const uint8_t *)text, n), n);
    ck_assert_uint_eq(client_utf8_whole((const uint8_t *)text, n - 2), n - 4);
    for (size_t i = 0; i < n - 4; i++) {
        memcpy(copy, text, sizeof text);
        copy[i] = 0xFF;
        ck_assert_uint_eq(client_utf8_whole(copy, n), i);
    }
    ck_assert_uint_eq(client_utf8_whole(copy, 0), 0);
}

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

TEST_EACH(pieces_of_any_size_give_the_same_text, COUNT(cases))
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
