/* Which algorithm computes which product: timed in the simulator's time, kept in a profile, and left alone where it
 * means nothing. */
#include "device/worker/profile.h"
#include "tests/kit/device/simulated.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(cuda)

enum { VERSION = 120000 };

static struct device *dev;
static struct error err;

static void set_up(void)
{
    simulated_load();
    err = (struct error){""};
}

SUITE_FIXTURE(set_up, NULL)

static double now(void)
{
    return simulated.now();
}

/* What tests/sim/product.cpp has. */
enum { FIRST, SECOND, THIRD };
static const uint32_t ids[] = {21, 66, 67};

/* The third is twice as fast as the first, and an eighth where rows are summed over, and there is none in fp32, where
 * the second is a quarter faster, but slower where rows are summed over. */
static uint32_t fastest(enum number_type type, enum products_kind kind)
{
    return ids[type == NUMBER_BF16 ? THIRD : kind == PRODUCTS_WEIGHTS ? FIRST : SECOND];
}

TEST(the_fastest_of_each_class_is_found_in_virtual_time)
{
    struct profile profile = *profile_default("cuda");
    struct products products;

    profile.memory_bytes_per_s = 1e15; /* products take the time */
    simulated.idle_products(true);
    simulated.time(&profile);
    ck_assert_msg(device_profile_products(&products, simulated.ops, 0, now, &err) == 0, "%s", err.text);
    simulated.time(NULL);
    simulated.idle_products(false);
    simulated.finish();
    ck_assert_uint_eq(products.version, VERSION);
    for (int type = 0; type < PRODUCTS_TYPES; type++)
        for (int kind = 0; kind < PRODUCTS_KINDS; kind++)
            for (uint32_t rows = 0; rows < PRODUCTS_ROWS; rows++) {
                const struct products_algorithm *a =
                    &products.of[products_class((enum number_type)type, (enum products_kind)kind, rows)];
                ck_assert(a->known);
                ck_assert_uint_eq(a->config[0], fastest((enum number_type)type, (enum products_kind)kind));
            }
    for (int place = FIRST; place <= THIRD; place++)
        ck_assert_uint_gt(simulated.count().products_by[place], 0);
}

/* Of one class by the place that its algorithm has; as the heuristic proposes it. */
static struct products chosen(enum number_type type, enum products_kind kind, int place)
{
    static const uint32_t tiles[] = {20, 24, 31};
    const struct products_algorithm a = {true,
                                         {ids[place], tiles[place], 1, kind == PRODUCTS_WEIGHTS ? 2 : 0, 0, 0, 7, 0,
                                          2}};
    struct products out = {.version = VERSION};

    for (uint32_t rows = 0; rows < PRODUCTS_ROWS; rows++)
        out.of[products_class(type, kind, rows)] = a;
    return out;
}

/* Of these sizes, without computing it: which algorithm did. */
static int multiply(size_t m, size_t n, size_t k, bool transpose_a, bool transpose_b, size_t skew)
{
    char *arena = simulated.ops->arena(dev);
    const struct cudasim_counts before = simulated.count();
    const struct device_matmul op = {.transpose_a = transpose_a,
                                     .transpose_b = transpose_b,
                                     .m = m,
                                     .n = n,
                                     .k = k,
                                     .a = arena + skew,
                                     .b = arena + (24 << 20),
                                     .c = arena + (48 << 20),
                                     .a_stride = transpose_a ? m : k,
                                     .b_stride = transpose_b ? k : n,
                                     .c_stride = n,
                                     .wide = transpose_a,
                                     .over_rows = transpose_a};

    simulated.ops->matmul(dev, &op);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    const struct cudasim_counts after = simulated.count();
    for (int place = FIRST; place <= THIRD; place++)
        if (after.products_by[place] > before.products_by[place])
            return place;
    ck_abort_msg("no product was computed");
    return -1;
}

static void open_device(void)
{
    ck_assert_int_eq(simulated.ops->open(&dev, 0, NUMBER_BF16, 72 << 20, 1, &err), 0);
    simulated.idle_products(true);
}

static void close_device(void)
{
    simulated.idle_products(false);
    simulated_close(dev);
}

/* At least 256 rows and 2,048 either way, aligned to 16 bytes; the library's first choice for all else. */
static const struct {
    size_t m, n, k;
    bool transpose_a, transpose_b;
    size_t skew;
    int forward, weights; /* by whom, where the third is chosen for one kind, or the second for the other */
} shapes[] = {{256, 2048, 2048, false, false, 0, THIRD, FIRST}, {300, 2048, 2056, false, false, 0, THIRD, FIRST},
              {300, 2048, 2048, false, true, 0, FIRST, FIRST},  {2048, 2048, 300, true, false, 0, FIRST, SECOND},
              {255, 2048, 2048, false, false, 0, FIRST, FIRST}, {256, 2040, 2048, false, false, 0, FIRST, FIRST},
              {256, 2048, 2040, false, false, 0, FIRST, FIRST}, {256, 2048, 2052, false, false, 0, FIRST, FIRST},
              {256, 2048, 2048, false, false, 2, FIRST, FIRST}};

TEST(a_chosen_algorithm_computes_the_products_of_its_class)
{
    const struct products sets[] = {{0},
                                    chosen(NUMBER_BF16, PRODUCTS_FORWARD, THIRD),
                                    chosen(NUMBER_BF16, PRODUCTS_WEIGHTS, SECOND),
                                    {0}};

    open_device();
    for (int set = 0; set < COUNT(sets); set++) {
        if (set > 0) /* before a choice as after one of nothing */
            ck_assert_int_eq(simulated.ops->choose(dev, &sets[set], &err), 0);
        for (int i = 0; i < COUNT(shapes); i++) {
            const int by = multiply(shapes[i].m, shapes[i].n, shapes[i].k, shapes[i].transpose_a, shapes[i].transpose_b,
                                    shapes[i].skew);
            ck_assert_msg(by == (set == 1   ? shapes[i].forward
                                 : set == 2 ? shapes[i].weights
                                            : FIRST),
                          "shape %d by %d, set %d", i, by, set);
        }
    }
    close_device();
}

/* Numbers that this library, or this build, makes nothing of; and those that do not add up in order. */
static const struct {
    int place;
    uint32_t number;
} foreign[] = {{0, 99}, {0, UINT32_MAX}, {3, 1}, {3, 4}, {5, 70000}, {7, 65536}};

TEST_EACH(an_unknown_algorithm_is_left_out_with_a_sentence, COUNT(foreign))
{
    struct products products = chosen(NUMBER_BF16, PRODUCTS_FORWARD, THIRD);

    products.of[products_class(NUMBER_BF16, PRODUCTS_FORWARD, 0)].config[foreign[_i].place] = foreign[_i].number;
    open_device();
    ck_assert_int_eq(simulated.ops->choose(dev, &products, &err), -ENOTSUP);
    ck_assert_holds(err.text, "cuda:0: 1 of the 2 algorithms ", "cuBLASLt 120000", "eps bench --profile");
    ck_assert_int_eq(multiply(256, 2048, 2048, false, false, 0), FIRST);
    ck_assert_int_eq(multiply(1500, 2048, 2048, false, false, 0), THIRD); /* the other one */
    close_device();
}

/* A tile that the algorithm has not got is found out when a product is to be computed so. */
TEST(another_version_s_algorithms_are_left_out_and_one_that_cannot_compute_a_shape_is_passed_over)
{
    struct products products = chosen(NUMBER_BF16, PRODUCTS_FORWARD, THIRD);

    open_device();
    products.version++;
    ck_assert_int_eq(simulated.ops->choose(dev, &products, &err), -ENOTSUP);
    ck_assert_holds(err.text, "cuda:0: ", "cuBLASLt 120001", " 120000", "eps bench --profile");
    ck_assert_int_eq(multiply(256, 2048, 2048, false, false, 0), FIRST);
    products.version--;
    products.of[products_class(NUMBER_BF16, PRODUCTS_FORWARD, 0)].config[1] = 5;
    ck_assert_int_eq(simulated.ops->choose(dev, &products, &err), 0);
    ck_assert_int_eq(multiply(256, 2048, 2048, false, false, 0), FIRST);
    close_device();
}

TEST(what_is_written_as_json_is_read_again)
{
    const struct products products = chosen(NUMBER_FP32, PRODUCTS_BACKWARD, SECOND);
    struct products again;
    json_t *object = products_to_json(&products);

    ck_assert_int_eq(products_from_json(&again, object, &err), 0);
    ck_assert_mem_eq(&again, &products, sizeof products);
    json_decref(object);
    ck_assert_int_eq(products_from_json(&again, NULL, &err), 0);
    ck_assert_uint_eq(again.version, 0);
}

static unsigned n_allowed; /* allocations, until one fails */

static void *allocate(size_t bytes)
{
    return n_allowed-- == 0 ? NULL : malloc(bytes);
}

TEST(json_is_whole_or_null_whichever_allocation_fails)
{
    const struct products products = chosen(NUMBER_FP32, PRODUCTS_BACKWARD, SECOND);
    struct products again;
    json_t *object;
    unsigned n = 0;

    json_set_alloc_funcs(allocate, free);
    do {
        n_allowed = n++;
        object = products_to_json(&products);
    } while (!object);
    json_set_alloc_funcs(malloc, free);
    ck_assert_uint_gt(n, 2 * PRODUCTS_CONFIG);
    ck_assert_int_eq(products_from_json(&again, object, &err), 0);
    ck_assert_mem_eq(&again, &products, sizeof products);
    json_decref(object);
}

static const struct {
    const char *text, *words;
} wrong[] = {
    {"{\"bf16\": {}}", "of no version"},
    {"[]", "of no version"},
    {"{\"cublaslt\": 1, \"bf16\": {\"forward\": {\"512\": [1, 2]}}}", "not 9 numbers"},
    {"{\"cublaslt\": 1, \"fp32\": {\"weights\": {\"4096\": [1, 2, 3, 4, -5, 6, 7, 8, 9]}}}",
     "number 4 of an algorithm"},
    {"{\"cublaslt\": 1, \"fp32\": {\"weights\": {\"4096\": [1, 2, 3, 4, 5, 6, 7, 8, \"9\"]}}}",
     "number 8 of an algorithm"},
};

TEST_EACH(json_that_is_none_is_refused_and_nothing_is_chosen, COUNT(wrong))
{
    json_t *object = json_loads(wrong[_i].text, 0, NULL);
    struct products products = {.version = 7};

    ck_assert_ptr_nonnull(object);
    ck_assert_int_eq(products_from_json(&products, object, &err), -EINVAL);
    ck_assert_holds(err.text, wrong[_i].words);
    ck_assert_uint_eq(products.version, 0);
    json_decref(object);
}
