/* Each checkpoint takes two passes of a minibatch or more: it is printed and flushed as soon as it is measured. A ratio
 * of nothing is unknown, and printed as such. */
#include "tools/commands/report_bias.h"

#include "tools/commands.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* A ratio or a cosine, which may be unknown. */
static const char *number_text(char out[16], double value)
{
    snprintf(out, 16, isnan(value) ? "-" : "%.4f", value);
    return out;
}

static double ratio_of(const struct eps_bias_layer *layer, double norm)
{
    return layer->exact > 0 ? norm / layer->exact : NAN;
}

/* How many draws there are, and what they say: how far their mean would be off if they had noise alone. */
static void print_draws(const struct eps_bias *bias, int width)
{
    char noise[16], off[16], alone[16], cosine[16];

    printf("step %" PRIu64 ", %s, %" PRIu32 " draws, of the exact gradient's norm\n%-*s  noise    mean off  by noise "
           "alone  its cosine\n",
           bias->step, bias->approximate, bias->draws, width, "layer");
    for (const struct eps_bias_layer *layer = bias->layers; layer < bias->layers + bias->n_layers; layer++)
        if (layer->n > 0)
            printf("%-*s  %-7s  %-8s  %-14s  %s\n", width, layer->name,
                   number_text(noise, ratio_of(layer, layer->noise)), number_text(off, ratio_of(layer, layer->off)),
                   number_text(alone, ratio_of(layer, layer->noise / sqrt(bias->draws))),
                   number_text(cosine, layer->cosine));
}

static void print_bias(const struct eps_bias *bias)
{
    char cosine[16], ratio[16];
    size_t width = 5;

    for (size_t i = 0; i < bias->n_layers; i++)
        width = strlen(bias->layers[i].name) > width ? strlen(bias->layers[i].name) : width;
    if (bias->draws > 1) {
        print_draws(bias, (int)width);
        return;
    }
    printf("step %" PRIu64 ", %s\n%-*s  cosine  norm, of the exact gradient's\n", bias->step, bias->approximate,
           (int)width, "layer");
    for (const struct eps_bias_layer *layer = bias->layers; layer < bias->layers + bias->n_layers; layer++)
        if (layer->n > 0)
            printf("%-*s  %-6s  %s\n", (int)width, layer->name, number_text(cosine, layer->cosine),
                   number_text(ratio, ratio_of(layer, layer->norm)));
}

static json_t *known(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static void report_bias_print_json(const struct eps_bias *bias)
{
    json_t *layers = json_array();

    for (const struct eps_bias_layer *layer = bias->layers; layer < bias->layers + bias->n_layers; layer++)
        if (layer->n > 0)
            json_array_append_new(layers, json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:o}", "layer", layer->name,
                                                    "elements", (json_int_t)layer->n, "cosine", known(layer->cosine),
                                                    "norm", known(layer->norm), "exact_norm", known(layer->exact),
                                                    "off", known(layer->off), "noise", known(layer->noise)));
    json_t *object = json_pack("{s:I, s:s, s:I, s:o}", "step", (json_int_t)bias->step, "approximate", bias->approximate,
                               "draws", (json_int_t)bias->draws, "layers", layers);
    answer_write(stdout, object, 0);
    putchar('\n');
    json_decref(object);
}

struct printing {
    struct stopping stopping;
    bool json, begun;
};

static int report_bias_should_stop(void *user)
{
    struct printing *printing = user;
    return stopping_observer(&printing->stopping);
}

static void on_bias(void *user, const struct eps_bias *bias)
{
    struct printing *printing = user;

    if (printing->json) {
        report_bias_print_json(bias);
    } else {
        if (printing->begun)
            putchar('\n');
        print_bias(bias);
    }
    printing->begun = true;
    fflush(stdout);
}

int report_bias(const struct command *command, const struct eps_bias_options *options, bool json)
{
    const struct eps_bias_events events = {.on_bias = on_bias, .should_stop = report_bias_should_stop};
    struct printing printing = {.json = json};
    struct eps_error error;

    stopping_init(&printing.stopping);
    const int rc = eps_bias(options, &events, &printing, &error);
    return rc ? stopping_status(&printing.stopping, arguments_fail(command, rc, error.text)) : 0;
}
