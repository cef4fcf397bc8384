/* tests/proto/step/speech.h - rows of a setting on one worker that generates, for test_generate and
 * test_generate_rows. */
#ifndef TESTS_PROTO_STEP_SPEECH_H
#define TESTS_PROTO_STEP_SPEECH_H

#include "proto/step/generate.h"
#include "tests/kit/device/array_link.h"
#include "tests/kit/device/setting.h"

extern const struct model_config speech_tall, speech_wide;

/* Models of more positions than two tiles of attention. */
enum { TALL, WINDOWED, ALTERNATING, CHUNKED, EXPERTS, STRETCHED, GROWING, CONVOLVING, LONG_CONFIGS };

struct model_config speech_long_config(int which);

/* One row of a setting on one worker, or several that advance together. */
struct speech {
    struct setting s;
    struct device_worker_options options;
    struct device_worker worker;
    struct ledger ledger;
    struct array_link link;
    float *logits;
    struct error err;
};

/* rows of seq tokens; the weights stay on the device. Undo: speech_tear_down. */
void speech_set_up_rows(struct speech *t, const struct model_config *config, uint32_t rows, uint32_t seq);
void speech_set_up(struct speech *t, const struct model_config *config, uint32_t seq); /* of one row */
void speech_tear_down(struct speech *t);
/* As t->options say by then. */
void speech_open_worker(struct speech *t);
void speech_close_worker(struct speech *t);

#endif
