/* tests/fuzz/fuzz_config.c - config.json, as client, daemon and worker read it: what is taken is a model.
 *
 * Models of few layers are built, too: every value within its limits gives one. */
#include "client/corpus/labels.h"
#include "proto/model/model.h"
#include "proto/model/config/model_config_print.h"
#include "proto/model/wrapper.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { FEW_LAYERS = 64, FEW_TOKENS = 1 << 16, FEW_LABELS = 64 };

/* What is printed for an export is the same model. */
static void print(const struct model_config *config, const uint8_t *bytes, size_t n)
{
    struct model_config again;
    struct error err = {""};
    char *text = model_config_print((const char *)bytes, n, SAFETENSORS_BF16);

    fuzz_demand(text && model_config_parse(&again, text, strlen(text), &err) == 0);
    fuzz_demand(again.n_layers == config->n_layers && again.width == config->width &&
                again.n_labels == config->n_labels);
    free(text);
}

static void take_labels(const struct model_config *config, const uint8_t *bytes, size_t n)
{
    struct client_labels labels;
    struct error err = {""};
    char said[200];

    fuzz_demand(client_labels_init(&labels, config->regression, &err) == 0);
    if (!config->regression &&
        fuzz_took(client_labels_take(&labels, (const char *)bytes, n, config->n_labels, &err), &err))
        client_labels_say(said, sizeof said, &labels);
    client_labels_free(&labels);
}

static void take(const uint8_t *bytes, size_t n)
{
    struct model_config config;
    struct error err = {""};
    struct model model;

    if (!fuzz_took(model_config_parse(&config, (const char *)bytes, n, &err), &err))
        return;
    fuzz_demand(model_config_check(&config, &err) == 0);
    print(&config, bytes, n);
    if (config.n_labels > 0 && config.n_labels <= FEW_LABELS)
        take_labels(&config, bytes, n);
    if (config.n_layers > FEW_LAYERS || config.vocabulary > FEW_TOKENS)
        return;
    fuzz_demand(model_init(&model, &config, &err) == 0);
    model_free(&model);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char note[WRAPPER_NOTE_BYTES], *text = wrapper_text_config(note, (const char *)bytes, n);

    take(text ? (const uint8_t *)text : bytes, text ? strlen(text) : n);
    free(text);
    return 0;
}
