/* Values of tensors as fp32. An f16 widens by a shift and a product, as both are exact. */
#include "proto/model/file/safetensors.h"

#include "proto/base/number.h"
#include "proto/model/coded.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

static float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Shifted into place, an f16 is too small by 2^112 as fp32, subnormal or not. Infinity and NaN are handled apart. */
static float from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7FFF) << 13;

    if (rest >= 0x0F800000)
        return from_bits(sign | 0x7F800000 | rest);
    return from_bits(sign | rest) * 0x1p112f;
}

static void safetensors_widen(float *out, const struct safetensors_entry *entry, const uint16_t *bits, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = entry->type == SAFETENSORS_F16   ? from_f16(bits[i])
                 : entry->type == SAFETENSORS_U16 ? number_from_v16(bits[i])
                                                  : from_bits((uint32_t)bits[i] << 16);
}

bool safetensors_is_real(const struct safetensors_entry *entry)
{
    return entry->type == SAFETENSORS_F32 || entry->type == SAFETENSORS_F16 || entry->type == SAFETENSORS_BF16;
}

static unsigned element_bytes(const struct safetensors_entry *entry)
{
    assert(safetensors_is_real(entry) || entry->type == SAFETENSORS_U16);
    return entry->type == SAFETENSORS_F32 ? sizeof(float) : sizeof(uint16_t);
}

uint64_t safetensors_most(const struct safetensors_entry *entry)
{
    return entry->coded ? coded_most(entry->coded) : FILE_WINDOW / element_bytes(entry);
}

void safetensors_convert(float *out, const struct safetensors_entry *entry, const struct safetensors_window *window,
                         uint64_t first, uint64_t n)
{
    if (entry->coded) {
        coded_convert(out, entry->coded, window, first, n);
        return;
    }
    const void *bytes = (const char *)window->bytes + (first - window->first) * element_bytes(entry);
    if (entry->type == SAFETENSORS_F32)
        memcpy(out, bytes, n * sizeof *out);
    else
        safetensors_widen(out, entry, bytes, n);
}

enum { HALVES = 16384 }; /* read at a time, on the stack */

static int halves_read(float *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n, struct error *err)
{
    uint16_t bits[HALVES];
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n; done += HALVES) {
        const uint64_t now = n - done < HALVES ? n - done : HALVES;
        rc = file_read(&entry->file, bits, now * sizeof *bits, entry->offset + (first + done) * sizeof *bits, err);
        if (rc == 0)
            safetensors_widen(out + done, entry, bits, now);
    }
    return rc;
}

int safetensors_read(float *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n, struct error *err)
{
    assert(first <= entry->n && n <= entry->n - first);
    if (entry->coded)
        return coded_read(out, entry->coded, first, n, err);
    return element_bytes(entry) == sizeof *out
               ? file_read(&entry->file, out, n * sizeof *out, entry->offset + first * sizeof *out, err)
               : halves_read(out, entry, first, n, err);
}

int safetensors_window(struct safetensors_window *out, const struct safetensors_entry *entry, uint64_t first,
                       uint64_t n, uint64_t ahead, struct error *err)
{
    const struct file *file = &entry->file;

    assert(file->server && first <= entry->n && n + ahead <= entry->n - first);
    if (entry->coded)
        return coded_window(out, entry->coded, first, n, err);
    const unsigned bytes = element_bytes(entry);
    out->first = first;
    return file->server->window(file->server, &out->bytes, file->index, entry->offset + first * bytes, n * bytes,
                                ahead * bytes, err);
}

int safetensors_read_counts(int64_t *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n,
                            struct error *err)
{
    assert(entry->type == SAFETENSORS_I64 && first <= entry->n && n <= entry->n - first);
    return file_read(&entry->file, out, n * sizeof *out, entry->offset + first * sizeof *out, err);
}
