/* tests/kit/inprocess/programs.h - layers of three families as programs: GPT-2's block as it is trained, Llama's and
 * BERT's to show that programs say those too. */
#ifndef TESTS_KIT_INPROCESS_PROGRAMS_H
#define TESTS_KIT_INPROCESS_PROGRAMS_H

#include "proto/operation/program.h"

struct programs_shape {
    uint32_t width, n_heads, n_kv_heads, inner; /* n_kv_heads: Llama's */
    float dropout;                              /* GPT-2's and BERT's, of what is added */
};

enum { PROGRAMS_GPT2, PROGRAMS_LLAMA, PROGRAMS_BERT, PROGRAMS };

/* GPT-2's block: norms before. */
void programs_gpt2(struct program *p, const struct programs_shape *shape);
/* Or that of any. */
void programs_write(struct program *p, int which, const struct programs_shape *shape);

#endif
