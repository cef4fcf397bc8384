/* tests/fuzz/fuzz_message.c - message_decode takes any bytes, and what it takes encodes to the same bytes.
 *
 * Built by the fuzz preset: build/fuzz/bin/fuzz_message -max_total_time=60. Most random bytes fall at the header, so
 * each input is tried twice: as it is, and as the kind and the body behind a good header. */
#include "proto/wire/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void try(const uint8_t *bytes, size_t n)
{
    uint8_t again[MESSAGE_MAX_BYTES];
    struct message m;
    const char *why;

    if (message_decode(&m, bytes, n, &why) < 0) {
        if (!why)
            abort();
        return;
    }
    if (why || message_encode(again, sizeof again, &m) != n || memcmp(again, bytes, n) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    uint8_t whole[MESSAGE_HEADER_BYTES + MESSAGE_MAX_BYTES] = {MESSAGE_MAGIC & 255, MESSAGE_MAGIC >> 8,
                                                               MESSAGE_VERSION};

    try(bytes, n);
    if (n == 0 || n > MESSAGE_MAX_BYTES)
        return 0;
    whole[3] = bytes[0];
    whole[4] = (uint8_t)(n - 1);
    whole[5] = (uint8_t)((n - 1) >> 8);
    memcpy(whole + MESSAGE_HEADER_BYTES, bytes + 1, n - 1);
    try(whole, MESSAGE_HEADER_BYTES + n - 1);
    return 0;
}
