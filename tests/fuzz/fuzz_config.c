/* tests/fuzz/fuzz_config.c - model_config_parse takes any bytes, as daemon and worker do, and what it takes is a model.
 *
 * Built by the fuzz preset: build/fuzz/bin/fuzz_config -max_total_time=60. Models of few layers are built as well: every
 * value within its limits gives one. */
#include "proto/model/model.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { FEW_LAYERS = 64, FEW_TOKENS = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct model_config config;
    struct error err = {""};
    struct model model;

    if (model_config_parse(&config, (const char *)bytes, n, &err) < 0) {
        if (!err.text[0])
            abort();
        return 0;
    }
    if (model_config_check(&config, &err) < 0)
        abort();
    if (config.n_layers > FEW_LAYERS || config.vocabulary > FEW_TOKENS)
        return 0;
    if (model_init(&model, &config, &err) < 0)
        abort();
    model_free(&model);
    return 0;
}
