/* tests/fuzz/fuzz_address.c - a daemon's address, from a command line and from WELCOME.
 *
 * A name leads to a directory of the caller's daemons, and to no other. An address of tcp splits into what it was made
 * of. */
#include "proto/net/port.h"
#include "proto/wire/channel.h"
#include "proto/wire/session.h"
#include "tests/fuzz/fuzz.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void split(const char *address)
{
    char name[PORT_NAME_BYTES], digits[PORT_DIGITS_BYTES], again[2 * PORT_NAME_BYTES];
    struct error err = {""};

    if (!port_is_address(address) || !fuzz_took(port_split(name, digits, address, &err), &err))
        return;
    const bool brackets = address[strlen("tcp://")] == '[';
    snprintf(again, sizeof again, brackets ? "tcp://[%s]:%s" : "tcp://%s:%s", name, digits);
    fuzz_demand(*name && *digits && strcmp(again, address) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char out[PATH_MAX / 2], base[PATH_MAX], *address;
    struct error err = {""};

    setenv("XDG_RUNTIME_DIR", fuzz_directory(), 1);
    if (!fuzz_part(&address, &n, &bytes, &n))
        return 0;
    if (fuzz_took(session_directory(out, sizeof out, address, &err), &err) && !strchr(address, '/')) {
        snprintf(base, sizeof base, "%s/eps/%s", fuzz_directory(), address);
        fuzz_demand(strcmp(out, base) == 0 && *address != '.');
    }
    if (channel_address_fits(address))
        fuzz_demand(strncmp(address, "ipc:///", 7) == 0 && strlen(address) <= 107 + strlen("ipc://"));
    split(address);
    free(address);
    return 0;
}
