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

int device_name_parse(struct device_name *out, const char *option, const char *text, struct error *err)
{
    const char *colon = strchr(text, ':');
    int kind = 0;

    *out = (struct device_name){DEVICE_AUTO, 0, false};
    while (kind < KINDS && !device_name_is(text, kinds[kind]))
        kind++;
    out->kind = (enum device_kind)kind;
    if (kind < KINDS && (!colon || (out->kind != DEVICE_CPU && parse_index(out, colon + 1))))
        return 0;
    return error_set(err, -EDOM, "%s %.40s: it is auto, cpu, cuda, or cuda:N for the device N, counted from 0", option,
                     text);
}

const char *device_name_print(char out[DEVICE_NAME_BYTES], const struct device_name *name)
{
    if (name->indexed)
        snprintf(out, DEVICE_NAME_BYTES, "%s:%u", kinds[name->kind], name->index);
    else
        snprintf(out, DEVICE_NAME_BYTES, "%s", kinds[name->kind]);
    return out;
}
