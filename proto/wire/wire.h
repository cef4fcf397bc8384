/* proto/wire/wire.h - the bytes of a message, field by field. For codecs.
 *
 * One pass over the bytes either writes or reads. Each field is one function for both directions, so encoder and
 * decoder cannot disagree, and both make the same checks. Little-endian. */
#ifndef PROTO_WIRE_WIRE_H
#define PROTO_WIRE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wire {
    uint8_t *to;         /* NULL when reading */
    const uint8_t *from; /* NULL when writing */
    size_t at, end;
    const char *why; /* the first fault; nothing is read after it */
};

void wire_wrong(struct wire *w, const char *why);

/* *value is written to the message, or read from it (0 after a fault). */
void wire_u64(struct wire *w, uint64_t *value);
void wire_u16(struct wire *w, uint16_t *value);
void wire_u32(struct wire *w, uint32_t *value);
void wire_u32_in(struct wire *w, uint32_t *value, uint32_t first, uint32_t last);
void wire_f64(struct wire *w, double *value);
void wire_f64_finite(struct wire *w, double *value);
void wire_f64_from_0(struct wire *w, double *value);
void wire_f32(struct wire *w, float *value);
void wire_flag(struct wire *w, bool *value);
/* An enumeration in one byte. */
unsigned wire_choice(struct wire *w, unsigned value, unsigned first, unsigned last);
/* size bytes, text padded with zeros: printable UTF-8, safe for a terminal. When writing, other bytes become '?'. */
void wire_text(struct wire *w, char *value, size_t size);

/* One little-endian number of so many bytes, outside a pass. */
void wire_put(uint8_t *to, uint64_t value, unsigned bytes);
uint64_t wire_get(const uint8_t *from, unsigned bytes);

#endif
