/* Options into a checkpoint and back, and what of them may differ when a run goes on. */
#include "tests/kit/test.h"

#include "client/run/record.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const files[] = {"/etc/passwd", "/no/such.txt"};

/* Every number is one that no default and no other option has. */
static struct eps_train_options resolved(void)
{
    struct eps_train_options o = eps_train_defaults();

    o.model = "byte-small", o.data = files, o.n_data = 2, o.eval_data = "/etc/group";
    o.steps = 1001, o.batch = 12, o.seq = 34, o.microbatch = 3, o.parts = 4, o.workers = 2;
    o.lr = 0.1 + 0.2, o.min_lr = 1e-300, o.weight_decay = 1.0 / 3, o.beta1 = nextafter(0.9, 1), o.beta2 = 0.98;
    o.epsilon = 5e-324, o.schedule = EPS_SCHEDULE_LINEAR, o.warmup = 17, o.optimizer = EPS_ADAMW;
    o.order = EPS_SEQUENTIAL, o.separator = EPS_SEPARATOR_EOS, o.seed = (uint64_t)INT64_MAX, o.eval_every = 19,
    o.save_every = 0, o.keep = 5;
    o.eval_tokens = 23, o.patience = 29;
    o.deterministic = true, o.device_mem = (uint64_t)3 << 40;
    o.precision = EPS_BF16, o.moments = EPS_BF16, o.grad_dtype = EPS_FP32, o.commit = EPS_FENCED;
    o.clip_norm = 0.7, o.clip_update = 2.0 / 3, o.host_mem = (uint64_t)5 << 40;
    o.device = "cuda:7";
    return o;
}

static const struct client_content data = {123456789012, 0xFEDCBA9876543210}, eval_data = {5, 1};

/* Through the text of a file, as a checkpoint keeps it. */
static void stored(struct client_record *record, const struct eps_train_options *options)
{
    json_t *json = client_record_write(options, &data, &eval_data);
    char *text = json_dumps(json, JSON_COMPACT);
    json_t *again = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    struct error err = {0};

    ck_assert_ptr_nonnull(again);
    ck_assert_msg(client_record_read(record, again, &err) == 0, "%s", err.text);
    json_decref(again);
    json_decref(json);
    free(text);
}

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* All but the texts. Field by field: what pads the struct is anybody's. */
static void check_same(const struct eps_train_options *got, const struct eps_train_options *want)
{
    ck_assert_uint_eq(got->n_data, want->n_data);
    ck_assert_uint_eq(got->steps, want->steps);
    ck_assert(same_bits(got->epochs, want->epochs));
    ck_assert_uint_eq(got->batch, want->batch);
    ck_assert_uint_eq(got->seq, want->seq);
    ck_assert_uint_eq(got->microbatch, want->microbatch);
    ck_assert_uint_eq(got->parts, want->parts);
    ck_assert_uint_eq(got->workers, want->workers);
    ck_assert(same_bits(got->lr, want->lr));
    ck_assert(same_bits(got->min_lr, want->min_lr));
    ck_assert(same_bits(got->weight_decay, want->weight_decay));
    ck_assert(same_bits(got->beta1, want->beta1));
    ck_assert(same_bits(got->beta2, want->beta2));
    ck_assert(same_bits(got->epsilon, want->epsilon));
    ck_assert_int_eq(got->schedule, want->schedule);
    ck_assert_uint_eq(got->warmup, want->warmup);
    ck_assert_int_eq(got->optimizer, want->optimizer);
    ck_assert_int_eq(got->order, want->order);
    ck_assert_int_eq(got->separator, want->separator);
    ck_assert_uint_eq(got->seed, want->seed);
    ck_assert_uint_eq(got->eval_every, want->eval_every);
    ck_assert_uint_eq(got->eval_tokens, want->eval_tokens);
    ck_assert_uint_eq(got->patience, want->patience);
    ck_assert_uint_eq(got->save_every, want->save_every);
    ck_assert_uint_eq(got->keep, want->keep);
    ck_assert_int_eq(got->deterministic, want->deterministic);
    ck_assert_uint_eq(got->device_mem, want->device_mem);
    ck_assert_int_eq(got->precision, want->precision);
    ck_assert_int_eq(got->moments, want->moments);
    ck_assert_int_eq(got->grad_dtype, want->grad_dtype);
    ck_assert_int_eq(got->commit, want->commit);
    ck_assert(same_bits(got->clip_norm, want->clip_norm));
    ck_assert(same_bits(got->clip_update, want->clip_update));
    ck_assert_uint_eq(got->host_mem, want->host_mem);
}

TEST(what_is_read_is_what_was_written_to_the_bit)
{
    struct eps_train_options in = resolved(), out;
    struct client_record record;

    stored(&record, &in);
    out = record.options;
    ck_assert_str_eq(out.model, "byte-small");
    ck_assert_uint_eq(out.n_data, 2);
    ck_assert_str_eq(out.data[0], "/etc/passwd");
    ck_assert_str_eq(out.data[1], "/no/such.txt");
    ck_assert_str_eq(out.eval_data, "/etc/group");
    ck_assert_str_eq(out.device, "cuda:7");
    ck_assert_mem_eq(&record.data, &data, sizeof data);
    ck_assert_mem_eq(&record.eval_data, &eval_data, sizeof data);
    check_same(&out, &in);
    client_record_free(&record);
    client_record_free(&record);
}

TEST(a_clip_that_there_is_none_of_is_stored_too)
{
    struct eps_train_options in = resolved();
    struct client_record record;

    in.clip_norm = in.clip_update = NAN, in.commit = EPS_EAGER;
    stored(&record, &in);
    check_same(&record.options, &in);
    client_record_free(&record);
}

/* As the options were before: what trained then is what the defaults say. */
TEST(checkpoints_of_before_have_fp32_eager_commit_and_no_clip)
{
    static const char *const keys[] = {"precision", "moments",     "grad_dtype", "commit",
                                       "clip_norm", "clip_update", "host_mem"};
    const struct eps_train_options in = resolved();
    struct client_record record;
    json_t *json = client_record_write(&in, &data, &eval_data);

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ck_assert_int_eq(json_object_del(json, keys[i]), 0);
    ck_assert_int_eq(client_record_read(&record, json, NULL), 0);
    ck_assert_int_eq(record.options.precision, EPS_FP32);
    ck_assert_int_eq(record.options.moments, EPS_FP32);
    ck_assert_int_eq(record.options.grad_dtype, EPS_FP32);
    ck_assert_int_eq(record.options.commit, EPS_EAGER);
    ck_assert(isnan(record.options.clip_norm));
    ck_assert(isnan(record.options.clip_update));
    ck_assert_uint_eq(record.options.host_mem, 0);
    client_record_free(&record);
    json_decref(json);
}

TEST(paths_are_absolute_where_they_are_paths)
{
    static const char *const relative[] = {"../etc/passwd"};
    struct eps_train_options in = resolved();
    struct client_record record;

    ck_assert_int_eq(chdir("/tmp"), 0);
    in.data = relative, in.n_data = 1, in.model = "../etc/group", in.eval_data = NULL;
    stored(&record, &in);
    ck_assert_str_eq(record.options.data[0], "/etc/passwd");
    ck_assert_str_eq(record.options.model, "/etc/group");
    ck_assert_ptr_null(record.options.eval_data);
    client_record_free(&record);
}

TEST(what_was_not_written_by_us_is_refused_by_its_key)
{
    static const struct {
        const char *key, *value; /* NULL: it is missing */
    } wrongs[] = {
        {"steps", NULL},
        {"steps", "0"},
        {"steps", "-1"},
        {"steps", "\"5\""},
        {"batch", "4294967296"},
        {"lr", "\"0.1\""},
        {"lr", NULL},
        {"betas", "[0.9]"},
        {"betas", "0.9"},
        {"schedule", "\"\""},
        {"schedule", "\"up\""},
        {"optimizer", "1"},
        {"order", NULL},
        {"precision", "\"fp16\""},
        {"commit", "\"\""},
        {"clip_norm", "\"none\""},
        {"deterministic", "1"},
        {"model", "7"},
        {"data", "[]"},
        {"data", "\"a\""},
        {"data", "[1]"},
        {"data_hash", "\"1\""},
        {"data_hash", "\"000000000000000g\""},
        {"data_tokens", NULL},
        {"eval_data_hash", NULL},
        {"eval_data", "3"},
    };
    const struct eps_train_options in = resolved();
    struct client_record record;
    struct error err = {0};

    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        json_t *json = client_record_write(&in, &data, &eval_data);
        if (wrongs[i].value)
            json_object_set_new(json, wrongs[i].key, json_loads(wrongs[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(json, wrongs[i].key);
        ck_assert_msg(client_record_read(&record, json, &err) == -EINVAL, "%s", wrongs[i].key);
        char key[20];
        snprintf(key, sizeof key, "%.*s", (int)(strncmp(wrongs[i].key, "eval_", 5) ? 20 : 9), wrongs[i].key);
        ck_assert_msg(strstr(err.text, strcmp(key, "eval_data") ? wrongs[i].key : key) != NULL, "no %s: %s", key,
                      err.text);
        json_decref(json);
    }
    ck_assert_int_eq(client_record_read(&record, NULL, &err), -EINVAL);
}

TEST(a_run_goes_on_as_it_was_where_nothing_is_said)
{
    struct eps_train_options in = resolved(), given = eps_train_defaults(), out;
    struct client_record record;

    given.resume = "r", given.out = "o", given.programs = "p";
    stored(&record, &in);
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    ck_assert_str_eq(out.model, "byte-small");
    ck_assert_str_eq(out.data[1], "/no/such.txt");
    ck_assert_str_eq(out.eval_data, "/etc/group");
    ck_assert_str_eq(out.out, "o");
    ck_assert_str_eq(out.programs, "p");
    ck_assert_str_eq(out.resume, "r");
    check_same(&out, &in);
    client_record_free(&record);
}

#define SET(name, statement)                                                                                           \
    static void name(struct eps_train_options *o)                                                                      \
    {                                                                                                                  \
        statement;                                                                                                     \
    }
SET(other_model, o->model = "/etc/passwd")
SET(other_eval, o->eval_data = "x")
SET(other_batch, o->batch = 16)
SET(other_seq, o->seq = 35)
SET(other_parts, o->parts = 2)
SET(other_lr, o->lr = 0.5)
SET(other_min_lr, o->min_lr = 0)
SET(other_schedule, o->schedule = EPS_SCHEDULE_COSINE)
SET(other_warmup, o->warmup = 0)
SET(other_decay, o->weight_decay = 0)
SET(other_betas, (o->beta1 = 0.9, o->beta2 = 0.999))
SET(other_beta2, (o->beta1 = nextafter(0.9, 1), o->beta2 = 0.999))
SET(other_epsilon, o->epsilon = 1e-8)
SET(other_optimizer, o->optimizer = EPS_ADAMA)
SET(other_order, o->order = EPS_SHUFFLED)
SET(other_separator, o->separator = EPS_SEPARATOR_NONE)
SET(other_seed, o->seed = 0)
SET(other_precision, o->precision = EPS_FP32)
SET(other_moments, o->moments = EPS_FP32)
SET(other_grad, o->grad_dtype = EPS_BF16)
SET(other_commit, o->commit = EPS_EAGER)
SET(other_clip, o->clip_norm = 1)
SET(other_clip_update, o->clip_update = 1)

static const struct {
    void (*set)(struct eps_train_options *o);
    const char *first, *second; /* option and value; the run's */
} differing[] = {
    {other_model, "--model /etc/passwd ", "byte-small"},
    {other_batch, "--batch 16 ", "the run's 12"},
    {other_seq, "--seq 35 ", "the run's 34"},
    {other_parts, "--parts 2 ", "the run's 4"},
    {other_lr, "--lr 0.5 ", "the run's 0.30000000000000004"},
    {other_min_lr, "--min-lr 0 ", "the run's 1e-300"},
    {other_schedule, "--schedule cosine ", "the run's linear"},
    {other_warmup, "--warmup 0 ", "the run's 17"},
    {other_decay, "--weight-decay 0 ", "the run's 0.3333333333333333:"},
    {other_betas, "--betas 0.9,0.999 ", "the run's 0.9000000000000001,0.98"},
    {other_beta2, "--betas 0.9000000000000001,0.999 ", ",0.98"},
    {other_epsilon, "--epsilon 1e-08 ", "the run's 4.94066e-324"},
    {other_optimizer, "--optimizer adama ", "the run's adamw"},
    {other_order, "--order shuffled ", "the run's sequential"},
    {other_separator, "--separator none ", "the run's eos"},
    {other_seed, "--seed 0 ", "the run's 9223372036854775807"},
    {other_precision, "--precision fp32 ", "the run's bf16"},
    {other_moments, "--moments fp32 ", "the run's bf16"},
    {other_grad, "--grad-dtype bf16 ", "the run's fp32"},
    {other_commit, "--commit eager ", "the run's fenced"},
    {other_clip, "--clip-norm 1 ", "the run's 0.7"},
    {other_clip_update, "--clip-update 1 ", "the run's 0.6666666666666666"},
};

TEST_EACH(what_differs_is_refused_by_name_and_both_values, COUNT(differing))
{
    struct eps_train_options in = resolved(), given = eps_train_defaults(), out;
    struct client_record record;
    struct error err = {0};

    stored(&record, &in);
    differing[_i].set(&given);
    ck_assert_int_eq(client_record_merge(&out, &given, &record, &err), -EDOM);
    ck_assert_msg(strncmp(err.text, differing[_i].first, strlen(differing[_i].first)) == 0, "%s", err.text);
    ck_assert_msg(strstr(err.text, differing[_i].second) != NULL, "no %s: %s", differing[_i].second, err.text);
    ck_assert_ptr_nonnull(strstr(err.text, "leave it out"));
    /* What is the same may be said again. */
    differing[_i].set(&in);
    client_record_free(&record);
    stored(&record, &in);
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    client_record_free(&record);
}

TEST(held_out_data_and_determinism_cannot_come_later)
{
    struct eps_train_options in = resolved(), given = eps_train_defaults(), out;
    struct client_record record;
    struct error err = {0};

    in.eval_data = NULL, in.deterministic = false;
    stored(&record, &in);
    other_eval(&given);
    ck_assert_int_eq(client_record_merge(&out, &given, &record, &err), -EDOM);
    ck_assert_ptr_nonnull(strstr(err.text, "--eval-data x"));
    given = eps_train_defaults(), given.deterministic = true;
    ck_assert_int_eq(client_record_merge(&out, &given, &record, &err), -EDOM);
    ck_assert_ptr_nonnull(strstr(err.text, "--deterministic "));
    client_record_free(&record);
}

TEST(a_clip_cannot_come_later)
{
    struct eps_train_options in = resolved(), given = eps_train_defaults(), out;
    struct client_record record;
    struct error err = {0};

    in.clip_norm = NAN;
    stored(&record, &in);
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    ck_assert(isnan(out.clip_norm));
    given.clip_norm = 2;
    ck_assert_int_eq(client_record_merge(&out, &given, &record, &err), -EDOM);
    ck_assert_msg(strstr(err.text, "--clip-norm 2 differs from the run's none") != NULL, "%s", err.text);
    client_record_free(&record);
}

/* What no run of ours has, and a file may say all the same: it is chosen anew. */
TEST(parts_that_there_are_none_of_are_no_harm)
{
    struct eps_train_options in = resolved(), given = eps_train_defaults(), out;
    struct client_record record;

    in.parts = 0;
    stored(&record, &in);
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    ck_assert_uint_eq(out.parts, 0);
    client_record_free(&record);
}

TEST(what_may_differ_is_taken_as_given)
{
    static const char *const moved[] = {"moved.txt"};
    struct eps_train_options in = resolved(), given = eps_train_defaults(), out;
    struct client_record record;

    given.steps = 2000, given.microbatch = 1, given.eval_every = 7, given.save_every = 8, given.keep = 0;
    given.device_mem = 99, given.host_mem = 98, given.require_pinned = true, given.workers = 9, given.data = moved,
    given.n_data = 1, given.eval_data = "e", given.device = "cpu";
    stored(&record, &in);
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    ck_assert_uint_eq(out.steps, 2000);
    ck_assert_uint_eq(out.microbatch, 1);
    ck_assert_uint_eq(out.eval_every, 7);
    ck_assert_uint_eq(out.save_every, 8);
    ck_assert_uint_eq(out.keep, 0);
    ck_assert_uint_eq(out.device_mem, 99);
    ck_assert_uint_eq(out.host_mem, 98);
    ck_assert(out.require_pinned);
    ck_assert_uint_eq(out.workers, 9);
    ck_assert_ptr_eq(out.data, moved);
    ck_assert_str_eq(out.eval_data, "e");
    ck_assert_str_eq(out.device, "cpu");
    ck_assert_double_eq(out.lr, 0.1 + 0.2);
    given = eps_train_defaults(), given.epochs = 2, given.connect = "lab";
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    ck_assert_uint_eq(out.steps, 0); /* what 2 epochs are */
    ck_assert_uint_eq(out.workers, 0);
    ck_assert_uint_eq(out.device_mem, 0);
    ck_assert_uint_eq(out.host_mem, 0);
    ck_assert_ptr_null(out.device);
    given = eps_train_defaults();
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    ck_assert_str_eq(out.device, "cuda:7");
    client_record_free(&record);
}

TEST(the_side_file_holds_options_and_files)
{
    json_t *options = json_pack("{s:f}", "lr", 0.1), *texts = json_pack("{s:s}", "merges.txt", "a b\n");
    char bytes[400];

    for (int with = 0; with < 2; with++) {
        int fd;
        ck_assert_int_eq(client_record_side(&fd, options, with ? texts : NULL, with ? 4096 : 0, NULL), 0);
        const ssize_t n = read(fd, bytes, sizeof bytes); /* from its beginning */
        ck_assert_int_gt((int)n, 0);
        json_t *side = json_loadb(bytes, (size_t)n, 0, NULL);
        ck_assert_int_eq(json_equal(json_object_get(side, "options"), options), 1);
        ck_assert_uint_eq(json_object_size(json_object_get(side, "files")), (unsigned)with);
        json_decref(side);
        close(fd);
    }
    json_decref(options);
    json_decref(texts);
}
