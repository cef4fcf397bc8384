/* Adapters: gradients and training are PEFT's; neither a budget nor workers change a bit of them. */
#include "proto/plan/search.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, on_cuda_release)

/* Each family; some of the maps that one operation computes, or all; in all layers; rsLoRA; with masks; ranks and
 * alphas by module and block, and a block without; experts, their routers, and neither. */
static const char *const fixtures[] = {
    "lora_gpt2",    "lora_gpt2_all", "lora_llama",       "lora_mistral",   "lora_qwen2",   "lora_qwen3",
    "lora_gemma",   "lora_qwen3_5",  "lora_gemma3",      "lora_bert",      "lora_roberta", "lora_t5",
    "lora_dropout", "lora_patterns", "lora_patterns_rs", "lora_qwen3_moe", "lora_mixtral", "lora_qwen2_moe",
};

static int count_fixtures(void)
{
    return backend_get()->simulated ? 2 : COUNT(fixtures);
}

TEST_EACH(the_gradient_is_pefts, count_fixtures())
{
    exact_check_gradient(fixtures[_i], &(struct inprocess_options){.n_parts = 1, .microbatch = 3, .adamw = true});
}

/* Each family's base in 4 or 8 bits: float64 over the weights that bitsandbytes decodes. */
static const struct {
    const char *fixture;
    enum form base;
} coded[] = {
    {"lora_gpt2_nf4", FORM_NF4},      {"lora_llama_int8", FORM_INT8},   {"lora_mistral_nf4", FORM_NF4},
    {"lora_qwen2_int8", FORM_INT8},   {"lora_qwen3_nf4", FORM_NF4},     {"lora_gemma_nf4", FORM_NF4},
    {"lora_gemma3_int8", FORM_INT8},  {"lora_bert_nf4", FORM_NF4},      {"lora_roberta_int8", FORM_INT8},
    {"lora_qwen3_moe_nf4", FORM_NF4}, {"lora_mixtral_int8", FORM_INT8},
};

TEST_EACH(the_gradient_over_a_coded_base_is_pefts, backend_get()->simulated ? 0 : COUNT(coded))
{
    exact_check_gradient(coded[_i].fixture, &(struct inprocess_options){
                                                .base = coded[_i].base, .n_parts = 1, .microbatch = 3, .adamw = true});
}

/* One worker with one part, or two workers with one each. */
TEST_EACH(all_steps_are_pefts, backend_get()->simulated ? 0 : COUNT(fixtures))
{
    const uint32_t n = 1 + (uint32_t)_i % 2;

    exact_check_training(fixtures[_i],
                         &(struct inprocess_options){.n_parts = n, .n_workers = n, .microbatch = 4, .adamw = true});
}

/* The base keeps its bits: in bf16, rounded once. */
static void check_base(struct exact *exact)
{
    const struct model *model = &exact->ip->model;
    float *drawn = calloc(model->largest_unit, sizeof *drawn);
    uint32_t n_frozen = 0;

    exact->segment = exact_weights(exact);
    for (const struct model_tensor *t = model->tensors; t < model->tensors + model->n_tensors; t++) {
        ck_assert(t->frozen == !strstr(t->name, ".lora_"));
        if (!t->frozen)
            continue;
        fixture_draw(drawn, &exact->fixture, t->name);
        for (uint64_t i = 0; exact->masters && i < t->n; i++)
            drawn[i] = number_from_bf16(number_to_bf16(drawn[i]));
        ck_assert_mem_eq(exact_find(exact, t->name, t->n), drawn, t->n * sizeof *drawn);
        n_frozen++;
    }
    ck_assert_uint_gt(n_frozen, 0);
    free(drawn);
}

/* The smallest budget: boundaries on the host, one buffer, nothing kept; against the roomiest, and two workers. */
TEST_EACH(no_budget_changes_a_bit, backend_get()->simulated ? 0 : COUNT(fixtures) * COMMON_TYPES)
{
    const char *fixture = fixtures[_i / COMMON_TYPES];
    struct inprocess_options how = {.n_parts = 2,
                                    .microbatch = 2,
                                    .budget = (uint64_t)1 << 30,
                                    .precision = (enum number_type)(_i % COMMON_TYPES),
                                    .adamw = true,
                                    .deterministic = true};
    struct exact roomy, small;
    struct plan least;

    exact_train(&roomy, fixture, &how, 3);
    ck_assert_int_gt(roomy.ip->workers[0].worker.plan.choice.keeping[0].n_kept, 0);
    plan_smallest(&least, &roomy.ip->model, &roomy.ip->workers[0].worker.plan.setting,
                  &(struct plan_wish){.microbatch = 2});
    how.budget = plan_total(&least), how.n_workers = 2;
    exact_train(&small, fixture, &how, 3);
    ck_assert(small.ip->workers[0].worker.plan.choice.host_stash);
    ck_assert_uint_eq(exact_digest(&roomy, exact_weights(&roomy)), exact_digest(&small, exact_weights(&small)));
    check_base(&small);
    exact_close(&roomy), exact_close(&small);
}
