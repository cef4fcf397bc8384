/* proto/model/widths.h - feed-forward layers whose width differs from block to block.
 *
 * Where config.json has the width of the feed-forward layers, it may have a list with one width for each block, as
 * transformers has it for Gemma 3n. A family marks its key FAMILY_WIDTHS and writes each block's program with the
 * block's own width as inner_width (proto/model/programs.c); it knows no more of this. */
#ifndef PROTO_MODEL_WIDTHS_H
#define PROTO_MODEL_WIDTHS_H

#include "proto/base/error.h"

#include <stdint.h>

struct family;
struct json_t;
struct model_config;

enum { MODEL_WIDTHS = 8, MODEL_WIDTHS_BLOCKS = 4096, MODEL_WIDEST = 1 << 20 };

struct model_widths {
    uint32_t n;                       /* blocks that the file lists; 0: all have inner_width */
    uint32_t n_different;             /* 1..MODEL_WIDTHS, if n > 0 */
    uint32_t different[MODEL_WIDTHS]; /* in the order in which blocks first have them */
    uint8_t of[MODEL_WIDTHS_BLOCKS];  /* (n) a block's width: index in `different` */
};

/* Reads a list; *widest is the largest. -EINVAL with a sentence: key has no list of widths from 1 to MODEL_WIDEST, at
 * most MODEL_WIDTHS of them different. */
int model_widths_read(struct model_widths *out, uint32_t *widest, const char *key, const struct json_t *list,
                      struct error *err);

/* The width of a block's feed-forward layer. */
uint32_t model_width_of(const struct model_config *config, uint32_t block);

/* How many different widths blocks have, and one of them. */
uint32_t model_count_widths(const struct model_config *config);
uint32_t model_width_at(const struct model_config *config, uint32_t i);

/* The family's check of its numbers, with each of the blocks' widths; and that there is one for each block. -EINVAL
 * with a sentence. */
int model_widths_check(const struct model_config *config, struct error *err);

/* The key of the widths in config.json. Borrowed; NULL: the family has none. */
const char *model_widths_key(const struct family *family);

/* Sets a config.json's widths (n), one for each block: one number if all are equal. -EINVAL: it has no key for them;
 * -ENOMEM. */
int model_widths_set(struct json_t *config, const uint32_t *widths, uint32_t n);

#endif
