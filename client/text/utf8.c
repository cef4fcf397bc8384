#include "client/text/utf8.h"

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
