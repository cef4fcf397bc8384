/* Data sheets: NVIDIA H100 Tensor Core GPU (SXM); NVIDIA Ada GPU architecture, table 2; NVIDIA RTX Blackwell GPU
 * architecture, table 3. A link is PCI Express 5.0 or, of the RTX 4090, 4.0 with 16 lanes, less its line code. */
#include "proto/plan/time/card.h"

#include "proto/operation/device_name.h"

#include <string.h>

/* The first is the one that profile_default has. */
const struct card cards[CARDS] = {
    {"h100", "NVIDIA H100 80GB HBM3", 989.4e12, 66.9e12, 3.35e12, 63e9, 132, (uint64_t)80 << 30, PLAN_ATTENTION_SCORES},
    {"rtx-4090", "NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12, 1.008e12, 31.5e9, 128, (uint64_t)24 << 30,
     PLAN_ATTENTION_SCORES},
    {"rtx-5090", "NVIDIA GeForce RTX 5090", 209.5e12, 104.8e12, 1.792e12, 63e9, 170, (uint64_t)32 << 30,
     PLAN_ATTENTION_FORWARD},
};

const struct card *card_find(const char *model)
{
    for (const struct card *card = cards; card < cards + CARDS; card++)
        if (!strcmp(model, card->model))
            return card;
    return NULL;
}

static void card_scale(double *figures, size_t n, double by)
{
    for (size_t i = 0; i < n; i++)
        figures[i] *= by;
}

/* Rates by type, of which n lie one after another. */
static void scale_types(double (*figures)[PROFILE_TYPES], size_t n, const struct card *card)
{
    for (size_t i = 0; i < n; i++) {
        figures[i][NUMBER_FP32] *= card->fp32_flops / cards->fp32_flops;
        figures[i][NUMBER_BF16] *= card->bf16_flops / cards->bf16_flops;
    }
}

struct profile card_profile(const struct card *card)
{
    struct profile p = *profile_default("cuda");

    if (!card)
        return p;
    card_scale(p.matmul_flops[NUMBER_FP32], PROFILE_ROWS, card->fp32_flops / cards->fp32_flops);
    card_scale(p.matmul_flops[NUMBER_BF16], PROFILE_ROWS, card->bf16_flops / cards->bf16_flops);
    scale_types(p.attention_flops[0], PROFILE_DIRECTIONS * ATTENTION_PATHS, card);
    scale_types(p.conv2d_flops[0], CONV2D_KINDS * CONV2D_PATHS, card);
    p.memory_bytes_per_s *= card->memory_bytes_per_s / cards->memory_bytes_per_s;
    card_scale(p.norm_bytes_per_s, PROFILE_DIRECTIONS, card->memory_bytes_per_s / cards->memory_bytes_per_s);
    p.link_bytes_per_s *= card->link_bytes_per_s / cards->link_bytes_per_s;
    p.n_multiprocessors = card->n_multiprocessors;
    p.attention = card->attention;
    return p;
}

struct profile card_profile_of(const char *device, const char *model)
{
    return device_name_is(device, "cuda") ? card_profile(card_find(model)) : *profile_default(device);
}
