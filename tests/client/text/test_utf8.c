/* Every sequence of up to four bytes that matters, against the definition. */
#include "tests/kit/test.h"

#include "client/text/utf8.h"

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
