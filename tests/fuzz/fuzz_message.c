/* tests/fuzz/fuzz_message.c - the codec of all messages: what decodes encodes to the same bytes.
 *
 * Most random bytes fall at the header, so each input is tried twice: as it is, and as the kind and the body behind a
 * right header. */
#include "proto/wire/message.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void try(const uint8_t *bytes, size_t n)
{
    uint8_t again[MESSAGE_MAX_BYTES];
    struct message m;
    const char *why;
    const int rc = message_decode(&m, bytes, n, &why);

    fuzz_demand(rc <= 0 && (rc == 0) == !why);
    if (rc == 0)
        fuzz_demand(message_encode(again, sizeof again, &m) == n && memcmp(again, bytes, n) == 0);
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
