/* A number is tried first: "1" may also begin an address of the PCI bus, but none is a number as a whole.
 *
 * Ids are compared as text, UUIDs by their beginning. So each is rewritten in one spelling, in lower case and with a
 * domain of four digits, and what is printed reads back as the same device. */
#include "proto/operation/device_name.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"auto", "cpu", "cuda"};
enum { KINDS = sizeof kinds / sizeof *kinds };

bool device_name_is(const char *name, const char *kind)
{
    const size_t n = strcspn(name, ":");

    return strlen(kind) == n && memcmp(name, kind, n) == 0;
}

/* Reads up to n hexadecimal digits and the character that follows them; moves *at behind it. */
static bool parse_hex(unsigned long *out, const char **at, size_t n, char end)
{
    const size_t n_digits = strspn(*at, "0123456789abcdefABCDEF");

    if (n_digits == 0 || n_digits > n || (*at)[n_digits] != end)
        return false;
    *out = strtoul(*at, NULL, 16);
    *at += n_digits + 1;
    return true;
}

/* Accepts a number as device_name_print writes it: no sign, no leading zero. */
static bool parse_index(struct device_name *out, const char *digits)
{
    char *end;

    if (!isdigit((unsigned char)*digits) || (*digits == '0' && digits[1]))
        return false;
    const unsigned long index = strtoul(digits, &end, 10);
    out->index = (unsigned)index;
    out->indexed = true;
    return !*end && index <= DEVICE_MAX_INDEX;
}

bool device_name_bus(char out[DEVICE_BUS_BYTES], const char *text)
{
    enum { DOMAIN_DIGITS = 8, BUS_DIGITS = 2, SLOT_DIGITS = 2, FUNCTION_DIGITS = 1, MOST_SLOT = 31, MOST_FUNCTION = 7 };
    const char *first = strchr(text, ':'), *second = first ? strchr(first + 1, ':') : NULL;
    unsigned long domain = 0, bus, slot, function;

    if (second && !parse_hex(&domain, &text, DOMAIN_DIGITS, ':'))
        return false;
    if (!parse_hex(&bus, &text, BUS_DIGITS, ':') || !parse_hex(&slot, &text, SLOT_DIGITS, '.') ||
        !parse_hex(&function, &text, FUNCTION_DIGITS, '\0') || slot > MOST_SLOT || function > MOST_FUNCTION)
        return false;
    snprintf(out, DEVICE_BUS_BYTES, "%04lx:%02lx:%02lx.%lx", domain, bus, slot, function);
    return true;
}

/* The beginning of a UUID, in lower case as nvidia-smi prints it. */
static bool parse_uuid(char out[DEVICE_ID_BYTES], const char *text)
{
    const size_t n = strlen(text);

    if (strncmp(text, "GPU-", 4) != 0 || n == 4 || n >= DEVICE_ID_BYTES)
        return false;
    for (size_t i = 4; i < n; i++)
        if (!isxdigit((unsigned char)text[i]) && text[i] != '-')
            return false;
    for (size_t i = 0; i <= n; i++)
        out[i] = i < 4 ? text[i] : (char)tolower((unsigned char)text[i]);
    return true;
}

static bool parse_device(struct device_name *out, const char *text)
{
    if (parse_index(out, text))
        return true;
    if (out->kind != DEVICE_CUDA)
        return false;
    out->index = 0;
    out->indexed = parse_uuid(out->id, text) || device_name_bus(out->id, text);
    return out->indexed;
}

int device_name_parse(struct device_name *out, const char *option, const char *text, struct error *err)
{
    const char *colon = strchr(text, ':');
    int kind = 0;

    *out = (struct device_name){.kind = DEVICE_AUTO};
    while (kind < KINDS && !device_name_is(text, kinds[kind]))
        kind++;
    out->kind = (enum device_kind)kind;
    if (kind < KINDS && (!colon || (out->kind != DEVICE_CPU && parse_device(out, colon + 1))))
        return 0;
    return error_set(
        err, -EDOM,
        "%s %.60s: it is auto, cpu, cuda, cuda:N for the device N, counted from 0, or cuda: and a device's UUID "
        "or PCI address, as in cuda:GPU-8f2c and cuda:0000:3b:00.0",
        option, text);
}

const char *device_name_print(char out[DEVICE_NAME_BYTES], const struct device_name *name)
{
    if (name->id[0])
        snprintf(out, DEVICE_NAME_BYTES, "%s:%s", kinds[name->kind], name->id);
    else if (name->indexed)
        snprintf(out, DEVICE_NAME_BYTES, "%s:%u", kinds[name->kind], name->index);
    else
        snprintf(out, DEVICE_NAME_BYTES, "%s", kinds[name->kind]);
    return out;
}
