/* Which files a model is made of, in directories made here. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/model/model.h"
#include "client/text/side.h"
#include "proto/model/checkpoint.h"
#include "proto/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

static const char config[] = "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 8, "
                             "\"n_positions\": 16, \"vocab_size\": 256, \"attn_pdrop\": 0.0, \"embd_pdrop\": 0.0, "
                             "\"resid_pdrop\": 0.0}";

/* A well-formed file with one tensor of this name. */
static void put_weights(const char *path, const char *name)
{
    const struct safetensors_plan plan = {.name = name, .n_dims = 1, .shape = {2, 1}};
    static const float values[2] = {1, 2};
    struct safetensors_writer writer;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    ck_assert_int_eq(safetensors_begin(&writer, fd, &plan, 1, NULL), 0);
    ck_assert_int_eq(safetensors_append(&writer, values, sizeof values, NULL), 0);
    ck_assert_int_eq(safetensors_end(&writer, NULL), 0);
    close(fd);
}

static void make(const char *name)
{
    char path[64];

    ck_assert_int_eq(mkdir(name, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", name);
    processes_put_text(path, config);
}

/* Opens it, with so many files of weights; the first holds this tensor. */
static struct client_model opened(const char *path, unsigned n_weights, const char *first)
{
    struct client_model model;
    struct safetensors file;
    struct error err = {""};

    ck_assert_msg(client_model_open(&model, path, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(model.n_weights, n_weights);
    if (first) {
        ck_assert_int_eq(safetensors_open(&file, model.weight_fds[0], NULL), 0);
        ck_assert_ptr_nonnull(safetensors_find(&file, first));
        safetensors_close(&file);
    }
    return model;
}

static void opens(const char *path, unsigned n_weights, const char *first)
{
    struct client_model model = opened(path, n_weights, first);
    client_model_close(&model);
}

static unsigned n_open(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void refused(const char *path, int code, const char *first, const char *second)
{
    const unsigned before = n_open();
    struct client_model model;
    struct error err = {0};

    ck_assert_msg(client_model_open(&model, path, &err) == code, "%s: %s", path, err.text);
    ck_assert_holds(err.text, first, second);
    ck_assert_uint_eq(n_open(), before); /* nothing stays open */
}

TEST(a_config_alone_means_fresh_weights)
{
    const unsigned before = n_open();
    char text[sizeof config];

    make("alone");
    processes_put_text("alone/small.json", config);
    struct client_model model = opened("alone/config.json", 0, NULL);
    ck_assert_str_eq(model.name, "alone");
    ck_assert_uint_eq(model.config.width, 8);
    /* The daemon shares the descriptor's position: it has to stand at the beginning. */
    ck_assert_int_eq(read(model.config_fd, text, sizeof text), sizeof config - 1);
    client_model_close(&model);
    model = opened("alone/small.json", 0, NULL);
    ck_assert_str_eq(model.name, "small");
    client_model_close(&model);
    ck_assert_uint_eq(n_open(), before);
}

TEST(a_directory_gives_all_its_safetensors)
{
    make("plain");
    put_weights("plain/some.safetensors", "one");
    processes_put_text("plain/notes.txt", "not weights");
    processes_put_text("plain/.hidden.safetensors", "not weights either");
    struct client_model model = opened("plain/", 1, "one");
    ck_assert_str_eq(model.name, "plain");
    client_model_close(&model);
    put_weights("plain/another.safetensors", "two");
    opens("plain", 2, NULL);
}

TEST(model_safetensors_stands_for_itself_and_moments_are_no_weights)
{
    make("checkpoint");
    put_weights("checkpoint/model.safetensors", "weights");
    put_weights("checkpoint/optimizer.safetensors", "moments");
    put_weights("checkpoint/extra.safetensors", "extra");
    opens("checkpoint", 1, "weights");
    ck_assert_int_eq(unlink("checkpoint/model.safetensors"), 0);
    opens("checkpoint", 1, "extra");
    ck_assert_int_eq(unlink("checkpoint/extra.safetensors"), 0);
    refused("checkpoint", -ENOENT, "no *.safetensors", "checkpoint/config.json");
}

TEST(a_run_directory_stands_for_its_latest_checkpoint)
{
    ck_assert_int_eq(mkdir("trained", 0700), 0);
    make("trained/step-20");
    put_weights("trained/step-20/model.safetensors", "weights");
    ck_assert_int_eq(symlink("step-20", "trained/latest"), 0);
    struct client_model model = opened("trained", 1, "weights");
    ck_assert_str_eq(model.name, "step-20");
    client_model_close(&model);
    processes_put_text("trained/config.json", config); /* a model of its own */
    refused("trained", -ENOENT, "no *.safetensors", "trained/config.json");
}

TEST(what_came_with_the_weights_is_kept_and_other_files_are_not)
{
    size_t n;

    make("talks");
    put_weights("talks/model.safetensors", "weights");
    processes_put_text("talks/tokenizer.json", "{\"model\": \"\xC3\xA9\"}");
    processes_put_text("talks/merges.txt", "");
    processes_put_text("talks/README.md", "words");
    processes_put_text("talks/small.json", config);
    struct client_model model = opened("talks", 1, NULL);
    ck_assert_uint_eq(json_object_size(model.side), 2);
    ck_assert_str_eq(client_side_find(model.side, "tokenizer.json", &n), "{\"model\": \"\xC3\xA9\"}");
    ck_assert_uint_eq(n, 15);
    ck_assert_ptr_null(client_side_find(model.side, "README.md", &n));
    client_model_close(&model);
    /* A config.json alone is the beginning of a model with this tokenizer; one of another name is not. */
    model = opened("talks/config.json", 0, NULL);
    ck_assert_uint_eq(json_object_size(model.side), 2);
    client_model_close(&model);
    model = opened("talks/small.json", 0, NULL);
    ck_assert_ptr_null(model.side);
    client_model_close(&model);
    ck_assert_int_eq(chdir("talks"), 0);
    model = opened("config.json", 0, NULL);
    ck_assert_uint_eq(json_object_size(model.side), 2);
    client_model_close(&model);
    ck_assert_int_eq(chdir(".."), 0);
    processes_put_text("talks/vocab.json", "\xC3");
    refused("talks", -EINVAL, "talks/vocab.json", "UTF-8");
}

/* A file of this content without a name; -1 for NULL. */
static int nameless(const char *content)
{
    int fd = content ? open(".", O_TMPFILE | O_RDWR, 0600) : -1;

    if (content)
        ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    return fd;
}

TEST(a_snapshot_is_a_model_and_its_files_are_checked_as_any_others)
{
    const unsigned before = n_open();
    struct client_model model;
    struct error err = {0};

    put_weights("snapshot", "one");
    int weights = open("snapshot", O_RDONLY);
    ck_assert_int_eq(client_model_from(&model, "live", nameless(config), weights,
                                       json_pack("{ss}", "merges.txt", "a b"), NULL),
                     0);
    ck_assert_uint_eq(model.config.vocabulary, 256);
    ck_assert_uint_eq(model.n_weights, 1);
    client_model_close(&model);
    ck_assert_int_eq(client_model_from(&model, "live", nameless("{"), nameless("x"), json_object(), &err), -EINVAL);
    ck_assert_holds(err.text, "live: ");
    ck_assert_int_eq(client_model_from(&model, "live", nameless(config), nameless("x"), NULL, &err), -EINVAL);
    ck_assert_int_eq(client_model_from(&model, "live", nameless(config), -1, json_pack("{ss}", "../x", "y"), &err),
                     -EINVAL);
    ck_assert_holds(err.text, "live: ../x");
    ck_assert_uint_eq(n_open(), before);
}

TEST(an_index_names_the_files_each_once)
{
    make("sharded");
    put_weights("sharded/a.safetensors", "one");
    put_weights("sharded/b.safetensors", "two");
    put_weights("sharded/left-over.safetensors", "three");
    processes_put_text("sharded/model.safetensors.index.json",
                       "{\"metadata\": {}, \"weight_map\": {\"one\": \"a.safetensors\", \"two\": \"b.safetensors\", "
                       "\"three\": \"a.safetensors\"}}");
    opens("sharded", 2, "one");
}

TEST(what_is_missing_or_damaged_is_refused_by_file)
{
    static const struct {
        const char *file, *content, *path;
        int code;
        const char *first, *second;
    } wrongs[] = {
        {NULL, NULL, "nowhere", -ENOENT, "--model nowhere", "No such file"},
        {NULL, NULL, "empty", -ENOENT, "--model empty holds no config.json", "latest"},
        {NULL, NULL, "bad", -ENOENT, "no *.safetensors", "bad/config.json"},
        {"bad/model.safetensors", "12345678{}", "bad", -EINVAL, "bad/model.safetensors", ""},
        {"bad/model.safetensors.index.json", "{\"weight_map\": {\"one\": \"gone.safetensors\"}}", "bad", -ENOENT,
         "bad/gone.safetensors", "No such file"},
        {"bad/model.safetensors.index.json", "{\"weight_map\": {\"one\": \"../plain/model.safetensors\"}}", "bad",
         -EINVAL, "bad", "plain file name for one"},
        {"bad/model.safetensors.index.json", "{\"weight_map\": {\"one\": 1}}", "bad", -EINVAL, "bad",
         "plain file name for one"},
        {"bad/model.safetensors.index.json", "{\"weight_map\": {}}", "bad", -EINVAL, "index.json", "weight_map"},
        {"bad/model.safetensors.index.json", "[", "bad", -EINVAL, "index.json: line 1", ""},
        {NULL, NULL, "pipe.json", -EINVAL, "pipe.json", "regular file"},
    };

    make("bad");
    ck_assert_int_eq(mkdir("empty", 0700) | mkfifo("pipe.json", 0600), 0);
    for (int i = 0; i < COUNT(wrongs); i++) {
        if (wrongs[i].file)
            processes_put_text(wrongs[i].file, wrongs[i].content);
        refused(wrongs[i].path, wrongs[i].code, wrongs[i].first, wrongs[i].second);
    }
}

/* training.json for these files as they are. */
static void put_training(const char *path, const char *const *names, size_t n)
{
    struct checkpoint checkpoint = {.step = 4};
    char file[64], bytes[4096];

    for (size_t i = 0; i < n; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        int fd = open(file, O_RDONLY);
        ssize_t got = read(fd, bytes, sizeof bytes);
        ck_assert(got > 0 && close(fd) == 0);
        struct checkpoint_file *entry = checkpoint_add_file(&checkpoint, names[i], (uint64_t)got);
        ck_assert_int_eq(checkpoint_add_run(entry, 0, (uint64_t)got, checkpoint_hash(bytes, (size_t)got)), 0);
    }
    char *text = checkpoint_print(&checkpoint);
    snprintf(file, sizeof file, "%s/training.json", path);
    processes_put_text(file, text);
    free(text);
    checkpoint_free(&checkpoint);
}

static int on_bytes(void *data, uint64_t bytes)
{
    *(uint64_t *)data += bytes;
    return 0;
}

static int cut_short(void *data, uint64_t bytes)
{
    (void)data;
    (void)bytes;
    return -EINTR;
}

/* code and a word of the sentence, or 0. */
static void check_checks(const char *path, int code, const char *says)
{
    struct client_model model;
    struct error err = {""};
    const unsigned before = n_open();

    ck_assert_msg(client_model_open(&model, path, &err) == 0, "%s", err.text);
    ck_assert_msg(client_model_check(&model, NULL, NULL, &err) == code, "%s", err.text);
    ck_assert_msg(!says || strstr(err.text, says), "no \"%s\": %s", says, err.text);
    client_model_close(&model);
    ck_assert_uint_eq(n_open(), before);
}

TEST(a_model_has_the_precision_that_its_options_name)
{
    static const struct {
        const char *options;
        enum number_type precision;
    } cases[] = {
        {"{}", NUMBER_FP32},
        {"{\"precision\": \"fp32\"}", NUMBER_FP32},
        {"{\"precision\": \"bf16\"}", NUMBER_BF16},
        {"{\"precision\": 16}", NUMBER_FP32},
        {"[]", NUMBER_FP32},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *options = json_loads(cases[i].options, 0, NULL);
        ck_assert_int_eq(client_model_precision(options), cases[i].precision);
        json_decref(options);
    }
    ck_assert_int_eq(client_model_precision(NULL), NUMBER_FP32);
}

TEST(a_checkpoint_is_held_to_its_checksums)
{
    static const char *const names[] = {"config.json", "merges.txt", "optimizer.safetensors", "model.safetensors"};
    uint64_t bytes = 0;
    struct client_model model;

    make("sealed");
    put_weights("sealed/model.safetensors", "w");
    processes_put_text("sealed/merges.txt", "#version: 0.2\n");
    check_checks("sealed", 0, NULL); /* no training.json: nothing to hold it to */
    processes_put_text("sealed/optimizer.safetensors", "moments");
    put_training("sealed", names, 4);
    check_checks("sealed", 0, NULL);
    processes_flip("sealed/optimizer.safetensors", 3); /* not used, not read */
    check_checks("sealed", 0, NULL);

    ck_assert_int_eq(client_model_open(&model, "sealed", NULL), 0);
    ck_assert_int_eq(client_model_check(&model, on_bytes, &bytes, NULL), 0);
    ck_assert_uint_gt(bytes, sizeof config);
    ck_assert_int_eq(client_model_check(&model, cut_short, NULL, NULL), -EINTR);
    client_model_close(&model);

    processes_flip("sealed/model.safetensors", -3);
    check_checks("sealed", -EINVAL, "/sealed: model.safetensors");
    processes_flip("sealed/model.safetensors", -3);
    processes_flip("sealed/merges.txt", 3);
    check_checks("sealed", -EINVAL, "/sealed: merges.txt");
    processes_flip("sealed/merges.txt", 3);
    processes_flip("sealed/training.json", 12);
    check_checks("sealed", -EINVAL, "/sealed: training.json");
    processes_flip("sealed/training.json", 12);
    put_training("sealed", names, 3);
    check_checks("sealed", -EINVAL, "model.safetensors is not among its files");
}
