/* Which files a model is made of, in directories made here. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "client/model/adapter.h"
#include "client/model/model.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/model_files.h"
#include "proto/model/file/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char config[] = "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 8, "
                             "\"n_positions\": 16, \"vocab_size\": 256, \"attn_pdrop\": 0.0, \"embd_pdrop\": 0.0, "
                             "\"resid_pdrop\": 0.0}";

/* Files of weights by the name of the only tensor in them; and one with two of these. */
static void setup(void)
{
    static const struct safetensors_plan plan[] = {{"two", 1, {2, 1}, SAFETENSORS_F32},
                                                   {"one", 1, {2, 1}, SAFETENSORS_F32},
                                                   {"three", 1, {2, 1}, SAFETENSORS_F32}};
    static const struct {
        const char *name;
        int first, n;
    } files[] = {{"one", 1, 1}, {"two", 0, 1}, {"three", 2, 1}, {"both", 1, 2}};
    static const float values[4] = {1, 2, 3, 4};
    struct safetensors_writer writer;

    processes_setup();
    processes_put_text("config.json", config);
    for (int i = 0; i < COUNT(files); i++) {
        const size_t n = (size_t)files[i].n;
        const int fd = open(files[i].name, O_WRONLY | O_CREAT, 0600);
        ck_assert_int_eq(safetensors_begin(&writer, fd, plan + files[i].first, n, NULL), 0);
        ck_assert_int_eq(safetensors_append(&writer, values, 2 * n * sizeof *values, NULL), 0);
        ck_assert_int_eq(safetensors_end(&writer, NULL), 0);
        close(fd);
    }
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

/* A command of the shell after those before it, and what the path then is: a model of this name and so many files of
 * weights, the first of which holds the tensor; or refused with two words. */
#define INDEX(directory, json) "echo '{" json "}' >" directory "/model.safetensors.index.json"
#define MAP(one, two)          "\"weight_map\": {\"one\": \"" one "\", \"two\": \"" two "\"}"
static const struct {
    const char *command, *path;
    int code;
    unsigned n_weights;
    const char *tensor, *name;
} directories[] = {
    {"mkdir alone; cp config.json alone; cp config.json alone/small.json", "alone/config.json", 0, 0, NULL, "alone"},
    {"true", "alone/small.json", 0, 0, NULL, "small"},
    {"head -c $(((4 << 20) + 1)) /dev/zero >alone/large.json", "alone/large.json", -EINVAL, 0,
     "alone/large.json: ", "too many for a config.json (at most 4 MiB)"},
    {"mkdir plain; cp config.json plain; cp one plain/some.safetensors; echo no | tee plain/notes.txt "
     ">plain/.hidden.safetensors",
     "plain/", 0, 1, "one", "plain"},
    {"cp two plain/another.safetensors", "plain", 0, 2, NULL, "plain"},
    /* model.safetensors stands for itself, and moments are no weights. */
    {"mkdir saved; cp config.json saved; cp one saved/model.safetensors; cp two saved/optimizer.safetensors; "
     "cp three saved/extra.safetensors",
     "saved", 0, 1, "one", "saved"},
    {"rm saved/model.safetensors", "saved", 0, 1, "three", "saved"},
    {"rm saved/extra.safetensors", "saved", -ENOENT, 0, "no *.safetensors", "saved/config.json"},
    /* A run's directory stands for its latest checkpoint, unless it is a model of its own. */
    {"mkdir -p run/step-20; cp config.json run/step-20; cp one run/step-20/model.safetensors; ln -s step-20 run/latest",
     "run", 0, 1, "one", "step-20"},
    {"cp config.json run", "run", -ENOENT, 0, "no *.safetensors", "run/config.json"},
    /* A snapshot in the Hugging Face hub's cache, whose own name is a commit's, is named by its model. */
    {"mkdir -p hub/models--org--a-name/snapshots/0a1b; cp config.json hub/models--org--a-name/snapshots/0a1b; cp one "
     "hub/models--org--a-name/snapshots/0a1b/model.safetensors",
     "hub/models--org--a-name/snapshots/0a1b/", 0, 1, "one", "a-name"},
    {"mkdir hub/models--org; cp -r hub/models--org--a-name/snapshots/0a1b hub/models--org/in", "hub/models--org/in", 0,
     1, "one", "in"},
    /* An index names the files; model.safetensors precedes it. Links are followed. */
    {"mkdir cut; cp config.json cut; cp one cut/a.safetensors; cp two cut/b.safetensors; cp three "
     "cut/c.safetensors; " INDEX("cut", MAP("a.safetensors", "b.safetensors")),
     "cut", 0, 2, "one", "cut"},
    {"mv cut/b.safetensors blob; ln -s ../blob cut/b.safetensors", "cut", 0, 2, "one", "cut"},
    {"mkdir cut/in; mv cut/a.safetensors cut/in; " INDEX("cut", MAP("in/a.safetensors", "b.safetensors")), "cut", 0, 2,
     "one", "cut"},
    {"cp three cut/model.safetensors", "cut", 0, 1, "three", "cut"},
    /* What it says of its files must be so. */
    {"mkdir bad; cp config.json bad; cp one bad/a.safetensors; cp two bad/b.safetensors; " INDEX(
         "bad", MAP("a.safetensors", "a.safetensors")),
     "bad", -EINVAL, 0, "bad/a.safetensors: two is missing", ""},
    {INDEX("bad", "\"weight_map\": {\"x\": \"a.safetensors\", \"one\": \"a.safetensors\", \"y\": \"a.safetensors\", "
                  "\"z\": \"a.safetensors\"}"),
     "bad", -EINVAL, 0, "bad/a.safetensors: x and 2 others: each is missing", ""},
    {"cp one bad/b.safetensors; " INDEX("bad",
                                        "\"weight_map\": {\"one\": \"a.safetensors\", \"two\": \"c.safetensors\", "
                                        "\"three\": \"b.safetensors\"}") "; cp both bad/b.safetensors; cp two "
                                                                         "bad/c.safetensors",
     "bad", -EINVAL, 0, "bad/b.safetensors: one is in this file", ""},
    {"cp both bad/a.safetensors; rm bad/b.safetensors bad/c.safetensors; " INDEX(
         "bad", "\"weight_map\": {\"one\": \"a.safetensors\"}"),
     "bad", -EINVAL, 0, "bad/a.safetensors: three is in this file", ""},
    {"cp one bad/a.safetensors; " INDEX("bad", MAP("a.safetensors", "gone.safetensors")), "bad", -ENOENT, 0,
     "bad/gone.safetensors: No such file", "model.safetensors.index.json lists it"},
    {"cp both bad/b.safetensors; " INDEX("bad", "\"weight_map\": {\"one\": \"b.safetensors\", \"three\": \"gone\", "
                                                "\"x\": \"gone\", \"y\": \"lost\"}"),
     "bad", -ENOENT, 0, "bad/gone: No such file", "lists it (1 other is missing, too)"},
    {INDEX("bad", MAP("a.safetensors", "/etc/passwd")), "bad", -EINVAL, 0, "bad: model.safetensors.index.json",
     "no file within this directory for two"},
    {INDEX("bad", MAP("a.safetensors", "../plain/some.safetensors")), "bad", -EINVAL, 0, "bad",
     "no file within this directory for two"},
    {INDEX("bad", MAP("a.safetensors", "in/../../one")), "bad", -EINVAL, 0, "bad",
     "no file within this directory for two"},
    {INDEX("bad", MAP("a.safetensors", "in/..")), "bad", -EINVAL, 0, "bad", "no file within this directory for two"},
    {INDEX("bad", MAP("a.safetensors", "")), "bad", -EINVAL, 0, "bad", "no file within this directory for two"},
    {INDEX("bad", MAP("a.safetensors", "in")) "; mkdir bad/in", "bad", -EINVAL, 0, "bad/in: not a regular file", ""},
    {INDEX("bad", MAP("a.safetensors", "link")) "; ln -s /dev/zero bad/link", "bad", -EINVAL, 0,
     "bad/link: not a regular file", ""},
    {"true", "nowhere", -ENOENT, 0, "--model nowhere", "No such file"},
    {"mkdir empty", "empty", -ENOENT, 0, "--model empty holds no config.json", "latest"},
    {"mkdir none; cp config.json none", "none", -ENOENT, 0, "no *.safetensors", "none/config.json"},
    {"echo '12345678{}' >none/model.safetensors", "none", -EINVAL, 0, "none/model.safetensors", ""},
    /* 3 MiB of header for a small model. */
    {"mkdir far; cp config.json far; truncate -s 4M far/model.safetensors; "
     "printf '\\000\\000\\060\\000\\000\\000\\000\\000{' | dd of=far/model.safetensors conv=notrunc 2>dd",
     "far", -EINVAL, 0, "far/model.safetensors: a header of 3145728 bytes, where ", " are left for this model"},
    {INDEX("bad", "\"weight_map\": {\"one\": 1}"), "bad", -EINVAL, 0, "bad", "no file within this directory for one"},
    {INDEX("bad", "\"weight_map\": {}"), "bad", -EINVAL, 0, "index.json", "weight_map"},
    {INDEX("bad", ""), "bad", -EINVAL, 0, "index.json", "weight_map"},
    {"echo [ >bad/model.safetensors.index.json", "bad", -EINVAL, 0, "index.json: line ", ""},
    {"mkfifo pipe.json", "pipe.json", -EINVAL, 0, "pipe.json", "regular file"},
};

TEST(a_path_is_a_model_or_refused_by_file_and_nothing_stays_open)
{
    for (int i = 0; i < COUNT(directories); i++) {
        const unsigned before = processes_count_fds(getpid());
        struct client_model model;
        struct safetensors file;
        struct error err = {""};
        char text[sizeof config];
        expect(directories[i].command, 0);
        ck_assert_msg(client_model_open(&model, &(struct client_model_name){.path = directories[i].path}, &err) ==
                          directories[i].code,
                      "%s: %s", directories[i].command, err.text);
        if (directories[i].code == 0) {
            ck_assert_str_eq(model.name, directories[i].name);
            ck_assert_uint_eq(model.config.width, 8);
            /* The daemon shares the descriptor's position: it has to stand at the beginning. */
            ck_assert_int_eq(read(model.config_fd, text, sizeof text), sizeof config - 1);
            ck_assert_uint_eq(model.n_weights, directories[i].n_weights);
            if (directories[i].tensor) {
                ck_assert_int_eq(safetensors_open(&file, model.weights[0].fd, NULL), 0);
                ck_assert_ptr_nonnull(safetensors_find(&file, directories[i].tensor));
                safetensors_close(&file);
            }
            client_model_close(&model);
        } else
            ck_assert_holds(err.text, directories[i].tensor, directories[i].name);
        ck_assert_uint_eq(processes_count_fds(getpid()), before);
    }
}

/* How many side files the model of this path has. */
static size_t n_side(const char *path, struct client_model *model)
{
    struct error err = {""};

    ck_assert_msg(client_model_open(model, &(struct client_model_name){.path = path}, &err) == 0, "%s", err.text);
    const size_t n = json_object_size(model->side);
    client_model_close(model);
    return n;
}

/* A config.json alone is the beginning of a model with this tokenizer; one of another name is not. */
TEST(what_came_with_the_weights_is_kept_and_other_files_are_not)
{
    struct client_model model;
    struct error err = {""};

    expect("mkdir talks; cp config.json talks; cp config.json talks/small.json; cp one talks/model.safetensors; "
           "echo words >talks/README.md; echo '{}' >talks/tokenizer.json; : >talks/merges.txt",
           0);
    ck_assert_uint_eq(n_side("talks", &model), 2);
    ck_assert_uint_eq(n_side("talks/config.json", &model), 2);
    ck_assert_uint_eq(n_side("talks/small.json", &model), 0);
    ck_assert_int_eq(chdir("talks"), 0);
    ck_assert_uint_eq(n_side("config.json", &model), 2);
    ck_assert_int_eq(chdir(".."), 0);
    processes_put_text("talks/vocab.json", "\xC3");
    ck_assert_int_eq(client_model_open(&model, &(struct client_model_name){.path = "talks"}, &err), -EINVAL);
    ck_assert_holds(err.text, "talks/vocab.json", "UTF-8");
}

/* A file of this content without a name. */
static int nameless(const char *content)
{
    const int fd = open(".", O_TMPFILE | O_RDWR, 0600);

    ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    return fd;
}

TEST(a_snapshot_is_a_model_and_its_files_are_checked_as_any_others)
{
    const unsigned before = processes_count_fds(getpid());
    const struct client_model_name live = {.path = "live"}, based = {.path = "live", .base = "one"};
    struct client_model model;
    struct error err = {0};

    ck_assert_int_eq(client_model_from(&model, &live, nameless(config), open("one", O_RDONLY),
                                       json_pack("{ss}", "merges.txt", "a b"), NULL),
                     0);
    ck_assert_uint_eq(model.config.vocabulary, 256);
    ck_assert_uint_eq(model.n_weights, 1);
    client_model_close(&model);
    ck_assert_int_eq(client_model_from(&model, &live, nameless("{"), nameless("x"), json_object(), &err), -EINVAL);
    ck_assert_holds(err.text, "live: ");
    ck_assert_int_eq(client_model_from(&model, &live, nameless(config), nameless("x"), NULL, &err), -EINVAL);
    ck_assert_int_eq(client_model_from(&model, &live, nameless(config), -1, json_pack("{ss}", "../x", "y"), &err),
                     -EINVAL);
    ck_assert_holds(err.text, "live: ../x");
    ck_assert_int_eq(client_model_from(&model, &based, nameless(config), open("one", O_RDONLY), NULL, &err), -EDOM);
    ck_assert_holds(err.text, "--base-model one is for an adapter, and live is none");
    ck_assert_uint_eq(processes_count_fds(getpid()), before);
}

TEST(a_model_has_the_precision_that_its_options_name)
{
    static const char *const fp32[] = {"{}", "{\"precision\": \"fp32\"}", "{\"precision\": 16}", "[]"};
    json_t *options = json_loads("{\"precision\": \"bf16\"}", 0, NULL);

    ck_assert_int_eq(client_model_precision(options), NUMBER_BF16);
    ck_assert_int_eq(client_model_precision(NULL), NUMBER_FP32);
    json_decref(options);
    for (int i = 0; i < COUNT(fp32); i++) {
        options = json_loads(fp32[i], 0, NULL);
        ck_assert_msg(client_model_precision(options) == NUMBER_FP32, "%s", fp32[i]);
        json_decref(options);
    }
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

static char edited[200]; /* what the last check said of texts */

/* With this byte flipped, a model's check says this; NULL: nothing. The byte is put back. */
static void check_flipped(const char *path, long at, const char *says)
{
    const unsigned before = processes_count_fds(getpid());
    struct client_model model;
    struct error err = {""};

    if (path)
        processes_flip(path, at);
    ck_assert_msg(client_model_open(&model, &(struct client_model_name){.path = "sealed"}, &err) == 0, "%s", err.text);
    ck_assert_msg(client_model_check(&model, NULL, NULL, &err) == (says ? -EINVAL : 0), "%s: %s", path, err.text);
    ck_assert_holds(err.text, says ? says : "");
    snprintf(edited, sizeof edited, "%.*s", (int)sizeof edited - 1,
             *model.edited ? strstr(model.edited, "/sealed") : "");
    client_model_close(&model);
    ck_assert_uint_eq(processes_count_fds(getpid()), before);
    if (path)
        processes_flip(path, at);
}

TEST(a_checkpoint_is_held_to_its_checksums)
{
    struct store_fixture f;
    struct client_model model;
    uint64_t bytes = 0;

    store_fixture_open(&f, store_fixture_small, true, 0);
    store_fixture_save(&f, "sealed", 4);
    store_fixture_close(&f);
    check_flipped(NULL, 0, NULL);
    check_flipped("sealed/optimizer.safetensors", 3, NULL); /* not used, not read */
    check_flipped("sealed/model.safetensors", -3, "/sealed: model.safetensors");
    ck_assert_str_eq(edited, "");
    check_flipped("sealed/merges.txt", 3, NULL);
    ck_assert_str_eq(edited, "/sealed: merges.txt is not as it was saved; it is read as it is");
    check_flipped("sealed/training.json", 12, "/sealed: training.json");
    ck_assert_int_eq(client_model_open(&model, &(struct client_model_name){.path = "sealed"}, NULL), 0);
    ck_assert_int_eq(client_model_check(&model, on_bytes, &bytes, NULL), 0);
    ck_assert_uint_gt(bytes, 4 * 1936); /* the weights, at least */
    ck_assert_int_eq(client_model_check(&model, cut_short, NULL, NULL), -EINTR);
    client_model_close(&model);
    char *text = checkpoint_print(&(struct checkpoint){.step = 4});
    processes_put_text("sealed/training.json", text);
    free(text);
    check_flipped(NULL, 0, "config.json is not among its files");
    ck_assert_int_eq(unlink("sealed/training.json"), 0);
    check_flipped(NULL, 0, NULL); /* nothing to hold it to */
}

static unsigned n_allowed; /* allocations for JSON, until one fails */

static void *allocate(size_t n)
{
    return n_allowed-- == 0 ? NULL : malloc(n);
}

/* The model's config.json, with fresh adapters in it; NULL: they were refused. */
static json_t *adapted(unsigned allowed)
{
    struct client_model model;
    struct error err = {""};

    ck_assert_int_eq(client_model_open(&model, &(struct client_model_name){.path = "config.json"}, &err), 0);
    n_allowed = allowed;
    json_set_alloc_funcs(allocate, free);
    const int rc = client_adapter_plan(&model, "rank=4", &err);
    json_set_alloc_funcs(malloc, free);
    char *text = rc ? NULL : client_model_print_config(&model, SAFETENSORS_F32, NULL);
    json_t *out = text ? json_loads(text, 0, NULL) : NULL;
    ck_assert_msg(!rc || *err.text, "refused without a reason");
    free(text);
    client_model_close(&model);
    return out;
}

TEST(adapters_are_whole_or_refused_whichever_allocation_fails)
{
    json_t *whole = adapted(UINT32_MAX), *now = NULL;
    unsigned n = 0;

    ck_assert_ptr_nonnull(whole);
    for (; !now; n++)
        now = adapted(n);
    ck_assert_uint_gt(n, 100);
    ck_assert_msg(json_equal(now, whole), "%u allocations: %s", n, json_dumps(now, 0));
    json_decref(now);
    json_decref(whole);
}
