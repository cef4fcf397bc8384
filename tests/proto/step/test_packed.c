/* Rows that hold several documents, of every part that blocks are made of: each document computes what it would in a row of its own, and the
 * same bits whatever documents are beside it. */
#include "proto/model/family.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, slow, on_cuda_release)

enum { ROWS = 2, SEQ = 100, VOCABULARY = 19 };

/* config.json of families, but for its vocabulary: those that most blocks are like, then the first that has a part; windows are shorter than documents and longer. */
#define SIZES   "'num_hidden_layers': 2, 'hidden_size': 24, 'intermediate_size': 20, 'num_attention_heads': 4, "
#define GROUPED SIZES "'num_key_value_heads': 2, 'head_dim': 6, 'rms_norm_eps': 1e-5, 'max_position_embeddings': 128, "
#define ENCODER SIZES "'layer_norm_eps': 1e-5, 'hidden_dropout_prob': 0, 'attention_probs_dropout_prob': 0, "
static const char *const families[] = {
    "'model_type': 'gpt2', 'n_layer': 2, 'n_head': 4, 'n_embd': 24, 'n_inner': 20, 'n_positions': 128, "
    "'activation_function': 'gelu_new', 'attn_pdrop': 0, 'embd_pdrop': 0, 'resid_pdrop': 0",
    GROUPED "'model_type': 'llama'",
    GROUPED "'model_type': 'mistral', 'sliding_window': 40",
    GROUPED "'model_type': 'qwen2'",
    GROUPED "'model_type': 'qwen3'",
    GROUPED "'model_type': 'gemma'",
    GROUPED "'model_type': 'gemma3_text', 'sliding_window': 20, 'layer_types': ['sliding_attention', 'full_attention']",
    SIZES "'model_type': 'lfm2', 'num_key_value_heads': 2, 'norm_eps': 1e-5, 'max_position_embeddings': 128, "
          "'block_multiple_of': 4, 'conv_L_cache': 4, 'conv_bias': true, 'layer_types': ['conv', 'full_attention']",
    SIZES
    "'model_type': 'qwen3_5_text', 'num_key_value_heads': 2, 'max_position_embeddings': 128, 'head_dim': 8, "
    "'full_attention_interval': 2, 'linear_num_key_heads': 1, 'linear_num_value_heads': 2, 'linear_key_head_dim': 4, "
    "'linear_value_head_dim': 8",
    SIZES
    "'model_type': 'olmo_hybrid', 'num_key_value_heads': 2, 'max_position_embeddings': 128, 'pad_token_id': null, "
    "'linear_num_key_heads': 1, 'linear_num_value_heads': 2, 'linear_key_head_dim': 4, 'linear_value_head_dim': 8",
    SIZES "'model_type': 'lfm3', 'num_key_value_heads': 2, 'max_position_embeddings': 128, 'pad_token_id': null, "
          "'sliding_window': 20, 'layer_types': ['full_attention', 'sliding_attention']",
    SIZES "'model_type': 'qwen2_moe', 'num_key_value_heads': 2, 'max_position_embeddings': 128, 'num_experts': 6, "
          "'num_experts_per_tok': 2, 'moe_intermediate_size': 12, 'shared_expert_intermediate_size': 8",
    SIZES "'model_type': 'lfm2_moe', 'num_key_value_heads': 2, 'max_position_embeddings': 128, 'num_experts': 6, "
          "'num_experts_per_tok': 2, 'moe_intermediate_size': 12, 'num_dense_layers': 1, 'conv_L_cache': 4, "
          "'layer_types': ['full_attention', 'conv']",
    "'model_type': 'qwen3_5_moe_text', 'num_hidden_layers': 2, 'num_attention_heads': 4, 'hidden_size': 24, "
    "'moe_intermediate_size': 12, 'num_key_value_heads': 2, 'max_position_embeddings': 128, 'head_dim': 8, "
    "'full_attention_interval': 2, 'linear_num_key_heads': 1, 'linear_num_value_heads': 2, 'linear_key_head_dim': 4, "
    "'linear_value_head_dim': 8, 'num_experts': 6, 'num_experts_per_tok': 2, 'shared_expert_intermediate_size': 8",
    ENCODER "'model_type': 'bert', 'max_position_embeddings': 128",
    ENCODER "'model_type': 'roberta', 'max_position_embeddings': 130",
    /* Scores and logits with a cap. */
    GROUPED "'model_type': 'gemma2', 'pad_token_id': null, 'sliding_window': 20, 'layer_types': ['sliding_attention', "
            "'full_attention'], 'attn_logit_softcapping': 3.0, 'final_logit_softcapping': 20.0",
    /* YaRN, and queries that grow with the position in their document. */
    GROUPED "'model_type': 'ministral3', 'pad_token_id': null, 'rope_parameters': {'rope_type': 'yarn', 'rope_theta': "
            "100.0, 'factor': 4.0, 'original_max_position_embeddings': 16, 'llama_4_scaling_beta': 0.3}",
    /* Frequencies divided one by one, of a share of the columns. */
    SIZES "'num_key_value_heads': 2, 'model_type': 'phi3', 'pad_token_id': null, 'max_position_embeddings': 256, "
          "'original_max_position_embeddings': 128, 'rope_parameters': {'rope_type': 'longrope', 'rope_theta': 100.0, "
          "'partial_rotary_factor': 0.67, 'short_factor': [1.0, 1.5], 'long_factor': [2.0, 3.5]}",
    /* A block without rotation, in which nothing but the mask tells documents apart. */
    SIZES "'num_key_value_heads': 2, 'model_type': 'smollm3', 'pad_token_id': null, 'max_position_embeddings': 128, "
          "'no_rope_layers': [1, 0]",
    /* Norms behind attention and MLP, and of queries and keys over the whole width. */
    SIZES "'num_key_value_heads': 2, 'model_type': 'olmo2', 'pad_token_id': null, 'max_position_embeddings': 128",
    /* Multipliers. */
    SIZES "'num_key_value_heads': 2, 'model_type': 'granite', 'max_position_embeddings': 128, 'pad_token_id': null, "
          "'attention_multiplier': 0.3, 'embedding_multiplier': 3.0, 'residual_multiplier': 0.4, 'logits_scaling': 2.5",
    /* Attention and MLP side by side, neighbouring columns rotated, norms of each head with weights of its own. */
    SIZES "'num_key_value_heads': 2, 'model_type': 'cohere', 'pad_token_id': null, 'max_position_embeddings': 128, "
          "'use_qk_norm': true",
    /* One map for a query, a key and a value, head by head. */
    SIZES "'model_type': 'gpt_neox', 'max_position_embeddings': 128, 'rotary_pct': 0.7, 'pad_token_id': null",
    /* ALiBi, of distances within a document. */
    "'model_type': 'bloom', 'n_layer': 2, 'n_head': 6, 'hidden_size': 24, 'pad_token_id': null, 'hidden_dropout': 0.0",
    /* xIELU, whose two numbers are sums over all tokens. */
    SIZES "'num_key_value_heads': 2, 'model_type': 'apertus', 'pad_token_id': null, 'max_position_embeddings': 128, "
          "'rope_parameters': {'rope_type': 'default', 'rope_theta': 100.0}",
    /* Learned positions behind two rows that are none. */
    "'model_type': 'opt', 'hidden_size': 24, 'ffn_dim': 20, 'num_attention_heads': 4, 'num_hidden_layers': 2, "
    "'max_position_embeddings': 128, 'pad_token_id': null, 'dropout': 0.0, 'word_embed_proj_dim': 24",
    /* Norms of queries and keys without weights, behind a rotation backwards. */
    SIZES "'num_key_value_heads': 2, 'model_type': 'nanochat', 'pad_token_id': null, 'max_position_embeddings': 128",
    /* The same before the rotation, a gate for each column, norms of other epsilons, a capped head. */
    SIZES "'num_key_value_heads': 2, 'model_type': 'muse_glimmer_text', 'max_position_embeddings': 128, 'head_dim': 8, "
          "'layer_rope_theta': [0, 1], 'sliding_window': 7",
    /* Norms of queries and keys by their mean. */
    SIZES "'num_key_value_heads': 2, 'model_type': 'phi', 'pad_token_id': null, 'max_position_embeddings': 128, "
          "'qk_layernorm': true",
    /* A window on both sides, beside blocks that see all. */
    SIZES "'model_type': 'modernbert', 'pad_token_id': null, 'max_position_embeddings': 128, 'local_attention': 12, "
          "'layer_types': ['full_attention', 'sliding_attention']",
    /* A map between the embedding and the blocks. */
    ENCODER "'model_type': 'electra', 'embedding_size': 12, 'pad_token_id': null, 'max_position_embeddings': 128",
};
enum { FAMILIES = COUNT(families) };

/* A simulated device is slow: it computes those whose positions are learned or whose attention is full, one that
 * convolves, and one more. */
static bool is_left_out(int family)
{
    return backend_get()->simulated && family > 1 && family != 7 && family != 9;
}

static struct model_config config_of(int family)
{
    struct model_config config;
    struct error err;
    char text[1000];

    snprintf(text, sizeof text, "{%s, 'vocab_size': %d}", families[family], VOCABULARY);
    for (char *c = text; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    return config;
}

/* Of tiles of 64 tokens: over their borders, and up to one. The last one of a row has what is left. */
static const uint32_t documents[ROWS][4] = {{70, 1, 20}, {33, 31, 3}};

/* A setting with positions. */
struct packed {
    struct setting s;
    uint32_t positions[ROWS * SEQ];
};

static void place(uint32_t positions[SEQ], const uint32_t lengths[4])
{
    for (uint32_t t = 0, next = 0, left = lengths[0], i = 1; t < SEQ; t++, left--) {
        if (left == 0)
            next = 0, left = lengths[i] ? lengths[i++] : SEQ;
        positions[t] = next++;
    }
}

static void open_packed(struct packed *p, int family)
{
    const struct model_config config = config_of(family);

    setting_open(&p->s, &config, ROWS, SEQ);
    for (int row = 0; row < ROWS; row++)
        place(p->positions + row * SEQ, documents[row]);
    p->s.positions = p->positions;
}

/* The tokens of the document that begins at `first`, of all of the minibatch. */
static uint32_t length_at(const struct packed *p, uint32_t first)
{
    uint32_t n = 1;

    while ((first + n) % SEQ != 0 && p->positions[first + n] > 0)
        n++;
    return n;
}

/* The document that begins at `first`, alone in a row as long as it is. */
static struct setting alone(const struct packed *p, uint32_t first)
{
    struct setting s = p->s;

    s.batch = 1, s.seq = length_at(p, first), s.positions = NULL;
    s.ids += first, s.labels += first;
    return s;
}

/* Only the documents from `first` on keep their labels, up to `end`. */
static void label_only(struct setting *s, uint32_t first, uint32_t end)
{
    for (uint32_t i = 0; i < s->batch * s->seq; i++)
        if (i < first || i >= end)
            s->labels[i] = PLAN_NO_LABEL;
}

/* Asserts that two gradients (segment_n) differ by at most `most` of each tensor's norm. An encoder's key biases have a
 * gradient of zero, as a softmax stays the same if all its scores move: what is there is rounding, of sums near 1. */
static void check_near(const struct model *model, const float *a, const float *b, double most)
{
    struct reference_gpt2 x, y;

    reference_gpt2_init(&x, model, a);
    reference_gpt2_init(&y, model, b);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const bool is_zero = strstr(model->tensors[t].name, ".key.bias");
        double difference = 0, size = 0;
        for (uint64_t i = 0; i < model->tensors[t].n; i++) {
            difference += pow(x.tensors[t][i] - y.tensors[t][i], 2);
            size += pow(y.tensors[t][i], 2);
        }
        ck_assert_msg(sqrt(difference) <= (is_zero ? most : most * sqrt(size)), "%s: off by %g of %g",
                      model->tensors[t].name, sqrt(difference), sqrt(size));
    }
    reference_gpt2_free(&x);
    reference_gpt2_free(&y);
}

/* Loss and gradient are those of the documents in rows of their own, in microbatches of a row, in one part or two: to
 * what section 4 allows a gradient; sums of the same some hundred products, but in another order, differ by a tenth of
 * it. */
TEST_EACH(a_packed_row_computes_what_its_documents_do, FAMILIES)
{
    struct packed p;
    struct array_link together;
    double loss = 0;

    if (is_left_out(_i))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    open_packed(&p, _i);
    float *gradient = calloc(p.s.model.segment_n, sizeof *gradient);
    const struct device_worker_options options = setting_options(&p.s, _i % 2 ? 1 : ROWS, 1);
    setting_step_whole(&together, &p.s, &options);
    for (uint32_t first = 0; first < ROWS * SEQ; first += length_at(&p, first)) {
        const struct setting s = alone(&p, first);
        const struct device_worker_options apart = setting_options(&s, 1, 1);
        struct array_link link;
        setting_step_whole(&link, &s, &apart);
        loss += link.losses[0];
        for (uint64_t i = 0; i < s.model.segment_n; i++)
            gradient[i] += link.gradient[i];
        array_link_free(&link);
    }
    ck_assert_double_eq_tol(together.losses[0] + together.losses[1], loss, 1e-6 * loss);
    check_near(&p.s.model, together.gradient, gradient, 1e-5);
    free(gradient);
    array_link_free(&together);
    setting_close(&p.s);
}

/* Whatever blocks keep, and in one microbatch of two rows whatever is kept: the same bits. */
TEST_EACH(what_packed_blocks_keep_changes_no_bit, FAMILIES)
{
    struct packed p;
    struct array_link link;

    if (is_left_out(_i))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    open_packed(&p, _i);
    struct device_worker_options options = setting_options(&p.s, ROWS, 1);
    setting_step_whole(&link, &p.s, &options);
    for (uint32_t c = 0; c < p.s.model.n_classes; c++)
        options.choice.keeping[c] = (struct plan_keeping){p.s.model.classes[c].n_blocks, MODEL_KEEPS_ALL, 0};
    setting_check_bits(&link, &p.s, &options);
    array_link_free(&link);
    setting_close(&p.s);
}

/* Where its tiles are those of a row of its own, as it begins with one, a document has the bits of such a row:
 * rotations are by its own positions, though scores depend on differences of positions alone. (A device's products may
 * differ.) */
TEST_EACH(a_document_that_begins_with_a_tile_has_the_loss_of_a_row, FAMILIES)
{
    static const uint32_t lengths[4] = {64};
    struct packed p;
    struct array_link together, link;

    if (backend_get()->cuda)
        TEST_SKIP("of the CPU alone");
    open_packed(&p, _i);
    place(p.positions, lengths);
    label_only(&p.s, 64, SEQ);
    const struct device_worker_options options = setting_options(&p.s, ROWS, 1);
    setting_step_whole(&together, &p.s, &options);
    const struct setting s = alone(&p, 64);
    const struct device_worker_options apart = setting_options(&s, 1, 1);
    setting_step_whole(&link, &s, &apart);
    ck_assert_double_eq(together.losses[0], link.losses[0]);
    array_link_free(&link);
    array_link_free(&together);
    setting_close(&p.s);
}

/* Of the second row alone, too. */
TEST_EACH(an_evaluation_of_packed_rows_has_the_loss_of_a_step, FAMILIES)
{
    struct packed p;
    struct array_link link;

    if (is_left_out(_i))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    open_packed(&p, _i);
    struct device_worker_options options = setting_options(&p.s, 1, 1);
    setting_step_whole(&link, &p.s, &options);
    options = setting_options(&p.s, ROWS, 1);
    options.setting.goal.purpose = PLAN_EVALUATE;
    for (uint32_t first = 0; first < ROWS; first++) {
        const struct device_evaluation evaluation = {.version = SETTING_STEP,
                                                     .rows = setting_rows(&p.s),
                                                     .first_row = first,
                                                     .n_rows = ROWS - first};
        ck_assert_double_eq_tol(setting_evaluate(&p.s, &options, &evaluation, NULL),
                                (first ? 0 : link.losses[0]) + link.losses[1], 1e-9);
    }
    array_link_free(&link);
    setting_close(&p.s);
}

/* One document in each row is as good as a row that is none. In microbatches of a row. */
TEST_EACH(a_row_of_one_document_has_the_loss_of_a_row, FAMILIES)
{
    static const uint32_t whole[4] = {SEQ};
    struct packed p;
    struct array_link packed, plain;

    if (is_left_out(_i))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    open_packed(&p, _i);
    for (int row = 0; row < ROWS; row++)
        place(p.positions + row * SEQ, whole);
    const struct device_worker_options options = setting_options(&p.s, ROWS, 1);
    setting_step_whole(&packed, &p.s, &options);
    p.s.positions = NULL;
    const struct device_worker_options unpacked = setting_options(&p.s, ROWS, 1);
    setting_step_whole(&plain, &p.s, &unpacked);
    ck_assert_double_eq(packed.losses[0], plain.losses[0]);
    check_near(&p.s.model, packed.gradient, plain.gradient, 1e-6); /* position tables are summed in another order */
    array_link_free(&packed);
    array_link_free(&plain);
    setting_close(&p.s);
}

/* Other tokens around tokens first .. end-1 of row 0, and other documents. */
static void change_neighbours(struct packed *p, uint32_t first, uint32_t end)
{
    for (uint32_t i = 0; i < SEQ; i++)
        if (i < first || i >= end) {
            p->s.ids[i] = (p->s.ids[i] * 7 + 3) % VOCABULARY;
            p->positions[i] = i < first ? i % 9 : (i - end) % 17;
        }
}

static void check_equal(const struct array_link *a, const struct array_link *b, const struct model *model)
{
    ck_assert_double_eq(a->losses[0], b->losses[0]);
    for (uint64_t i = 0; i < model->segment_n; i++) /* minus zero is as good as zero */
        ck_assert_msg(a->gradient[i] == b->gradient[i] && isfinite(a->gradient[i]), "%ju: %a, %a", (uintmax_t)i,
                      (double)a->gradient[i], (double)b->gradient[i]);
}

/* Of its loss, and of the gradient that it brings: its neighbours have no label, so that they bring none. In fp32 and
 * in bf16, of which the simulated device has one a family; each document of the first row in turn. */
TEST_EACH(another_neighbour_changes_no_bit, 2 * FAMILIES)
{
    if (backend_get()->simulated && _i % 2 == (_i / 2 > 1))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    for (uint32_t first = 0, end; first < SEQ && !is_left_out(_i / 2); first = end) {
        struct packed p;
        struct array_link one, other;
        open_packed(&p, _i / 2);
        end = first + length_at(&p, first);
        p.s.precision = _i % 2 ? NUMBER_BF16 : NUMBER_FP32;
        label_only(&p.s, first, end);
        const struct device_worker_options options = setting_options(&p.s, ROWS, ROWS);
        setting_step_whole(&one, &p.s, &options);
        change_neighbours(&p, first, end);
        setting_step_whole(&other, &p.s, &options);
        check_equal(&one, &other, &p.s.model);
        array_link_free(&one);
        array_link_free(&other);
        setting_close(&p.s);
    }
}

/* ---- what a worker refuses ---- */

static int step_with(struct packed *p, struct error *err)
{
    const struct device_worker_options options = setting_options(&p->s, ROWS, 1);
    const struct device_share share = setting_share(&p->s, 1);
    struct device_worker worker;
    struct array_link link;
    struct ledger ledger = {0};

    ck_assert_msg(device_worker_init(&worker, &options, &ledger, err) == 0, "%s", err->text);
    array_link_init(&link, &p->s.model, p->s.weights);
    link.version = SETTING_STEP;
    link.n_buffers = 2;
    const int rc = device_worker_step(&worker, &share, &array_link, &link, err);
    array_link_free(&link);
    device_worker_free(&worker);
    return rc;
}

/* A client can write anything. A row begins with a document; positions do not skip; nothing is looked up beyond a
 * row. */
static const struct wrong {
    uint32_t at, position;
    const char *says;
} wrong[] = {
    {0, 1, "position 1 in row 0, token 0: it is neither 0 nor one more than the position before"},
    {SEQ, 30, "position 30 in row 1, token 0: it is neither 0 nor one more than the position before"},
    {5, 6, "position 6 in row 0, token 5: it is neither 0 nor one more than the position before"},
    {5, 4, "position 4 in row 0, token 5: it is neither 0 nor one more than the position before"},
    {2 * SEQ - 1, UINT32_MAX,
     "position 4294967295 in row 1, token 99: it is neither 0 nor one more than the position before"},
};

TEST_EACH(positions_that_no_row_can_have_are_refused, COUNT(wrong))
{
    struct packed p;
    struct error err = {""};

    open_packed(&p, 0);
    p.positions[wrong[_i].at] = wrong[_i].position;
    ck_assert_int_eq(step_with(&p, &err), -EINVAL);
    ck_assert_str_eq(err.text, wrong[_i].says);
    setting_close(&p.s);
}
