/* A model of 141 GB in 30 shards, whose files are headers with a hole behind them. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/model/model.h"
#include "proto/plan/memory/files.h"

#include <inttypes.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_SHARDS = 30 };

/* Llama 3 70B. */
static const char config[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 80, \"num_attention_heads\": 64, \"hidden_size\": 8192, "
    "\"num_key_value_heads\": 8, \"intermediate_size\": 28672, \"vocab_size\": 128256, \"tie_word_embeddings\": false}";

/* A run of the model's tensors, as transformers would cut it. */
static void put_shard(const struct model *model, unsigned shard, json_t *map)
{
    const uint32_t first = model->n_tensors * shard / N_SHARDS, end = model->n_tensors * (shard + 1) / N_SHARDS;
    const char *name = print("model-%05u-of-%05u.safetensors", shard + 1, N_SHARDS);
    struct safetensors_plan plan[64];
    struct safetensors_layout layout;

    for (uint32_t t = first; t < end; t++) {
        const struct model_tensor *tensor = &model->tensors[t];
        plan[t - first] = (struct safetensors_plan){tensor->name,
                                                    tensor->n_dims,
                                                    {tensor->shape[0], tensor->shape[1]},
                                                    SAFETENSORS_BF16};
        json_object_set_new(map, tensor->name, json_string(name));
    }
    ck_assert_int_eq(safetensors_layout_init(&layout, plan, end - first, NULL), 0);
    const int fd = open(print("large/%s", name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, layout.header, layout.header_bytes), (ssize_t)layout.header_bytes);
    ck_assert_int_eq(ftruncate(fd, (off_t)layout.file_bytes), 0);
    close(fd);
    safetensors_layout_free(&layout);
}

static void setup(void)
{
    json_t *map = json_object(), *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 0, "weight_map", map);
    struct model_config parsed;
    struct model model;
    uint32_t tokens[64]; /* the vocabulary is beyond 16 bits */

    processes_setup();
    ck_assert_int_eq(mkdir("large", 0700), 0);
    processes_put_text("large/config.json", config);
    ck_assert_int_eq(model_config_parse(&parsed, config, strlen(config), NULL), 0);
    ck_assert_int_eq(model_init(&model, &parsed, NULL), 0);
    for (unsigned i = 0; i < N_SHARDS; i++)
        put_shard(&model, i, map);
    ck_assert_int_eq(json_dump_file(index, "large/model.safetensors.index.json", 0), 0);
    json_decref(index);
    model_free(&model);
    for (uint32_t i = 0; i < 64; i++)
        tokens[i] = i;
    processes_write("tokens.bin", tokens, sizeof tokens);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)
SUITE_TIMEOUT(120)

TEST(a_model_is_opened_by_its_headers_alone)
{
    const uint64_t before = processes_bytes_read();
    struct client_model model;
    struct error err = {""};

    ck_assert_msg(client_model_open(&model, &(struct client_model_name){.path = "large"}, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(model.n_weights, N_SHARDS);
    ck_assert_msg(client_model_match(&model, &err) == 0, "%s", err.text);
    ck_assert_int_eq(model.dtype, SAFETENSORS_BF16);
    client_model_close(&model);
    ck_assert_uint_lt(processes_bytes_read() - before, 1 << 20);
}

/* What the headers take, of which tests/proto/plan/test_host.c shows the sum. */
static uint64_t load_bytes(void)
{
    struct client_model large;
    struct model model;
    uint64_t header_bytes;

    ck_assert_int_eq(client_model_open(&large, &(struct client_model_name){.path = "large"}, NULL), 0);
    ck_assert_int_eq(client_model_header_bytes(&header_bytes, &large, NULL), 0);
    ck_assert_int_eq(model_init(&model, &large.config, NULL), 0);
    const uint64_t bytes = plan_load_bytes(&model, N_SHARDS, header_bytes);
    model_free(&model);
    client_model_close(&large);
    return bytes;
}

/* Training takes 12 bytes of host memory for each of 70.6 billion parameters, and so does a checkpoint: a disk that has
 * no room for that either is not what the user hears of. */
TEST(a_model_that_is_too_large_is_refused_before_its_weights_are_read)
{
    const char *needed = print("(%" PRIu64 " bytes) of host memory", 846733790336 + load_bytes());

    expect_sentence("eps train --model large --data tokens.bin --batch 1 --seq 8 --device-mem 8GiB --host-mem 16GiB "
                    "--steps 1 --out run",
                    1, needed, "--host-mem is 16.0 GiB");
    expect("eps plan --model large --batch 1 --seq 8 --device-mem 8GiB --host-mem 16GiB", 1, needed,
           "--host-mem is 16.0 GiB");
}
