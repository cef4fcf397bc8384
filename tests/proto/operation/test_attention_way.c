/* Scratch of attention's gradient, by hand. */
#include "proto/operation/attention_way.h"
#include "proto/plan/memory/layers.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

/* Two fp32 a query and head of our own; else one, delta, and then:
 * ordered: queries' gradient in fp32, and a turn of 4 bytes for each 32 queries of a head, behind 256 bytes;
 * scores: (tokens, tokens) in bf16 of each head of a slice, behind 256 bytes.
 * Where heads share keys, the gradients of keys and values of each head besides: in fp32 of `twice`, else in bf16. */
static const struct {
    enum plan_attention way;
    size_t n_rows, n_tokens, n_heads, n_kv_heads, width;
    enum plan_attention got;
    size_t slice_rows, slice_heads;
    uint64_t bytes;
} scratches[] = {
    {PLAN_ATTENTION_OWN, 2, 1024, 12, 0, 768, PLAN_ATTENTION_OWN, 2, 12, 2 * 1024 * 12 * 8},
    /* 16 Ki tokens of width 4096: 2 MiB, 256 MiB and 64 KiB, 258 MiB all told */
    {PLAN_ATTENTION_FORWARD, 2, 1024, 12, 0, 768, PLAN_ATTENTION_OWN, 2, 12, 2 * 1024 * 12 * 8},
    {PLAN_ATTENTION_ORDERED, 1, 16384, 32, 0, 4096, PLAN_ATTENTION_ORDERED, 1, 32, (258 << 20) + 65536 + 256},
    {PLAN_ATTENTION_ORDERED, 3, 10, 2, 0, 32, PLAN_ATTENTION_ORDERED, 3, 2, 256 + 3840 + 512},
    {PLAN_ATTENTION_TWICE, 1, 16384, 32, 0, 4096, PLAN_ATTENTION_TWICE, 1, 32, 4 << 20},
    /* 2 MiB a head: 128 of them are 256 MiB, 10 rows of 12 heads */
    {PLAN_ATTENTION_SCORES, 16, 1024, 12, 0, 1536, PLAN_ATTENTION_SCORES, 10, 12,
     16 * 1024 * 12 * 4 + (240 << 20) + 256},
    /* 128 MiB a head: 2 at a time */
    {PLAN_ATTENTION_SCORES, 2, 8192, 32, 0, 3072, PLAN_ATTENTION_SCORES, 1, 2, 2 * 8192 * 32 * 4 + (256 << 20) + 256},
    /* 32 MiB a head, 8 at a time: 25 heads are 4 slices of 7 */
    {PLAN_ATTENTION_SCORES, 1, 4096, 25, 0, 3200, PLAN_ATTENTION_SCORES, 1, 7, 4096 * 25 * 4 + (224 << 20) + 256},
    {PLAN_ATTENTION_SCORES, 1, 16384, 32, 0, 3072, PLAN_ATTENTION_SCORES, 1, 1, 16384 * 32 * 4 + (512 << 20) + 256},
    /* ours are faster */
    {PLAN_ATTENTION_SCORES, 16, 1024, 12, 0, 768, PLAN_ATTENTION_OWN, 16, 12, 16 * 1024 * 12 * 8},
    {PLAN_ATTENTION_SCORES, 2, 8192, 32, 0, 4096, PLAN_ATTENTION_OWN, 2, 32, 2 * 8192 * 32 * 8},
    /* a head alone would be 1 GiB and more; a row that is not of whole 128 tokens; heads of 20, and of 160; one token;
     * rows whose statistics are 9 numbers each */
    {PLAN_ATTENTION_SCORES, 1, 24576, 32, 0, 3072, PLAN_ATTENTION_OWN, 1, 32, 24576 * 32 * 8},
    {PLAN_ATTENTION_SCORES, 1, 1000, 12, 0, 1536, PLAN_ATTENTION_OWN, 1, 12, 1000 * 12 * 8},
    {PLAN_ATTENTION_ORDERED, 1, 64, 4, 0, 80, PLAN_ATTENTION_OWN, 1, 4, 64 * 4 * 8},
    {PLAN_ATTENTION_TWICE, 1, 64, 4, 0, 640, PLAN_ATTENTION_OWN, 1, 4, 64 * 4 * 8},
    {PLAN_ATTENTION_SCORES, 1, 128, 4, 0, 640, PLAN_ATTENTION_OWN, 1, 4, 128 * 4 * 8},
    /* heads of 256: 256 KiB of sums */
    {PLAN_ATTENTION_ORDERED, 1, 64, 4, 0, 1024, PLAN_ATTENTION_ORDERED, 1, 4, 64 * 4 * 4 + 64 * 1024 * 4 + 256 + 256},
    {PLAN_ATTENTION_ORDERED, 1, 64, 4, 0, 1056, PLAN_ATTENTION_OWN, 1, 4, 64 * 4 * 8},
    {PLAN_ATTENTION_ORDERED, 4, 1, 64, 0, 512, PLAN_ATTENTION_OWN, 4, 64, 4 * 64 * 8},
    {PLAN_ATTENTION_ORDERED, 2, 9, 1, 0, 16, PLAN_ATTENTION_OWN, 2, 1, 256},
    /* 64 MiB apart a row, 4 rows at a time; queries' gradients of as many 256 MiB, their turns 64 KiB */
    {PLAN_ATTENTION_ORDERED, 16, 4096, 32, 8, 4096, PLAN_ATTENTION_ORDERED, 4, 32, (520 << 20) + 65536 + 256},
    {PLAN_ATTENTION_ORDERED, 2, 1000, 16, 2, 1024, PLAN_ATTENTION_ORDERED, 2, 16, 128000 + 8192000 + 4352 + 8192000},
    /* 1 GiB apart, of one row */
    {PLAN_ATTENTION_TWICE, 2, 16384, 64, 8, 8192, PLAN_ATTENTION_TWICE, 1, 64, (8 << 20) + (1 << 30) + 256},
    /* ours need no room for scores */
    {PLAN_ATTENTION_SCORES, 1, 4096, 32, 8, 4096, PLAN_ATTENTION_OWN, 1, 32, 4096 * 32 * 8},
};

TEST_EACH(scratch_is_what_the_way_takes, COUNT(scratches))
{
    struct plan_attention_scratch s;

    plan_attention_lay_out(&s, scratches[_i].way,
                           &(struct plan_attention_sizes){.n_rows = scratches[_i].n_rows,
                                                          .n_tokens = scratches[_i].n_tokens,
                                                          .n_heads = scratches[_i].n_heads,
                                                          .n_kv_heads = scratches[_i].n_kv_heads,
                                                          .width = scratches[_i].width});
    ck_assert_int_eq(s.way, scratches[_i].got);
    ck_assert_uint_eq((s.bytes + 255) / 256, (scratches[_i].bytes + 255) / 256);
    if (s.way != PLAN_ATTENTION_OWN) {
        ck_assert_uint_eq(s.slice_rows, scratches[_i].slice_rows);
        ck_assert_uint_eq(s.slice_heads, scratches[_i].slice_heads);
        ck_assert_uint_le(s.workspace + s.workspace_bytes, s.bytes);
    }
}

static struct plan_goal goal_of(enum plan_purpose purpose, enum number_type type)
{
    return (struct plan_goal){.purpose = purpose, .precision = type, .seq = 256};
}

static uint64_t workspace_of(enum plan_attention way, const struct plan_goal *goal, float dropout, uint32_t window)
{
    struct model_config config = GPT2_CONFIG(1, 2, 256, 128, 256, 64);
    const struct plan_setting setting = {
        .backend = &plan_cuda, .attention = way, .goal = *goal, .share_rows = 1, .part_rows = 1, .n_threads = 1};
    struct plan_places places;
    struct model model;

    gpt2_edit(&config)->dropout_attention = dropout;
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    struct model_program *block = &model.programs[model.block];
    for (int i = 0; i < block->program.n_operations; i++)
        if (block->program.operations[i].kind == &operation_attention)
            block->program.operations[i].attention.window = window;
    const struct schedule *schedule = goal->purpose == PLAN_TRAIN ? block->backward : block->forward;
    plan_places(&places, &block->program, schedule, &setting, (struct plan_shape){1, 256});
    model_free(&model);
    return places.bytes;
}

static uint64_t workspace(enum plan_attention way, enum plan_purpose purpose, enum number_type type, float dropout)
{
    const struct plan_goal goal = goal_of(purpose, type);

    return workspace_of(way, &goal, dropout, 0);
}

/* Two heads of 256 tokens: 2 KiB of delta, 256 KiB of scores and 256 bytes, where ours takes 4 KiB. As the inner width
 * is small, no step of backward takes more than attention's. */
TEST(a_block_has_room_for_it_where_it_is_computed_so)
{
    const uint64_t own = workspace(PLAN_ATTENTION_OWN, PLAN_TRAIN, NUMBER_BF16, 0);
    struct plan_goal goal = goal_of(PLAN_TRAIN, NUMBER_BF16);

    ck_assert_uint_eq(workspace(PLAN_ATTENTION_SCORES, PLAN_TRAIN, NUMBER_BF16, 0) - own,
                      (2 << 10) + (256 << 10) + 256 - (4 << 10));
    ck_assert_uint_eq(workspace(PLAN_ATTENTION_SCORES, PLAN_TRAIN, NUMBER_BF16, 0.1f), own);
    ck_assert_uint_eq(workspace(PLAN_ATTENTION_FORWARD, PLAN_TRAIN, NUMBER_BF16, 0), own);
    ck_assert_uint_eq(workspace_of(PLAN_ATTENTION_SCORES, &goal, 0, 255), own); /* ours need no room for a window */
    ck_assert_uint_eq(workspace_of(PLAN_ATTENTION_SCORES, &goal, 0, 256),
                      workspace(PLAN_ATTENTION_SCORES, PLAN_TRAIN, NUMBER_BF16, 0));
    ck_assert_uint_eq(workspace(PLAN_ATTENTION_SCORES, PLAN_EVALUATE, NUMBER_BF16, 0),
                      workspace(PLAN_ATTENTION_OWN, PLAN_EVALUATE, NUMBER_BF16, 0));
    goal.packs = true;
    ck_assert_uint_eq(workspace_of(PLAN_ATTENTION_SCORES, &goal, 0, 0), own);
    ck_assert_uint_eq(workspace(PLAN_ATTENTION_SCORES, PLAN_TRAIN, NUMBER_FP32, 0),
                      workspace(PLAN_ATTENTION_OWN, PLAN_TRAIN, NUMBER_FP32, 0));
}
