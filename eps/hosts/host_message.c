/* Each message carries all fields: forms of their own for thirty kinds would save little beside the slices that travel
 * between hosts. The lists of encoder and decoder are the same, member by member, in the same order. Reals travel as
 * their bits: a NaN says that a step is not finite, and must arrive as one. */
#include "eps/hosts/host_message.h"

#include "eps/hosts/hosts.h"

#include <assert.h>
#include <string.h>

_Static_assert((int)HOST_MESSAGE_MAX_BYTES <= (int)HOSTS_MESSAGE_BYTES, "it is one message of a backend");

static uint8_t *host_message_put(uint8_t *at, uint64_t x, int n)
{
    for (int i = 0; i < n; i++)
        *at++ = (uint8_t)(x >> 8 * i);
    return at;
}

static uint64_t host_message_get(const uint8_t **at, int n)
{
    uint64_t x = 0;

    for (int i = 0; i < n; i++)
        x |= (uint64_t) * (*at)++ << 8 * i;
    return x;
}

size_t host_message_encode(uint8_t *buf, const struct host_message *w)
{
    const uint32_t narrow[] = {(uint32_t)w->kind, w->unit,     w->visit, w->part, w->slice,
                               w->buffer,         w->n_tokens, w->job,   w->id,   (uint32_t)w->code};
    const uint64_t wide[] = {w->step, w->bytes, w->n_valid, w->n_real, w->sum.a, w->sum.b};
    const struct preference_rewards *r = &w->rewards;
    const double real[] = {w->x, r->chosen, r->rejected, r->right, r->chosen_log_p, r->rejected_log_p};
    const size_t n = strnlen(w->text, sizeof w->text - 1);
    uint64_t bits;
    uint8_t *at = buf;

    assert(w->kind > 0 && w->kind < HOST_KINDS);
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        at = host_message_put(at, narrow[i], 4);
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        at = host_message_put(at, wide[i], 8);
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        memcpy(&bits, &real[i], sizeof bits);
        at = host_message_put(at, bits, 8);
    }
    memcpy(at, w->text, n);
    return (size_t)(at - buf) + n;
}

bool host_message_decode(struct host_message *out, const uint8_t *buf, size_t n)
{
    const uint8_t *at = buf;
    uint64_t bits;

    if (n < HOST_HEADER_BYTES || n >= HOST_MESSAGE_MAX_BYTES)
        return false;
    *out = (struct host_message){.kind = (enum host_message_kind)host_message_get(&at, 4)};
    uint32_t *const narrow[] = {&out->unit,   &out->visit,    &out->part, &out->slice,
                                &out->buffer, &out->n_tokens, &out->job,  &out->id};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        *narrow[i] = (uint32_t)host_message_get(&at, 4);
    out->code = (int32_t)host_message_get(&at, 4);
    uint64_t *const wide[] = {&out->step, &out->bytes, &out->n_valid, &out->n_real, &out->sum.a, &out->sum.b};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        *wide[i] = host_message_get(&at, 8);
    struct preference_rewards *r = &out->rewards;
    double *const real[] = {&out->x, &r->chosen, &r->rejected, &r->right, &r->chosen_log_p, &r->rejected_log_p};
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        bits = host_message_get(&at, 8);
        memcpy(real[i], &bits, sizeof bits);
    }
    memcpy(out->text, at, n - HOST_HEADER_BYTES);
    return out->kind > 0 && out->kind < HOST_KINDS;
}
