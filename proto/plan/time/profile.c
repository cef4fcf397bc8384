/* The numbers that name a table's rows are macros, because each is needed as a number, to interpolate, and as a string,
 * for the file: written once, they cannot differ. One description of a table (struct profile_table) serves to read,
 * write and check it.
 *
 * Prices are quotients of these rates, and a price that is not finite would stop the planner. So whatever is not from
 * the file or a worker, but from here, must pass profile_check too. */
#include "proto/plan/time/profile_tables.h"

#include "proto/operation/device_name.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 64 };

/* Limit on every rate, so that no predicted time overflows a double or is 0. */
static const double most_a_second = 1e21;

#define ROWS(X)    X(64), X(512), X(4096), X(32768)
#define NARROW(X)  X(512), X(1536), X(3584)
#define LENGTHS(X) X(512), X(4096), X(32768)
#define HEADS(X)   X(64), X(128), X(256)
#define NUMBER(n)  n
#define NAME(n)    #n

const uint32_t profile_rows[PROFILE_ROWS] = {ROWS(NUMBER)}, profile_narrow[PROFILE_NARROW] = {NARROW(NUMBER)};
const uint32_t profile_lengths[PROFILE_LENGTHS] = {LENGTHS(NUMBER)}, profile_heads[PROFILE_HEADS] = {HEADS(NUMBER)};

/* Two Zen 5 cores: products by the best library measured there; copies and AdamW on arrays larger than any cache, the
 * triad with non-temporal writes; attention, always computed in fp32, with heads of 64 and 256 to 1024 tokens. */
static const struct profile cpu = {
    .matmul_flops = {[NUMBER_FP32] = {300e9, 490e9, 490e9, 490e9}, [NUMBER_BF16] = {500e9, 980e9, 980e9, 980e9}},
    .attention_flops = {{{270e9, 270e9}}, {{300e9, 300e9}}},
    .link_bytes_per_s = 22e9,
    .memory_bytes_per_s = 59e9,
    .update_parameters_per_s = 2.1e9,
    .message_s = 20e-6,
};

/* An H100 as it was measured, with cuDNN 9.14 (tests/gpu/RECORD.md): products 4,096 wide, attention of heads of 64 and
 * 128 in rows of 1 to 8 Ki tokens, its link, its memory. The plain kernel varies with the head, from 5 to 18 TFLOP/s.
 * Convolutions as ResNet-50's of 64 images: 67 calls of cuDNN's are 15 to 19 % off these prices in the mean, and that
 * of an image's three channels 19 %. AdamW as on its host of 16 virtual cores, whose memory moves
 * 64 GB/s, at 28 bytes per parameter. A call as in a step: 26,000 of GPT-2 1.5 B, 220 ms more than their work. Narrow
 * products were not measured. */
static const struct profile cuda = {
    .matmul_flops = {[NUMBER_FP32] = {3.2e12, 28e12, 50e12, 50e12}, [NUMBER_BF16] = {200e12, 640e12, 660e12, 660e12}},
    .attention_flops = {{[ATTENTION_PLAIN] = {11.8e12, 10e12},
                         [ATTENTION_TENSOR] = {11.8e12, 300e12},
                         [ATTENTION_DRAWING] = {11.8e12, 100e12},
                         [ATTENTION_LIBRARY] = {11.8e12, 480e12}},
                        {[ATTENTION_PLAIN] = {7.4e12, 8e12},
                         [ATTENTION_TENSOR] = {7.4e12, 215e12},
                         [ATTENTION_DRAWING] = {7.4e12, 98e12},
                         [ATTENTION_LIBRARY] = {7.4e12, 250e12}}},
    .conv2d_flops = {[CONV2D_FORWARD] = {{18e12, 18e12}, {0, 560e12}},
                     [CONV2D_INPUT] = {{15e12, 15e12}, {0, 440e12}},
                     [CONV2D_WEIGHTS] = {{13e12, 13e12}, {0, 540e12}}},
    .attention = PLAN_ATTENTION_SCORES,
    .link_bytes_per_s = 53e9,
    .memory_bytes_per_s = 2.6e12,
    .norm_bytes_per_s = {2.6e12, 2.06e12},
    .update_parameters_per_s = 2.3e9,
    .host_bytes_per_s = 64e9,
    .call_s = 8e-6,
    .message_s = 20e-6,
    .n_multiprocessors = 132,
};

const struct profile *profile_default(const char *device)
{
    return device_name_is(device, "cpu") ? &cpu : device_name_is(device, "cuda") ? &cuda : NULL;
}

static const char *const by_rows[PROFILE_ROWS] = {ROWS(NAME)}, *const by_width[PROFILE_NARROW] = {NARROW(NAME)},
                         *const by_length[PROFILE_LENGTHS] = {LENGTHS(NAME)},
                         *const by_head[PROFILE_HEADS] = {HEADS(NAME)},
                         *const by_keys[PROFILE_KEYS] = {[PROFILE_OWN_KEYS] = "own", [PROFILE_SHARED_KEYS] = "shared"},
                         *const by_type[PROFILE_TYPES] = {"fp32", "bf16"},
                         *const by_direction[PROFILE_DIRECTIONS] = {"forward", "backward"},
                         *const by_kind[CONV2D_KINDS] = {"forward", "input", "weights"},
                         *const by_conv2d_path[CONV2D_PATHS] = {[CONV2D_OWN] = "own", [CONV2D_LIBRARY] = "cudnn"},
                         *const by_path[ATTENTION_PATHS] = {[ATTENTION_PLAIN] = "plain",
                                                            [ATTENTION_TENSOR] = "tensor",
                                                            [ATTENTION_DRAWING] = "dropout",
                                                            [ATTENTION_LIBRARY] = "cudnn"};

#define OF(member) .name = #member, .offset = offsetof(struct profile, member)
#define TYPES                                                                                                          \
    {                                                                                                                  \
        "type", PROFILE_TYPES, by_type, 1                                                                              \
    }
#define DIRECTIONS(stride)                                                                                             \
    {                                                                                                                  \
        "direction", PROFILE_DIRECTIONS, by_direction, stride                                                          \
    }
#define MATMUL                                                                                                         \
    {                                                                                                                  \
        OF(matmul_flops), .needed = true, .optional = -1, .n_known = PROFILE_TYPES, .n_levels = 2, .levels = {         \
            {"type", PROFILE_TYPES, by_type, PROFILE_ROWS},                                                            \
            {"rows", PROFILE_ROWS, by_rows, 1}                                                                         \
        }                                                                                                              \
    }
#define CONV2D(n_paths)                                                                                                \
    {                                                                                                                  \
        OF(conv2d_flops), .optional = 1, .n_levels = 3, .levels = {                                                    \
            {"kind", CONV2D_KINDS, by_kind, CONV2D_PATHS * PROFILE_TYPES},                                             \
            {"path", n_paths, by_conv2d_path, PROFILE_TYPES},                                                          \
            TYPES                                                                                                      \
        }                                                                                                              \
    }
#define NORM                                                                                                           \
    {                                                                                                                  \
        OF(norm_bytes_per_s), .optional = -1, .n_levels = 1, .levels = { DIRECTIONS(1) }                               \
    }

enum { OF_KEYS = PROFILE_HEADS * PROFILE_LENGTHS, OF_TYPE = PROFILE_KEYS * OF_KEYS, OF_PATH = PROFILE_TYPES * OF_TYPE };
/* The levels below the direction. */
#define SHAPES                                                                                                         \
    {"type", PROFILE_TYPES, by_type, OF_TYPE}, {"keys", PROFILE_KEYS, by_keys, OF_KEYS},                               \
        {"head", PROFILE_HEADS, by_head, PROFILE_LENGTHS},                                                             \
    {                                                                                                                  \
        "tokens", PROFILE_LENGTHS, by_length, 1                                                                        \
    }

/* A CPU has one path of each. */
const struct profile_table profile_tables[2][PROFILE_TABLES] = {
    {[PROFILE_MATMUL] = MATMUL,
     [PROFILE_NARROWER] = {OF(narrow_flops), .optional = 0, .is_whole = true, .n_levels = 3,
                           .levels = {{"width", PROFILE_NARROW, by_width, PROFILE_TYPES *PROFILE_ROWS},
                                      {"type", PROFILE_TYPES, by_type, PROFILE_ROWS},
                                      {"rows", PROFILE_ROWS, by_rows, 1}}},
     [PROFILE_CONV2D] = CONV2D(CONV2D_PATHS),
     [PROFILE_ATTENTION] = {OF(attention_flops), .optional = 0, .n_known = 1, .n_levels = 3,
                            .levels = {{"path", ATTENTION_PATHS, by_path, PROFILE_TYPES},
                                       DIRECTIONS(ATTENTION_PATHS *PROFILE_TYPES),
                                       TYPES}},
     [PROFILE_SHAPES] = {OF(attention_by_shape), .optional = -1, .is_sparse = true, .n_levels = 6,
                         .levels = {{"path", ATTENTION_PATHS, by_path, OF_PATH},
                                    DIRECTIONS(ATTENTION_PATHS *OF_PATH),
                                    SHAPES}},
     [PROFILE_NORM] = NORM},
    {[PROFILE_MATMUL] = MATMUL,
     [PROFILE_CONV2D] = CONV2D(1),
     [PROFILE_ATTENTION] = {OF(attention_flops), .optional = -1, .n_known = PROFILE_DIRECTIONS, .n_levels = 2,
                            .levels = {DIRECTIONS(ATTENTION_PATHS * PROFILE_TYPES), TYPES}},
     [PROFILE_SHAPES] = {OF(attention_by_shape), .optional = -1, .is_sparse = true, .n_levels = 5,
                         .levels = {DIRECTIONS(ATTENTION_PATHS * OF_PATH), SHAPES}},
     [PROFILE_NORM] = NORM},
};

const char *const profile_figure_names[PROFILE_FIGURES] = {"link_bytes_per_s", "memory_bytes_per_s",
                                                           "update_parameters_per_s"};

double *profile_figure(struct profile *profile, int i)
{
    double *const figures[PROFILE_FIGURES] = {&profile->link_bytes_per_s, &profile->memory_bytes_per_s,
                                              &profile->update_parameters_per_s};

    return figures[i];
}

const struct profile_optional profile_optional[PROFILE_OPTIONAL] = {{OF(host_bytes_per_s)},
                                                                    {OF(call_s), .is_derived = true, .is_time = true},
                                                                    {OF(message_s), .is_derived = true,
                                                                     .is_time = true},
                                                                    {OF(n_multiprocessors), .is_of_gpu = true}};

const char *profile_path_name(enum attention_path path)
{
    return by_path[path];
}

const char *profile_conv2d_path_name(enum conv2d_path path)
{
    return by_conv2d_path[path];
}

static int check_figure(const char *name, double value, struct error *err)
{
    if (value >= 1 && value <= most_a_second)
        return 0;
    return error_set(err, -EINVAL, "%s is %g: it must be from 1 to %g", name, value, most_a_second);
}

/* True if any figure of a level is not 0. */
static bool profile_knows_any(const double *figures, const struct profile_level *level)
{
    bool is_known = false;

    for (int i = 0; i < level->n; i++)
        is_known |= figures[(size_t)i * level->stride] != 0;
    return is_known;
}

/* name: of the table and of the levels above, with room for more. A level of a table that is_whole is interpolated from
 * all its figures: a single 0 among them would make a price infinite. */
static int check_level(const double *figures, const struct profile_table *table, int level, bool may_be_0, char *name,
                       struct error *err)
{
    const struct profile_level *l = profile_level(table, level);
    const size_t end = strlen(name);
    const bool is_last = level == table->n_levels - 1;
    const bool is_needed = table->is_whole && is_last && profile_knows_any(figures, l);
    int rc = 0;

    for (int i = 0; !rc && i < l->n; i++) {
        const double *at = figures + (size_t)i * l->stride;
        const bool unknown = !is_needed && (may_be_0 || (level == 0 && i >= table->n_known));
        snprintf(name + end, NAME_BYTES - end, ".%s", l->names[i]);
        if (!is_last)
            rc = check_level(at, table, level + 1, unknown, name, err);
        else if (*at != 0 || !unknown)
            rc = check_figure(name, *at, err);
    }
    name[end] = 0;
    return rc;
}

int profile_check(const struct profile *profile, struct error *err)
{
    struct profile copy = *profile;
    int rc = 0;

    for (const struct profile_table *t = profile_tables[0]; !rc && t < profile_tables[0] + PROFILE_TABLES; t++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s", t->name);
        rc = check_level(profile_figures(&copy, t), t, 0, false, name, err);
    }
    for (int i = 0; !rc && i < PROFILE_FIGURES; i++)
        rc = check_figure(profile_figure_names[i], *profile_figure(&copy, i), err);
    for (const struct profile_optional *o = profile_optional; !rc && o < profile_optional + PROFILE_OPTIONAL; o++) {
        const double figure = *profile_optional_figure(&copy, o);
        if (o->is_time && !(figure >= 0 && figure <= 1))
            rc = error_set(err, -EINVAL, "%s is %g: it must be from 0 to 1", o->name, figure);
        else if (!o->is_time && figure != 0)
            rc = check_figure(o->name, figure, err);
    }
    return rc;
}

/* Between known figures at ascending places: by the place's logarithm. */
static double between(const double *figures, const uint32_t *places, int n, double place)
{
    if (place <= places[0])
        return figures[0];
    for (int i = 1; i < n; i++) {
        const double low = places[i - 1], high = places[i];
        if (place < high)
            return figures[i - 1] + (figures[i] - figures[i - 1]) * log(place / low) / log(high / low);
    }
    return figures[n - 1];
}

/* Narrow products by width, between those that were measured and the wide ones; each by rows. */
double profile_flops(const struct profile *profile, enum number_type type, double rows, double width)
{
    const double wide = between(profile->matmul_flops[type], profile_rows, PROFILE_ROWS, rows);
    double figures[PROFILE_NARROW + 1];
    uint32_t places[PROFILE_NARROW + 1];
    int n = 0;

    for (int i = 0; i < PROFILE_NARROW; i++)
        if (profile->narrow_flops[i][type][0] > 0) {
            figures[n] = between(profile->narrow_flops[i][type], profile_rows, PROFILE_ROWS, rows);
            places[n++] = profile_narrow[i];
        }
    if (n == 0)
        return wide;
    figures[n] = wide, places[n++] = PROFILE_WIDE;
    return between(figures, places, n, width);
}

/* Of heads with these keys; 0: unknown. */
static double flops_of_head(const double *figures, double tokens)
{
    double known[PROFILE_LENGTHS];
    uint32_t places[PROFILE_LENGTHS];
    int n = 0;

    for (int i = 0; i < PROFILE_LENGTHS; i++)
        if (figures[i] > 0)
            known[n] = figures[i], places[n++] = profile_lengths[i];
    return n > 0 ? between(known, places, n, tokens) : 0;
}

double profile_attention_flops(const struct profile *profile, enum profile_direction direction,
                               enum attention_path path, enum number_type type, const struct attention_shape *shape)
{
    const enum attention_path known = profile->attention_flops[direction][path][type] > 0 ? path : ATTENTION_PLAIN;
    const double(*const by_keys_of)[PROFILE_HEADS][PROFILE_LENGTHS] =
        profile->attention_by_shape[direction][known][type];
    int head = 0;

    while (head < PROFILE_HEADS - 1 && profile_heads[head] < shape->head)
        head++;
    for (int i = 0; i < 2 * PROFILE_HEADS; i++) { /* this one, those below it and above in turn */
        const int other = i % 2 ? head - (i + 1) / 2 : head + i / 2;
        for (int keys = 0; keys < PROFILE_KEYS && other >= 0 && other < PROFILE_HEADS; keys++) {
            const double flops = flops_of_head(by_keys_of[shape->is_shared ? 1 - keys : keys][other], shape->tokens);
            if (flops > 0)
                return flops;
        }
    }
    return profile->attention_flops[direction][known][type];
}

double profile_conv2d_flops(const struct profile *profile, enum conv2d_kind kind, enum conv2d_path path,
                            enum number_type type, double pixels)
{
    const double known = profile->conv2d_flops[kind][path][type];

    return known > 0 ? known : profile_flops(profile, type, pixels, PROFILE_WIDE);
}
