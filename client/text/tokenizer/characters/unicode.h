/* client/text/tokenizer/characters/unicode.h - characters: classes, lower case, normal forms.
 *
 * The tables are utf8proc's (Unicode 14). The package tokenizers has tables of several versions, from Unicode 8 for
 * punctuation to 16 for lower case, so rare characters that were added in between may differ. tests/oracle/tokens.py
 * compares every character. */
#ifndef CLIENT_TEXT_TOKENIZER_CHARACTERS_UNICODE_H
#define CLIENT_TEXT_TOKENIZER_CHARACTERS_UNICODE_H

#include "client/text/utf8.h"

/* The character at the start of valid UTF-8; *n is its length, 1..4. */
static inline uint32_t tokenizer_character(const char *text, unsigned *n)
{
    const uint8_t *at = (const uint8_t *)text;

    if (at[0] < 0x80) {
        *n = 1;
        return at[0];
    }
    if (at[0] < 0xE0) {
        *n = 2;
        return (at[0] & 0x1Fu) << 6 | (at[1] & 0x3Fu);
    }
    if (at[0] < 0xF0) {
        *n = 3;
        return (at[0] & 0xFu) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu);
    }
    *n = 4;
    return (at[0] & 7u) << 18 | (at[1] & 0x3Fu) << 12 | (at[2] & 0x3Fu) << 6 | (at[3] & 0x3Fu);
}

/* Writes a character as UTF-8; returns its length. */
unsigned tokenizer_put_character(char out[4], uint32_t c);

bool tokenizer_is_blank(uint32_t c);   /* Unicode's White_Space */
bool tokenizer_is_word(uint32_t c);    /* \w: Alphabetic, marks, decimal digits, connectors, joiners */
bool tokenizer_is_mark(uint32_t c);    /* M */
bool tokenizer_is_accent(uint32_t c);  /* Mn */
bool tokenizer_is_control(uint32_t c); /* Cc, Cf and Co, without tab, line feed and carriage return */
bool tokenizer_is_han(uint32_t c);     /* the ideographs that BERT takes for words */

/* Bytes of the extended grapheme cluster that text (n bytes of valid UTF-8, at least one) begins with. */
size_t tokenizer_grapheme(const char *text, size_t n);

/* Appends the lower case of a character: up to 4 bytes. The caller made room for them. */
void tokenizer_add_lower(struct client_text *out, uint32_t c);

enum tokenizer_form { TOKENIZER_NFC, TOKENIZER_NFD, TOKENIZER_NFKC, TOKENIZER_NFKD };

/* Appends the normal form of text (n bytes of valid UTF-8). Takes O(n). -ENOMEM. */
int tokenizer_normal_form(struct client_text *out, enum tokenizer_form form, const char *text, size_t n,
                          struct error *err);

#endif
