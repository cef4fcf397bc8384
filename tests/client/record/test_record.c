/* Options into a checkpoint and back, and what of them may differ when a run goes on. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "client/options/value.h"
#include "client/record/record.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
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
    o.save_every = 0, o.save_minutes = 0.25, o.keep = 5;
    o.eval_tokens = 23, o.patience = 29;
    o.train_on = EPS_TRAIN_ON_LAST, o.split_special_tokens = EPS_SPLIT_NO, o.long_rows = EPS_LONG_DROP, o.pack = true;
    o.deterministic = true, o.device_mem = (uint64_t)3 << 40;
    o.precision = EPS_BF16, o.moments = EPS_MOMENTS_BF16, o.grad_dtype = EPS_FP32, o.commit = EPS_FENCED;
    o.master = EPS_MASTER_NONE, o.sums = EPS_BF16, o.attention = EPS_ATTENTION_ORDERED;
    o.base = EPS_BASE_NF4;
    o.mask_fraction = 0.4;
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

/* Stored options, all but the texts, to the bit. What pads the struct is anybody's. */
static void check_same(const struct eps_train_options *got, const struct eps_train_options *want)
{
    struct eps_train_options mine, its;
    const struct eps_option *row;

    ck_assert_uint_eq(got->n_data, want->n_data);
    for (unsigned i = 1; (row = client_option_stored(i)); i++) {
        if (row->kind == EPS_OPTION_TEXT || row->kind == EPS_OPTION_PATTERNS)
            continue;
        memset(&mine, 0, sizeof mine);
        memset(&its, 0, sizeof its);
        client_option_copy(&mine, got, row);
        client_option_copy(&its, want, row);
        ck_assert_msg(memcmp(&mine, &its, sizeof mine) == 0, "%s", row->name);
    }
}

/* Sets an option to the first or the second of two values that no default is. */
static void put(struct eps_train_options *o, const struct eps_option *row, bool second)
{
    void *at = (char *)o + row->offset;

    switch (row->kind) {
    case EPS_OPTION_TEXT:
    case EPS_OPTION_OPTIONAL_TEXT:
    case EPS_OPTION_PATTERNS:
        *(const char **)at = second ? "cpu" : "cuda:7"; /* no other text is a device */
        return;
    case EPS_OPTION_REAL:
        *(double *)at = second ? 1.0 / 3 : 0.1 + 0.2;
        return;
    case EPS_OPTION_PAIR:
        ((double *)at)[0] = 0.1, ((double *)at)[1] = second ? 0.2 : 0.3;
        return;
    case EPS_OPTION_CHOICE:
        *(uint32_t *)at = second ? 1 : 2;
        return;
    case EPS_OPTION_FLAG:
        *(bool *)at = !second;
        return;
    case EPS_OPTION_COUNT:
    case EPS_OPTION_AUTO:
    case EPS_OPTION_NUMBER_32:
        *(uint32_t *)at = second ? 29 : 23;
        return;
    case EPS_OPTION_LONG:
    case EPS_OPTION_NUMBER:
    case EPS_OPTION_BYTES:
        *(uint64_t *)at = second ? (uint64_t)31 << 32 : 37;
        return;
    case EPS_OPTION_HEADING:
    case EPS_OPTION_TEXTS:
        break;
    }
    ck_abort_msg("%s is not stored by its row", row->name);
}

TEST(each_row_that_is_stored_is_read_as_it_was_written)
{
    struct eps_train_options in = resolved();
    const struct eps_option *row;
    struct client_record record;

    for (int second = 0; second < 2; second++) {
        for (unsigned i = 1; (row = client_option_stored(i)); i++)
            put(&in, row, second);
        in.freeze = second ? NULL : in.freeze; /* once without: the key is absent */
        stored(&record, &in);
        for (unsigned i = 1; (row = client_option_stored(i)); i++)
            ck_assert_msg(client_option_same(&record.options, &in, row), "%s", row->name);
        check_same(&record.options, &in);
        client_record_free(&record);
    }
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
    in.clip_norm = in.clip_update = NAN, in.commit = EPS_EAGER; /* a clip that there is none of is stored too */
    stored(&record, &in);
    check_same(&record.options, &in);
    client_record_free(&record);
}

/* As the options were before: what trained then is what the defaults say. */
TEST(checkpoints_of_before_have_fp32_eager_commit_and_no_clip)
{
    static const char *const keys[] = {"precision", "moments",     "grad_dtype", "base",     "commit",
                                       "clip_norm", "clip_update", "host_mem",   "train_on", "long",
                                       "pack",      "master",      "sums"};
    struct eps_train_options in = resolved();
    in.mask_fraction = NAN;
    struct client_record record;
    json_t *json = client_record_write(&in, &data, &eval_data);

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ck_assert_int_eq(json_object_del(json, keys[i]), 0);
    ck_assert_int_eq(client_record_read(&record, json, NULL), 0);
    ck_assert_int_eq(record.options.precision, EPS_FP32);
    ck_assert_int_eq(record.options.moments, EPS_MOMENTS_FP32);
    ck_assert_int_eq(record.options.grad_dtype, EPS_FP32);
    ck_assert(record.options.master == EPS_MASTER_FP32 && record.options.sums == EPS_FP32);
    ck_assert_int_eq(record.options.base, EPS_BASE_FULL);
    ck_assert_int_eq(record.options.commit, EPS_EAGER);
    ck_assert(isnan(record.options.clip_norm));
    ck_assert(isnan(record.options.clip_update));
    ck_assert(!json_object_get(json, "mask_fraction") && isnan(record.options.mask_fraction));
    ck_assert_uint_eq(record.options.host_mem, 0);
    ck_assert_int_eq(record.options.train_on, EPS_TRAIN_ON_ANSWERS);
    ck_assert_int_eq(record.options.long_rows, EPS_LONG_CUT);
    ck_assert(!record.options.pack);
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
        {"precision", "\"fp8\""},
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
        ck_assert_holds(err.text, strncmp(wrongs[i].key, "eval_", 5) ? wrongs[i].key : "eval_data");
        json_decref(json);
    }
    ck_assert_int_eq(client_record_read(&record, NULL, &err), -EINVAL);
}

/* A run with these options, resumed with the given ones; what is borrowed of the record is lost. */
static int merged(struct eps_train_options *out, const struct eps_train_options *in,
                  const struct eps_train_options *given, struct error *err)
{
    struct client_record record;

    stored(&record, in);
    const int rc = client_record_merge(out, given, &record, err);
    client_record_free(&record);
    return rc;
}

/* Another schedule has no use for them; the same one keeps what is not changed. */
TEST(the_steps_of_a_schedule_go_with_it)
{
    struct eps_train_options run = resolved(), given = eps_train_defaults(), out;
    struct error err = {""};

    run.schedule = EPS_SCHEDULE_STEP, run.lr_steps = "60,120", run.lr_factor = 0.2;
    given.change = "schedule", given.schedule = EPS_SCHEDULE_COSINE;
    ck_assert_msg(merged(&out, &run, &given, &err) == 0, "%s", err.text);
    ck_assert(out.schedule == EPS_SCHEDULE_COSINE && !out.lr_steps && isnan(out.lr_factor));
    given = eps_train_defaults(), given.change = "lr-steps", given.lr_steps = "90";
    ck_assert_msg(merged(&out, &run, &given, &err) == 0, "%s", err.text);
    ck_assert(out.schedule == EPS_SCHEDULE_STEP && out.lr_factor == 0.2);
    ck_assert_str_eq(out.lr_steps, "90");
    given = eps_train_defaults(), given.lr_steps = "90";
    ck_assert_int_eq(merged(&out, &run, &given, &err), -EDOM);
    ck_assert_holds(err.text, "--lr-steps 90 ", "60,120");
}

/* How an option is set otherwise; option and value; the run's. */
#define DIFFERING(X)                                                                                                   \
    X((o->model = "/etc/passwd"), "--model /etc/passwd ", "byte-small")                                                \
    X((o->batch = 16), "--batch 16 ", "the run's 12")                                                                  \
    X((o->seq = 35), "--seq 35 ", "the run's 34")                                                                      \
    X((o->parts = 2), "--parts 2 ", "the run's 4")                                                                     \
    X((o->lr = 0.5), "--lr 0.5 ", "the run's 0.30000000000000004")                                                     \
    X((o->min_lr = 0), "--min-lr 0 ", "the run's 1e-300")                                                              \
    X((o->schedule = EPS_SCHEDULE_COSINE), "--schedule cosine ", "the run's linear")                                   \
    X((o->warmup = 0), "--warmup 0 ", "the run's 17")                                                                  \
    X((o->weight_decay = 0), "--weight-decay 0 ", "the run's 0.3333333333333333:")                                     \
    X((o->beta1 = 0.9, o->beta2 = 0.999), "--betas 0.9,0.999 ", "the run's 0.9000000000000001,0.98")                   \
    X((o->beta1 = nextafter(0.9, 1), o->beta2 = 0.999), "--betas 0.9000000000000001,0.999 ", ",0.98")                  \
    X((o->epsilon = 1e-8), "--epsilon 1e-08 ", "the run's 4.94066e-324")                                               \
    X((o->optimizer = EPS_ADAMA), "--optimizer adama ", "the run's adamw")                                             \
    X((o->order = EPS_SHUFFLED), "--order shuffled ", "the run's sequential")                                          \
    X((o->separator = EPS_SEPARATOR_NONE), "--separator none ", "the run's eos")                                       \
    X((o->seed = 0), "--seed 0 ", "the run's 9223372036854775807")                                                     \
    X((o->precision = EPS_FP32), "--precision fp32 ", "the run's bf16")                                                \
    X((o->moments = EPS_MOMENTS_FP32), "--moments fp32 ", "the run's bf16")                                            \
    X((o->grad_dtype = EPS_BF16), "--grad-dtype bf16 ", "the run's fp32")                                              \
    X((o->master = EPS_MASTER_FP32), "--master fp32 ", "the run's none")                                               \
    X((o->sums = EPS_FP32), "--sums fp32 ", "the run's bf16")                                                          \
    X((o->attention = EPS_ATTENTION_OWN), "--attention own ", "the run's ordered")                                     \
    X((o->commit = EPS_EAGER), "--commit eager ", "the run's fenced")                                                  \
    X((o->clip_norm = 1), "--clip-norm 1 ", "the run's 0.7")                                                           \
    X((o->clip_update = 1), "--clip-update 1 ", "the run's 0.6666666666666666")

TEST(what_differs_is_refused_by_name_and_both_values)
{
    struct eps_train_options run, given, out, *o;
    struct error err = {0};

    /* What is the same may be said again. */
#define X(set, first, second)                                                                                          \
    run = resolved(), given = eps_train_defaults(), o = &given;                                                        \
    set;                                                                                                               \
    ck_assert_msg(merged(&out, &run, &given, &err) == -EDOM, "%s", #set);                                              \
    ck_assert_msg(strncmp(err.text, first, strlen(first)) == 0, "%s", err.text);                                       \
    ck_assert_holds(err.text, second, "leave it out");                                                                 \
    o = &run;                                                                                                          \
    set;                                                                                                               \
    ck_assert_msg(merged(&out, &run, &given, NULL) == 0, "%s", #set);
    DIFFERING(X)
#undef X
}

/* A job that is taken over keeps all its options; a resumed run those that its rows say. */
TEST(what_another_value_does_is_what_its_row_says)
{
    static const char *const remedies[] = {
        [EPS_RESUME_REFUSES] = "leave it out, or", [EPS_RESUME_CHANGES] = "add --change", [EPS_RESUME_TAKES] = NULL};
    struct eps_train_options run = resolved(), given, out;
    const struct eps_option *row;
    struct error err;

    for (unsigned i = 1; (row = client_option_stored(i)); i++)
        put(&run, row, false);
    for (unsigned i = 1; (row = client_option_stored(i)); i++) {
        for (int way = 0; way < 3 && row->kind != EPS_OPTION_FLAG; way++) {
            given = eps_train_defaults();
            put(&given, row, true);
            given.attach = way == 1 ? "lab" : NULL;
            given.change = way == 2 ? row->name + 2 : NULL;
            const bool takes = way != 1 && row->resume == EPS_RESUME_TAKES;
            const bool changes = way == 2 && row->resume == EPS_RESUME_CHANGES;
            if (way == 2 && takes)
                continue; /* --change does not name it */
            err.text[0] = 0;
            const int rc = merged(&out, &run, &given, &err);
            ck_assert_msg(rc == (takes || changes ? 0 : -EDOM), "%s: %s", row->name, err.text);
            if (rc == 0)
                ck_assert_msg(client_option_same(&out, &given, row), "%s", row->name);
            else if (way == 1)
                ck_assert_holds(err.text, row->name, "differs from the job's", "as a job that is taken over keeps");
            else if (way == 0)
                ck_assert_holds(err.text, row->name, "differs from the run's", remedies[row->resume]);
            else
                ck_assert_holds(err.text, print("--change %s: --change can name batch, lr,", row->name + 2),
                                ", drop-layers, freeze-until and attention");
        }
    }
}

/* The daemon stores which of cuDNN's ways the device had. */
TEST(cudnn_is_the_way_of_cudnn_that_the_run_has)
{
    struct eps_train_options run = resolved(), given = eps_train_defaults(), out;
    struct error err;

    given.attention = EPS_ATTENTION_CUDNN;
    ck_assert_int_eq(merged(&out, &run, &given, NULL), 0);
    ck_assert_int_eq(out.attention, EPS_ATTENTION_ORDERED);
    run.attention = EPS_ATTENTION_OWN;
    ck_assert_int_eq(merged(&out, &run, &given, &err), -EDOM);
    ck_assert_holds(err.text, "--attention cudnn differs from the run's own");
}

TEST(held_out_data_determinism_and_a_clip_cannot_come_later)
{
    static const char *const words[] = {"--eval-data x", "--deterministic ",
                                        "--clip-norm 2 differs from the run's none"};
    struct eps_train_options in = resolved(), given = eps_train_defaults(), out;
    struct error err = {0};

    in.eval_data = NULL, in.deterministic = false, in.clip_norm = NAN;
    in.parts = 0; /* what no run of ours has, and a file may say all the same: it is chosen anew */
    ck_assert_int_eq(merged(&out, &in, &given, NULL), 0);
    ck_assert(isnan(out.clip_norm) && out.parts == 0);
    for (int i = 0; i < 3; i++) {
        given = eps_train_defaults();
        given.eval_data = i == 0 ? "x" : NULL, given.deterministic = i == 1;
        given.clip_norm = i == 2 ? 2 : given.clip_norm;
        ck_assert_int_eq(merged(&out, &in, &given, &err), -EDOM);
        ck_assert_holds(err.text, words[i]);
    }
}

TEST(what_is_not_said_goes_on_and_what_may_differ_is_taken_as_given)
{
    static const char *const moved[] = {"moved.txt"};
    struct eps_train_options in = resolved(), want = in, given = eps_train_defaults(), out;
    struct client_record record;

    stored(&record, &in);
    given.resume = "r", given.out = "o", given.programs = "p";
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    check_same(&out, &in);
    ck_assert_str_eq(print("%s %s %s %s", out.model, out.data[1], out.eval_data, out.device),
                     "byte-small /no/such.txt /etc/group cuda:7");
    ck_assert_str_eq(print("%s %s %s", out.out, out.programs, out.resume), "o p r");

    want.steps = 2000, want.microbatch = 1, want.eval_every = 7, want.save_every = 8, want.keep = 0,
    want.save_minutes = 7.5;
    want.device_mem = 99, want.host_mem = 98, want.workers = 9, want.n_data = 1;
    given.steps = 2000, given.microbatch = 1, given.eval_every = 7, given.save_every = 8, given.keep = 0,
    given.save_minutes = 7.5;
    given.device_mem = 99, given.host_mem = 98, given.workers = 9, given.n_data = 1;
    given.require_pinned = true, given.data = moved, given.eval_data = "e", given.device = "cpu";
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    check_same(&out, &want);
    ck_assert(out.require_pinned && out.data == moved);
    ck_assert_str_eq(print("%s %s", out.eval_data, out.device), "e cpu");

    given = eps_train_defaults(), given.epochs = 2, given.connect = "lab";
    ck_assert_int_eq(client_record_merge(&out, &given, &record, NULL), 0);
    ck_assert_uint_eq(out.steps, 0);                                                        /* what 2 epochs are */
    ck_assert(out.workers == 0 && out.device_mem == 0 && out.host_mem == 0 && !out.device); /* the daemon's own */
    client_record_free(&record);
}
