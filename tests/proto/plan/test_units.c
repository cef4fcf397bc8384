#include "proto/plan/memory/units.h"

#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

/* Bottom to top: wte in 3 units (20,000 rows, at most 8,192 each), wpe, 4 blocks, norm; untied, 3 of the head. */
static void open_model(struct model *model, bool tied)
{
    const struct model_config config = GPT2_CONFIG(4, 1, 2, 3, 5, 20000, .tied = tied);

    ck_assert_int_eq(model_init(model, &config, NULL), 0);
    ck_assert_uint_eq(model->n_units, tied ? 9 : 12);
}

/* What is looked up alone (wpe, and wte if untied) is not uploaded and has no place. By hand: of 20,000 rows, 6,667 +
 * 6,667 + 6,666, 2 wide; a block has 4*4 + 2*2*3 + 9*2 + 3 = 49, the norm 4. */
TEST_EACH(units_stay_from_the_head_down, 2)
{
    static const uint32_t tied[] = {2, 1, 0, 8, 7, 6, 5, 4}, untied[] = {11, 10, 9, 8, 7, 6, 5, 4};
    static const uint64_t largest[] = {13334, 13334, 13334, 49, 49, 49, 49, 49, 0};
    const uint32_t *order = _i ? tied : untied;
    struct model model;

    open_model(&model, _i);
    ck_assert_uint_eq(plan_count_uploaded(&model), 8);
    for (uint32_t place = 0; place < 8; place++) {
        ck_assert_uint_eq(plan_unit_at(&model, place), order[place]);
        ck_assert_uint_eq(plan_place_of(&model, order[place]), place);
    }
    for (uint32_t unit = 0; unit < model.n_units; unit++)
        ck_assert_uint_eq(plan_place_of(&model, unit) == 8, unit < 4 && (unit == 3 || !_i));
    const struct plan plan = {.setting.goal.precision = NUMBER_BF16, .head_pad = 1};
    for (uint32_t n_resident = 0; n_resident <= 8; n_resident++)
        ck_assert_uint_eq(plan_largest_uploaded(&model, n_resident, &plan), 2 * largest[n_resident]);
    model_free(&model);
}
