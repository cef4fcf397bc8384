/* tests/fuzz/fuzz_handshake.c - both sides of the handshake take any bytes, and none of them passes as a key.
 *
 * The first byte chooses the side and its flags. Secrets are fixed, so an input that gets through would show. */
#include "proto/net/handshake.h"
#include "tests/fuzz/fuzz.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t key[KEY_BYTES] = "none of your business, really.";

static const uint8_t *find_key(void *user, enum handshake_channel channel, uint64_t session)
{
    (void)user;
    return channel == HANDSHAKE_CONTROL || session == 7 ? key : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct handshake h;
    struct handshake_setup setup = {.find_key = find_key, .channel = HANDSHAKE_CONTROL, .secret = {1, 2, 3}};
    uint8_t out[HANDSHAKE_HELLO_BYTES], taken[HANDSHAKE_HELLO_BYTES];
    const char *why = NULL;
    size_t n_out, at = 1;
    int rc = 0;

    if (n < 1 || sodium_init() < 0)
        return 0;
    setup.calls = bytes[0] & 1;
    setup.flags = bytes[0] >> 1 & 3;
    setup.channel = bytes[0] & 8 ? HANDSHAKE_BULK : HANDSHAKE_CONTROL;
    setup.key = key;
    handshake_begin(&h, &setup, out, &n_out);
    if (n_out != (setup.calls ? HANDSHAKE_HELLO_BYTES : 0))
        abort();
    while (rc == 0 && handshake_wants(&h) > 0 && handshake_wants(&h) <= n - at) {
        const size_t wanted = handshake_wants(&h);
        memcpy(taken, bytes + at, wanted);
        at += wanted;
        rc = handshake_take(&h, taken, out, &n_out, &why);
        if (n_out > sizeof out || (rc != 0) != (why != NULL) || (rc != 0) != (h.state == HANDSHAKE_FAILED))
            abort();
    }
    if (h.state == HANDSHAKE_DONE)
        abort();
    return 0;
}
