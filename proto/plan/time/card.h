/* proto/plan/time/card.h - what cards are assumed to do that no eps bench has measured.
 *
 * The figures of the H100 that was measured (profile_default), each by the ratio of the two cards' data sheets. In bf16
 * that is the rate with sums in fp32, which on a GeForce is half of the rate with sums in fp16: products of other sums
 * round more. */
#ifndef PROTO_PLAN_TIME_CARD_H
#define PROTO_PLAN_TIME_CARD_H

#include "proto/plan/time/profile.h"

enum { CARDS = 3 };

struct card {
    const char *name;  /* of eps plan --card */
    const char *model; /* its name by the driver: others with it inside, as laptops', are other cards */
    /* By the data sheet: dense products per second on tensor cores in bf16 with sums in fp32; fp32 without them;
     * memory; the link each way. */
    double bf16_flops, fp32_flops, memory_bytes_per_s, link_bytes_per_s;
    double n_multiprocessors;
    uint64_t bytes;                /* of memory */
    enum plan_attention attention; /* the best way of today's cuDNN */
};
extern const struct card cards[CARDS];

/* The card of this model, as the driver names it. NULL: it is none of them. */
const struct card *card_find(const char *model);

/* What a card is assumed to do; not measured. NULL: as profile_default has it. */
struct profile card_profile(const struct card *card);

/* profile_default, or the profile of the card that this CUDA device is; profile_default must know the device. */
struct profile card_profile_of(const char *device, const char *model);

#endif
