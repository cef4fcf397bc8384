#include "tests/kit/fixture_step.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every piece of a tensor, from its place in the segment to that in the tensor or the other way. */
static void copy_tensor(const struct model *model, const struct model_tensor *tensor, float *segment, float *values,
                        bool to_segment)
{
    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const struct model_piece *piece = &model->pieces[model->units[u].first_piece + i];
            float *there = segment + model->units[u].offset + piece->offset;
            float *here = values + piece->first_row * tensor->shape[1];
            if (&model->tensors[piece->tensor] == tensor)
                memcpy(to_segment ? there : here, to_segment ? here : there, piece->n * sizeof *here);
        }
}

void fixture_step_open(struct fixture_step *step, const char *fixture, enum number_type precision)
{
    char text[4096];
    struct model_config config;
    struct error err = {""};

    *step = (struct fixture_step){0};
    fixture_open(&step->fixture, fixture);
    FILE *file = fopen(step->fixture.config, "rb");
    ck_assert_ptr_nonnull(file);
    const size_t n = fread(text, 1, sizeof text, file);
    fclose(file);
    ck_assert_msg(model_config_parse(&config, text, n, &err) == 0, "%s", err.text);
    setting_open(&step->s, &config, step->fixture.batch, step->fixture.seq);
    step->s.precision = precision;
    step->tensor = malloc(step->s.model.largest_unit * step->s.model.n_units * sizeof *step->tensor);
    ck_assert_ptr_nonnull(step->tensor);
    for (uint32_t t = 0; t < step->s.model.n_tensors; t++) {
        const struct model_tensor *tensor = &step->s.model.tensors[t];
        fixture_draw(step->tensor, &step->fixture, tensor->name);
        copy_tensor(&step->s.model, tensor, step->s.weights, step->tensor, true);
    }
    step->s.n_valid = fixture_minibatch(step->s.ids, step->s.labels, &step->fixture, 0);
}

void fixture_step_close(struct fixture_step *step)
{
    array_link_free(&step->link);
    setting_close(&step->s);
    fixture_close(&step->fixture);
    free(step->tensor);
}

double fixture_step_run(struct fixture_step *step, uint32_t part_rows, uint32_t microbatch)
{
    const struct device_worker_options options = setting_options(&step->s, part_rows, microbatch);
    double loss = 0;

    setting_step_whole(&step->link, &step->s, &options);
    for (uint32_t part = 0; part < step->s.batch / part_rows; part++)
        loss += step->link.losses[part] / (double)step->s.n_valid;
    return loss;
}

const float *fixture_step_find(void *context, const char *name, uint64_t n)
{
    struct fixture_step *step = context;
    const struct model_tensor *tensor = model_find(&step->s.model, name);

    ck_assert(tensor && tensor->n == n);
    copy_tensor(&step->s.model, tensor, step->link.gradient, step->tensor, false);
    return step->tensor;
}
