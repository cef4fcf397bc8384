/* A T5 of transformers 5, whose config.json calls every model tied: its files tell whether the head is the table of
 * tokens. */
#include "client/model/untie.h"

#include "proto/model/file/safetensors.h"
#include "proto/model/t5.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* saved_flan (tests/oracle/make_saved.py), whose head is its own. */
static void setup(void)
{
    processes_setup();
    expect("cp -r " TESTS_DIR "/fixtures/saved_flan flan", 0);
}

SUITE_FIXTURE(setup, processes_remove)

static void open_flan(struct client_model *out)
{
    struct error err = {""};

    ck_assert_msg(client_model_open(out, &(struct client_model_name){.path = "flan"}, &err) == 0, "%s", err.text);
}

/* What the daemon, the workers and a checkpoint get to read. */
static bool config_ties(const struct client_model *model)
{
    char *text = client_model_print_config(model, SAFETENSORS_BF16, NULL);
    json_t *config = json_loads(text, 0, NULL);
    const json_t *tied = json_object_get(config, "tie_word_embeddings");
    const bool ties = json_is_true(tied);

    ck_assert(json_is_boolean(tied));
    json_decref(config);
    free(text);
    return ties;
}

TEST(a_head_that_differs_is_its_own)
{
    struct client_model model;
    struct error err = {""};

    open_flan(&model);
    ck_assert(!model.config.tied && !t5_of(&model.config)->scales && !config_ties(&model));
    ck_assert_int_eq(client_model_match(&model, &err), 0);
    client_model_close(&model);
    expect_file("flan/config.json", "\"tie_word_embeddings\": true");
}

TEST(a_plan_without_weights_looks_at_them)
{
    const unsigned before = processes_count_fds(getpid());
    struct client_model model;
    struct error err = {""};

    ck_assert_int_eq(client_model_open_fresh(&model, &(struct client_model_name){.path = "flan"}, NULL, &err), 0);
    ck_assert(model.n_weights == 0 && !model.config.tied && !config_ties(&model));
    client_model_close(&model);
    ck_assert_uint_eq(processes_count_fds(getpid()), before);
    ck_assert_int_eq(client_model_open(&model, &(struct client_model_name){.path = "flan/config.json"}, &err), 0);
    ck_assert(model.config.tied && config_ties(&model)); /* fresh weights are transformers' too */
    client_model_close(&model);
}

/* Gives the head the table's bytes, but for the last one. */
static void copy_table(uint8_t changed)
{
    struct safetensors file;
    uint8_t bytes[8192];
    const int fd = open("flan/model.safetensors", O_RDWR | O_CLOEXEC);

    ck_assert_int_eq(safetensors_open(&file, fd, NULL), 0);
    const struct safetensors_entry *table = safetensors_find(&file, "shared.weight");
    const struct safetensors_entry *head = safetensors_find(&file, "lm_head.weight");
    const size_t n = safetensors_entry_bytes(table);
    ck_assert(n <= sizeof bytes && n == safetensors_entry_bytes(head));
    ck_assert_int_eq(pread(fd, bytes, n, (off_t)table->offset), (ssize_t)n);
    bytes[n - 1] ^= changed;
    ck_assert_int_eq(pwrite(fd, bytes, n, (off_t)head->offset), (ssize_t)n);
    safetensors_close(&file);
    close(fd);
}

/* The last number alone, or none, is another. */
TEST_EACH(a_head_that_is_the_table_stays_tied, 2)
{
    struct client_model model;

    copy_table(_i ? 0x80 : 0);
    open_flan(&model);
    ck_assert_int_eq(model.config.tied, _i == 0);
    ck_assert_int_eq(config_ties(&model), _i == 0);
    client_model_close(&model);
}

/* As transformers 4 wrote it: there tied is tied. */
TEST(a_config_that_tells_is_believed)
{
    expect("sed -i /scale_decoder_outputs/d flan/config.json", 0);
    expect_sentence("eps export --model flan --out exported", 1,
                    "lm_head.weight differs from shared.weight, though config.json ties them");
}

/* A second file, with a table of the decoder's or the encoder's own: the model's, but for these bits of the last
 * byte. */
static void add_table(const char *name, uint8_t changed)
{
    struct safetensors file;
    struct safetensors_writer writer;
    uint8_t bytes[8192];
    const int from = open("flan/model.safetensors", O_RDONLY | O_CLOEXEC);
    const int to = open("flan/stack.safetensors", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    ck_assert_int_eq(safetensors_open(&file, from, NULL), 0);
    const struct safetensors_entry *table = safetensors_find(&file, "shared.weight");
    const size_t n = safetensors_entry_bytes(table);
    ck_assert_uint_le(n, sizeof bytes);
    ck_assert_int_eq(pread(from, bytes, n, (off_t)table->offset), (ssize_t)n);
    bytes[n - 1] ^= changed;
    const struct safetensors_plan plan = {name, 2, {table->shape[0], table->shape[1]}, table->type};
    ck_assert_int_eq(safetensors_begin(&writer, to, &plan, 1, NULL), 0);
    ck_assert_int_eq(safetensors_append(&writer, bytes, n, NULL), 0);
    ck_assert_int_eq(safetensors_end(&writer, NULL), 0);
    safetensors_close(&file);
    close(from);
    close(to);
    expect("mv flan/model.safetensors flan/model-1.safetensors", 0); /* all files are the model's */
}

TEST_EACH(a_stack_s_table_is_the_model_s_or_refused, 4)
{
    static const char *const names[] = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
    const char *const name = names[_i / 2];

    add_table(name, (uint8_t)(_i % 2 * 0x80));
    if (_i % 2)
        expect_sentence("eps export --model flan --out exported", 1, name,
                        " differs from shared.weight, and eps has one");
    else
        expect("eps export --model flan --out exported", 0);
}

/* Nothing is made of files that are no such model's; what is wrong with them is told where it always is. */
TEST(weights_that_do_not_fit_are_refused_by_name)
{
    struct client_model model;
    struct error err = {""};

    expect("sed -i 's/lm_head.weight/lm_tail.weight/' flan/model.safetensors", 0);
    open_flan(&model);
    ck_assert(model.config.tied);
    ck_assert_int_eq(client_model_match(&model, &err), -EINVAL);
    ck_assert_holds(err.text, "lm_tail.weight is not a tensor of this model");
    client_model_close(&model);
}
