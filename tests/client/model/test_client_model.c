/* Which files a model is made of, in directories made here. */
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

static char directory[] = "/tmp/test_client_model.XXXXXX";

static const char config[] = "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 8, "
                             "\"n_positions\": 16, \"vocab_size\": 256, \"attn_pdrop\": 0.0, \"embd_pdrop\": 0.0, "
                             "\"resid_pdrop\": 0.0}";

static void put(const char *path, const char *content)
{
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(content, file), 0);
    fclose(file);
}

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
    put(path, config);
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
    ck_assert_msg(strstr(err.text, first) && strstr(err.text, second), "no \"%s\" and \"%s\": %s", first, second,
                  err.text);
    ck_assert_uint_eq(n_open(), before); /* nothing stays open */
}

/* The tensor that the k-th file holds. */
static void check_holds(const struct client_model *model, unsigned k, const char *name)
{
    struct safetensors file;

    ck_assert_int_eq(safetensors_open(&file, model->weight_fds[k], NULL), 0);
    ck_assert_ptr_nonnull(safetensors_find(&file, name));
    safetensors_close(&file);
}

TEST(a_config_alone_means_fresh_weights)
{
    const unsigned before = n_open();
    struct client_model model;
    char text[sizeof config];

    make("alone");
    put("alone/small.json", config);
    ck_assert_int_eq(client_model_open(&model, "alone/config.json", NULL), 0);
    ck_assert_uint_eq(model.n_weights, 0);
    ck_assert_str_eq(model.name, "alone");
    ck_assert_uint_eq(model.config.width, 8);
    /* The daemon shares the descriptor's position: it has to stand at the beginning. */
    ck_assert_int_eq(read(model.config_fd, text, sizeof text), sizeof config - 1);
    client_model_close(&model);
    ck_assert_int_eq(client_model_open(&model, "alone/small.json", NULL), 0);
    ck_assert_str_eq(model.name, "small");
    client_model_close(&model);
    ck_assert_uint_eq(n_open(), before);
}

TEST(a_directory_gives_all_its_safetensors)
{
    struct client_model model;

    make("plain");
    put_weights("plain/some.safetensors", "one");
    put("plain/notes.txt", "not weights");
    put("plain/.hidden.safetensors", "not weights either");
    ck_assert_int_eq(client_model_open(&model, "plain/", NULL), 0);
    ck_assert_uint_eq(model.n_weights, 1);
    ck_assert_str_eq(model.name, "plain");
    check_holds(&model, 0, "one");
    client_model_close(&model);
    put_weights("plain/another.safetensors", "two");
    ck_assert_int_eq(client_model_open(&model, "plain", NULL), 0);
    ck_assert_uint_eq(model.n_weights, 2);
    client_model_close(&model);
}

TEST(model_safetensors_stands_for_itself_and_moments_are_no_weights)
{
    struct client_model model;

    make("checkpoint");
    put_weights("checkpoint/model.safetensors", "weights");
    put_weights("checkpoint/optimizer.safetensors", "moments");
    put_weights("checkpoint/extra.safetensors", "extra");
    ck_assert_int_eq(client_model_open(&model, "checkpoint", NULL), 0);
    ck_assert_uint_eq(model.n_weights, 1);
    check_holds(&model, 0, "weights");
    client_model_close(&model);
    ck_assert_int_eq(unlink("checkpoint/model.safetensors"), 0);
    ck_assert_int_eq(client_model_open(&model, "checkpoint", NULL), 0);
    ck_assert_uint_eq(model.n_weights, 1);
    check_holds(&model, 0, "extra");
    client_model_close(&model);
    ck_assert_int_eq(unlink("checkpoint/extra.safetensors"), 0);
    refused("checkpoint", -ENOENT, "no *.safetensors", "checkpoint/config.json");
}

TEST(a_run_directory_stands_for_its_latest_checkpoint)
{
    struct client_model model;

    ck_assert_int_eq(mkdir("run", 0700), 0);
    make("run/step-20");
    put_weights("run/step-20/model.safetensors", "weights");
    ck_assert_int_eq(symlink("step-20", "run/latest"), 0);
    ck_assert_int_eq(client_model_open(&model, "run", NULL), 0);
    ck_assert_str_eq(model.name, "step-20");
    ck_assert_uint_eq(model.n_weights, 1);
    client_model_close(&model);
    put("run/config.json", config); /* a model of its own */
    refused("run", -ENOENT, "no *.safetensors", "run/config.json");
}

TEST(what_came_with_the_weights_is_kept_and_other_files_are_not)
{
    struct client_model model;
    size_t n;

    make("talks");
    put_weights("talks/model.safetensors", "weights");
    put("talks/tokenizer.json", "{\"model\": \"\xC3\xA9\"}");
    put("talks/merges.txt", "");
    put("talks/README.md", "words");
    ck_assert_int_eq(client_model_open(&model, "talks", NULL), 0);
    ck_assert_uint_eq(json_object_size(model.side), 2);
    ck_assert_str_eq(client_side_find(model.side, "tokenizer.json", &n), "{\"model\": \"\xC3\xA9\"}");
    ck_assert_uint_eq(n, 15);
    ck_assert_ptr_null(client_side_find(model.side, "README.md", &n));
    client_model_close(&model);
    /* A config.json alone is the beginning of a model with this tokenizer; one of another name is not. */
    ck_assert_int_eq(client_model_open(&model, "talks/config.json", NULL), 0);
    ck_assert_uint_eq(model.n_weights, 0);
    ck_assert_uint_eq(json_object_size(model.side), 2);
    client_model_close(&model);
    ck_assert_int_eq(chdir("talks"), 0);
    ck_assert_int_eq(client_model_open(&model, "config.json", NULL), 0);
    ck_assert_uint_eq(json_object_size(model.side), 2);
    client_model_close(&model);
    ck_assert_int_eq(chdir(".."), 0);
    put("talks/small.json", config);
    ck_assert_int_eq(client_model_open(&model, "talks/small.json", NULL), 0);
    ck_assert_ptr_null(model.side);
    client_model_close(&model);
    put("talks/vocab.json", "\xC3");
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
    check_holds(&model, 0, "one");
    client_model_close(&model);
    ck_assert_int_eq(client_model_from(&model, "live", nameless("{"), nameless("x"), json_object(), &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "live: "));
    ck_assert_int_eq(client_model_from(&model, "live", nameless(config), nameless("x"), NULL, &err), -EINVAL);
    ck_assert_int_eq(client_model_from(&model, "live", nameless(config), -1, json_pack("{ss}", "../x", "y"), &err),
                     -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "live: ../x"));
    ck_assert_uint_eq(n_open(), before);
}

TEST(an_index_names_the_files_each_once)
{
    struct client_model model;

    make("sharded");
    put_weights("sharded/a.safetensors", "one");
    put_weights("sharded/b.safetensors", "two");
    put_weights("sharded/left-over.safetensors", "three");
    put("sharded/model.safetensors.index.json",
        "{\"metadata\": {}, \"weight_map\": {\"one\": \"a.safetensors\", \"two\": \"b.safetensors\", "
        "\"three\": \"a.safetensors\"}}");
    ck_assert_int_eq(client_model_open(&model, "sharded", NULL), 0);
    ck_assert_uint_eq(model.n_weights, 2);
    check_holds(&model, 0, "one");
    check_holds(&model, 1, "two");
    client_model_close(&model);
}

TEST(what_is_missing_or_damaged_is_refused_by_file)
{
    refused("nowhere", -ENOENT, "--model nowhere", "No such file");
    ck_assert_int_eq(mkdir("empty", 0700), 0);
    refused("empty", -ENOENT, "--model empty holds no config.json", "latest");
    make("bare");
    refused("bare", -ENOENT, "no *.safetensors", "bare/config.json");
    make("damaged");
    put("damaged/model.safetensors", "12345678{}");
    refused("damaged", -EINVAL, "damaged/model.safetensors", "");
    make("holes");
    put("holes/model.safetensors.index.json", "{\"weight_map\": {\"one\": \"gone.safetensors\"}}");
    refused("holes", -ENOENT, "holes/gone.safetensors", "No such file");
    put("holes/model.safetensors.index.json", "{\"weight_map\": {\"one\": \"../plain/model.safetensors\"}}");
    refused("holes", -EINVAL, "holes", "plain file name for one");
    put("holes/model.safetensors.index.json", "{\"weight_map\": {\"one\": 1}}");
    refused("holes", -EINVAL, "holes", "plain file name for one");
    put("holes/model.safetensors.index.json", "{\"weight_map\": {}}");
    refused("holes", -EINVAL, "index.json", "weight_map");
    put("holes/model.safetensors.index.json", "[");
    refused("holes", -EINVAL, "index.json: line 1", "");
    ck_assert_int_eq(mkfifo("pipe.json", 0600), 0);
    refused("pipe.json", -EINVAL, "pipe.json", "regular file");
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
    put(file, text);
    free(text);
    checkpoint_free(&checkpoint);
}

/* A bit of the byte at `at`, from the end if that is negative. */
static void flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    char byte;

    at = at < 0 ? lseek(fd, 0, SEEK_END) + at : at;
    ck_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    ck_assert(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
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
    put("sealed/merges.txt", "#version: 0.2\n");
    check_checks("sealed", 0, NULL); /* no training.json: nothing to hold it to */
    put("sealed/optimizer.safetensors", "moments");
    put_training("sealed", names, 4);
    check_checks("sealed", 0, NULL);
    flip("sealed/optimizer.safetensors", 3); /* not used, not read */
    check_checks("sealed", 0, NULL);

    ck_assert_int_eq(client_model_open(&model, "sealed", NULL), 0);
    ck_assert_int_eq(client_model_check(&model, on_bytes, &bytes, NULL), 0);
    ck_assert_uint_gt(bytes, sizeof config);
    ck_assert_int_eq(client_model_check(&model, cut_short, NULL, NULL), -EINTR);
    client_model_close(&model);

    flip("sealed/model.safetensors", -3);
    check_checks("sealed", -EINVAL, "/sealed: model.safetensors");
    flip("sealed/model.safetensors", -3);
    flip("sealed/merges.txt", 3);
    check_checks("sealed", -EINVAL, "/sealed: merges.txt");
    flip("sealed/merges.txt", 3);
    flip("sealed/training.json", 12);
    check_checks("sealed", -EINVAL, "/sealed: training.json");
    flip("sealed/training.json", 12);
    put_training("sealed", names, 3);
    check_checks("sealed", -EINVAL, "model.safetensors is not among its files");
}

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chdir(directory), 0);
}

static void remove_all(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
}

SUITE_FIXTURE_ONCE(setup, remove_all)
