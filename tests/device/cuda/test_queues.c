/* A step's copies and operations run in three queues of the device: whichever gets ahead of the others, where no mark
 * holds it back, the bits are those of one thing after the other. On the simulator, which can be told who is ahead. */
#include "proto/model/gpt2.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

SUITE_LABELS(on_cuda)

/* cudasim_order's: streams oldest first, newest first, at random; a block's threads forward, backward, at random. */
static const struct {
    unsigned streams, threads;
    uint64_t seed;
} orders[] = {{1, 0, 0}, {2, 1, 0}, {3, 2, 1}};
enum { N_ORDERS = sizeof orders / sizeof *orders };

/* The roomiest, and those in which more is moved meanwhile. */
static const struct plan_choice choices[] = {
    {.n_weight_buffers = 3, .keeping = {{2, MODEL_KEEPS_ALL}}, .whole_head = true},
    {.n_weight_buffers = 2},
    {.n_weight_buffers = 2, .n_resident = 2, .keeping = {{1, 6, 2}}},
    {.n_weight_buffers = 1, .host_stash = true},
    {.n_weight_buffers = 3, .n_sums = 5, .host_stash = true},
    {.n_weight_buffers = 2, .n_sums = 4, .whole_head = true},
};
enum { N_CHOICES = sizeof choices / sizeof *choices };

/* Tied, with dropout at every site, and a vocabulary that comes in two units. */
static struct model_config config(void)
{
    struct model_config c = {&family_gpt2, 2,     2,    8,
                             20,           6,     8200, MODEL_GELU_NEW,
                             true,         1e-5f, 0,    GPT2_ON(scale_attention)};
    struct gpt2_config *own = gpt2_edit(&c);

    own->dropout_attention = own->dropout_embedding = own->dropout_residual = 0.1f;
    return c;
}

static void set_order(unsigned streams, unsigned threads, uint64_t seed)
{
    if (backend_get()->order)
        backend_get()->order(streams, threads, seed);
}

TEST_EACH(no_order_of_the_queues_changes_a_bit, N_CHOICES *PRODUCTS_TYPES)
{
    const struct model_config drops = config();
    struct array_link expected;
    struct setting s;

    setting_open(&s, &drops, 2, 3);
    s.precision = (enum number_type)(_i % PRODUCTS_TYPES);
    struct device_worker_options options = setting_options(&s, 1, 1);
    set_order(0, 0, 0);
    setting_step_whole(&expected, &s, &options);
    options.choice = choices[_i / PRODUCTS_TYPES];
    options.choice.microbatch = 1;
    s.lends = true; /* nothing is read later than it may be */
    for (unsigned i = 0; i < N_ORDERS; i++) {
        set_order(orders[i].streams, orders[i].threads, orders[i].seed);
        setting_check_bits(&expected, &s, &options);
    }
    array_link_free(&expected);
    setting_close(&s);
}

/* Of a net of images, whose gradients lie over what higher stages stashed, and over one another. */
TEST_EACH(nor_a_bit_of_a_net_of_images, 2)
{
    static const char text[] =
        "{\"model_type\": \"wide_resnet\", \"depth\": 16, \"widen_factor\": 1, \"image_size\": 8, \"num_labels\": 3}";
    struct model_config net;
    struct array_link expected;
    struct setting s;
    struct error err = {""};

    ck_assert_msg(model_config_parse(&net, text, strlen(text), &err) == 0, "%s", err.text);
    setting_open(&s, &net, 4, 64);
    struct device_worker_options options = setting_options(&s, 2, 1);
    set_order(0, 0, 0);
    setting_step_whole(&expected, &s, &options);
    options.choice = (struct plan_choice){.microbatch = 1, .n_weight_buffers = 1 + (uint32_t)_i, .host_stash = true};
    for (unsigned i = 0; i < N_ORDERS; i++) {
        set_order(orders[i].streams, orders[i].threads, orders[i].seed);
        setting_check_bits(&expected, &s, &options);
    }
    array_link_free(&expected);
    setting_close(&s);
}
