/* Addresses on the network, in words: a daemon listens at one, a worker connects to one.
 *
 * getaddrinfo is not believed when it says that there is no such host: where no descriptor is left to ask with, it may
 * say so too, and only errno tells why. */
#include "proto/net/port.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

bool port_is_address(const char *address)
{
    return address && strncmp(address, "tcp://", 6) == 0;
}

/* IPv6 needs brackets, since its colons would hide the port's. */
int port_split(char name[PORT_NAME_BYTES], char digits[PORT_DIGITS_BYTES], const char *address, struct error *err)
{
    const char *at = address + 6, *colon = strrchr(at, ':'), *first = at, *last = colon;

    if (colon && *at == '[') {
        first = at + 1;
        last = colon > at && colon[-1] == ']' ? colon - 1 : NULL;
    } else if (colon && memchr(at, ':', (size_t)(colon - at))) {
        last = NULL; /* IPv6 without brackets */
    }
    if (!last || last <= first || last - first >= PORT_NAME_BYTES || !colon[1] || strlen(colon + 1) > 5 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || atoi(colon + 1) > 65535)
        return error_set(err, -EDOM, "%s: an address on the network is tcp://HOST:PORT, or tcp://[IPv6]:PORT", address);
    snprintf(name, PORT_NAME_BYTES, "%.*s", (int)(last - first), first);
    snprintf(digits, PORT_DIGITS_BYTES, "%s", colon + 1);
    return 0;
}

/* Why nothing could be looked up; 0: it was. */
static int port_address_fault(int rc)
{
    const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM;

    return rc == EAI_MEMORY ? -ENOMEM : is_short || (rc == EAI_SYSTEM && errno) ? -errno : 0;
}

int port_resolve(struct addrinfo **out, const char *address, bool listens, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = listens ? AI_PASSIVE : 0};
    char name[PORT_NAME_BYTES], digits[PORT_DIGITS_BYTES];
    int rc = port_split(name, digits, address, err);

    if (rc)
        return rc;
    const bool is_any = listens && strcmp(name, "*") == 0;
    if (is_any) /* refuses 10.0.0.1 while IPv4 is away */
        hints.ai_flags |= AI_ADDRCONFIG;
    errno = 0;
    rc = getaddrinfo(is_any ? NULL : name, digits, &hints, out);
    const int fault = rc ? port_address_fault(rc) : 0;
    return fault             ? error_set(err, fault, "%s: its host cannot be looked up: %s", address, strerror(-fault))
           : rc == EAI_AGAIN ? error_set(err, -EAGAIN, "%s: its host is not found: %s", address, gai_strerror(rc))
           : rc              ? error_set(err, -EDOM, "%s: there is no such host: %s", address, gai_strerror(rc))
                             : 0;
}
