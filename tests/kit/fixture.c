#include "tests/kit/fixture.h"

#include "proto/model/safetensors.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_BUCKETS = 128 };

/* drawn.py, line by line. */
static uint64_t key_of(const char *text)
{
    uint64_t h = 0xCBF29CE484222325;

    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 0x100000001B3;
    return h;
}

static uint64_t word_of(uint64_t key, uint64_t i)
{
    uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

static uint64_t keyf(const char *format, ...) __attribute__((format(printf, 1, 2)));
static uint64_t keyf(const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    ck_assert_int_lt(vsnprintf(text, sizeof text, format, args), (int)sizeof text);
    va_end(args);
    return key_of(text);
}

static const json_t *at(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    ck_assert_msg(value != NULL, "fixture: no \"%s\"", name);
    return value;
}

static uint64_t count_at(const json_t *object, const char *name)
{
    ck_assert(json_is_integer(at(object, name)));
    return (uint64_t)json_integer_value(at(object, name));
}

static double number_at(const json_t *object, const char *name)
{
    ck_assert(json_is_number(at(object, name)));
    return json_number_value(at(object, name));
}

static const char *text_at(const json_t *object, const char *name)
{
    ck_assert(json_is_string(at(object, name)));
    return json_string_value(at(object, name));
}

static double largest_at(const json_t *object, const char *name)
{
    const json_t *list = at(object, name), *value;
    double largest = 0;
    size_t i;

    ck_assert_uint_ge(json_array_size(list), 1);
    json_array_foreach(list, i, value) largest = fmax(largest, json_number_value(value));
    return largest;
}

static json_t *read_json(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, 0, &error);

    ck_assert_msg(json != NULL, "%s:%d: %s", path, error.line, error.text);
    return json;
}

static void read_values(struct fixture *fixture, const char *path)
{
    FILE *file = fopen(path, "rb");
    long bytes;

    ck_assert_msg(file != NULL, "%s: cannot be opened", path);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    bytes = ftell(file);
    rewind(file);
    fixture->n_values = (size_t)bytes / sizeof(double);
    fixture->values = malloc((size_t)bytes);
    ck_assert_ptr_nonnull(fixture->values);
    ck_assert_uint_eq(fread(fixture->values, sizeof(double), fixture->n_values, file), fixture->n_values);
    fclose(file);
}

/* A program that was carried to another machine is told where the fixtures lie there. */
static const char *tests_dir(void)
{
    const char *told = getenv("EPS_TESTS_DIR");

    return told ? told : TESTS_DIR;
}

void fixture_open_model(struct fixture *fixture, const char *name)
{
    char path[600];
    json_t *config;

    *fixture = (struct fixture){.name = name};
    snprintf(fixture->config, sizeof fixture->config, "%s/fixtures/%s/config.json", tests_dir(), name);
    config = read_json(fixture->config);
    fixture->vocabulary = (uint32_t)count_at(config, "vocab_size");
    json_decref(config);

    snprintf(path, sizeof path, "%s/fixtures/%s/reference.json", tests_dir(), name);
    fixture->reference = read_json(path);
    fixture->draw = text_at(fixture->reference, "draw");
}

void fixture_open(struct fixture *fixture, const char *name)
{
    char path[600];
    const json_t *r;

    fixture_open_model(fixture, name);
    r = fixture->reference;
    fixture->batch = (uint32_t)count_at(r, "batch");
    fixture->seq = (uint32_t)count_at(r, "seq");
    fixture->label_gap = (uint32_t)count_at(r, "label_gap");
    fixture->n_minibatches = (uint32_t)count_at(r, "n_minibatches");
    fixture->n_steps = (uint32_t)count_at(r, "n_steps");
    ck_assert_uint_eq(count_at(r, "n_buckets"), N_BUCKETS);
    fixture->lr = number_at(r, "lr");
    fixture->beta1 = number_at(r, "beta1");
    fixture->beta2 = number_at(r, "beta2");
    fixture->epsilon = number_at(r, "epsilon");
    fixture->weight_decay = number_at(r, "weight_decay");

    snprintf(path, sizeof path, "%s/fixtures/%s/values.f64", tests_dir(), name);
    read_values(fixture, path);
}

void fixture_close(struct fixture *fixture)
{
    json_decref(fixture->reference);
    free(fixture->values);
    *fixture = (struct fixture){0};
}

static void draw(float *weights, const struct fixture *fixture, const json_t *tensor)
{
    const uint64_t n = count_at(tensor, "n"), key = keyf("%s:%s", fixture->draw, text_at(tensor, "tensor"));
    const double base = number_at(tensor, "base"), scale = (float)number_at(tensor, "scale");

    for (uint64_t i = 0; i < n; i++)
        weights[i] = (float)(base + ((double)(word_of(key, i) >> 40) * 0x1p-24 - 0.5) * scale);
}

void fixture_draw(float *weights, const struct fixture *fixture, const char *tensor)
{
    const json_t *entry;
    size_t i;

    json_array_foreach(at(fixture->reference, "weights"), i, entry)
    {
        if (strcmp(text_at(entry, "tensor"), tensor) == 0) {
            draw(weights, fixture, entry);
            return;
        }
    }
    ck_abort_msg("fixture %s: no tensor %s", fixture->name, tensor);
}

uint64_t fixture_minibatch(uint32_t *ids, uint32_t *labels, const struct fixture *fixture, uint32_t number)
{
    const uint64_t v = fixture->vocabulary;
    const uint32_t seq = fixture->seq, which = number % fixture->n_minibatches;
    const uint64_t key = keyf("%s:ids:%u", fixture->draw, which), gaps = keyf("%s:gaps:%u", fixture->draw, which);
    uint64_t n_valid = 0;

    for (uint32_t row = 0; row < fixture->batch; row++) {
        for (uint32_t j = 0; j <= seq; j++) {
            uint64_t z = word_of(key, (uint64_t)row * (seq + 1) + j), i = (uint64_t)row * seq + j;
            uint32_t token = (uint32_t)((z >> 32) % v * ((uint32_t)z % v) / v);
            if (j < seq)
                ids[i] = token;
            if (j > 0)
                labels[i - 1] = token;
        }
    }
    for (uint64_t i = 0; i < (uint64_t)fixture->batch * seq; i++) {
        if (fixture->label_gap && word_of(gaps, i) % fixture->label_gap == 0)
            labels[i] = UINT32_MAX;
        n_valid += labels[i] != UINT32_MAX;
    }
    return n_valid;
}

static void copy_file(const char *from, const char *to)
{
    char text[16384];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    size_t n;

    ck_assert(in != NULL && out != NULL);
    n = fread(text, 1, sizeof text, in);
    ck_assert(feof(in));
    ck_assert_uint_eq(fwrite(text, 1, n, out), n);
    fclose(in);
    ck_assert_int_eq(fclose(out), 0);
}

void fixture_write_model(const struct fixture *fixture, const char *directory)
{
    const json_t *list = at(fixture->reference, "weights"), *entry;
    struct safetensors_plan *plan = calloc(json_array_size(list), sizeof *plan);
    struct safetensors_writer writer;
    struct error err = {""};
    uint64_t largest = 0;
    char path[600];
    float *weights;
    size_t i;
    int fd;

    snprintf(path, sizeof path, "%s/config.json", directory);
    copy_file(fixture->config, path);
    json_array_foreach(list, i, entry)
    {
        const json_t *shape = at(entry, "shape");
        plan[i].name = text_at(entry, "tensor");
        plan[i].n_dims = (uint32_t)json_array_size(shape);
        for (uint32_t d = 0; d < plan[i].n_dims; d++)
            plan[i].shape[d] = (uint64_t)json_integer_value(json_array_get(shape, d));
        largest = count_at(entry, "n") > largest ? count_at(entry, "n") : largest;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    weights = malloc(largest * sizeof *weights);
    ck_assert(fd >= 0 && weights != NULL);
    ck_assert_msg(safetensors_begin(&writer, fd, plan, json_array_size(list), &err) == 0, "%s", err.text);
    json_array_foreach(list, i, entry)
    {
        draw(weights, fixture, entry);
        ck_assert_msg(safetensors_append(&writer, weights, count_at(entry, "n") * sizeof *weights, &err) == 0, "%s",
                      err.text);
    }
    ck_assert_msg(safetensors_end(&writer, &err) == 0, "%s", err.text);
    close(fd);
    free(weights);
    free(plan);
}

struct fixture_set fixture_gradient(const struct fixture *fixture)
{
    struct fixture_set set = {.fixture = fixture, .json = at(fixture->reference, "gradient")};

    snprintf(set.label, sizeof set.label, "%s:gradient", fixture->name);
    return set;
}

struct fixture_set fixture_run(const struct fixture *fixture, const char *optimizer, uint32_t n_parts)
{
    struct fixture_set set = {.fixture = fixture};
    /* With one part AdamA is AdamW, and AdamW is one for any number of parts. */
    const uint32_t parts = strcmp(optimizer, "adamw") == 0 ? 1 : n_parts;
    const char *kind = parts == 1 ? "adamw" : "adama";
    const json_t *run;
    size_t i;

    json_array_foreach(at(fixture->reference, "training"), i, run)
    {
        if (strcmp(text_at(run, "optimizer"), kind) == 0 && count_at(run, "parts") == parts)
            set.json = run;
    }
    ck_assert_msg(set.json != NULL, "fixture %s: no run by %s in %u parts", fixture->name, kind, parts);
    snprintf(set.label, sizeof set.label, "%s:%s%u", fixture->name, kind, parts);
    return set;
}

double fixture_loss(const struct fixture_set *set, uint32_t step)
{
    const json_t *losses = json_object_get(set->json, "losses");

    if (!losses)
        return number_at(set->json, "loss");
    ck_assert_uint_lt(step, json_array_size(losses));
    return json_number_value(json_array_get(losses, step));
}

/* A stored piece beside ours. */
struct pair {
    char text[160];    /* names its sample and sketch */
    const float *ours; /* (n) */
    uint64_t n, n_sample;
    const double *sample;   /* (n_sample) */
    const json_t *left_out; /* of the sample, by its places; NULL for none: then there is a sketch of large pieces */
    const double *sketch;   /* (N_BUCKETS), or NULL where the sample is everything */
};

static double sample_distance(const struct pair *pair)
{
    const uint64_t key = keyf("%s:sample", pair->text);
    size_t n_left_out = 0;
    double sum = 0;

    for (uint64_t i = 0; i < pair->n_sample; i++) {
        double d = pair->ours[pair->n_sample < pair->n ? word_of(key, i) % pair->n : i] - pair->sample[i];
        const json_t *next = json_array_get(pair->left_out, n_left_out);
        if (next && (uint64_t)json_integer_value(next) == i)
            n_left_out++;
        else
            sum += d * d;
    }
    return sqrt(sum);
}

/* The sketch of ours less the stored one is that of the difference, since a sketch is linear. */
static double sketch_distance(const struct pair *pair)
{
    const uint64_t key = keyf("%s:sketch", pair->text);
    double sketch[N_BUCKETS] = {0}, square = 0;

    for (uint64_t i = 0; i < pair->n; i++) {
        const uint64_t z = word_of(key, i);
        sketch[z % N_BUCKETS] += z & N_BUCKETS ? -(double)pair->ours[i] : (double)pair->ours[i];
    }
    for (unsigned j = 0; j < N_BUCKETS; j++)
        square += (sketch[j] - pair->sketch[j]) * (sketch[j] - pair->sketch[j]);
    return sqrt(square);
}

static struct pair pair_of(const struct fixture_set *set, const json_t *piece, const float *tensor)
{
    const struct fixture *fixture = set->fixture;
    const char *part = text_at(piece, "piece");
    struct pair pair = {.ours = tensor + count_at(piece, "first"),
                        .n = count_at(piece, "n"),
                        .n_sample = count_at(piece, "n_sample")};

    snprintf(pair.text, sizeof pair.text, "%s:%s%s%s", set->label, text_at(piece, "tensor"), *part ? "." : "", part);
    ck_assert_uint_le(count_at(piece, "sample") + pair.n_sample, fixture->n_values);
    pair.sample = fixture->values + count_at(piece, "sample");
    pair.left_out = json_object_get(piece, "left_out");
    if (pair.n_sample < pair.n && !pair.left_out) {
        ck_assert_uint_le(count_at(piece, "sketch") + N_BUCKETS, fixture->n_values);
        pair.sketch = fixture->values + count_at(piece, "sketch");
    }
    return pair;
}

/* The largest of PyTorch's own distances, of fp32 or what the set names; where the rows' sum is stored, that one. */
static double yardstick(const struct fixture_set *set, const json_t *piece, const char *which)
{
    const char *type = json_string_value(json_object_get(set->json, "yardstick"));
    const json_t *sum_of_rows = json_object_get(piece, "fp32_sum_of_rows");
    char key[64];

    snprintf(key, sizeof key, "%s_%s", type ? type : "fp32", which);
    return sum_of_rows ? json_number_value(sum_of_rows) : largest_at(piece, key);
}

size_t fixture_n_pieces(const struct fixture_set *set)
{
    return json_array_size(at(set->json, "pieces"));
}

struct fixture_piece fixture_measure(const struct fixture_set *set, size_t piece, fixture_find *find, void *context)
{
    const json_t *json = json_array_get(at(set->json, "pieces"), piece);
    const struct pair pair = pair_of(set, json, find(context, text_at(json, "tensor"), count_at(json, "tensor_n")));
    struct fixture_piece out = {.is_key = strcmp(text_at(json, "piece"), "k") == 0,
                                .estimated = pair.sketch != NULL,
                                .norm = number_at(json, "norm"),
                                .single = yardstick(set, json, "distances"),
                                .moved = json_number_value(json_object_get(json, "moved"))};

    memcpy(out.text, pair.text, sizeof out.text);
    if (out.estimated) {
        out.distance = sketch_distance(&pair);
        out.sample = sample_distance(&pair);
        out.single_sample = yardstick(set, json, "sample_distances");
    } else {
        out.distance = sample_distance(&pair);
    }
    return out;
}

static bool is_within(const struct fixture_piece *piece, const struct fixture_limits *limits)
{
    if (piece->is_key)
        return piece->distance <= limits->keys;
    if (limits->relative > 0 && !(piece->distance <= limits->relative * piece->norm))
        return false;
    return piece->distance <= limits->singles * piece->single &&
           piece->sample <= limits->singles * piece->single_sample;
}

unsigned fixture_compare(const struct fixture_set *set, const struct fixture_limits *limits, fixture_find *find,
                         void *context)
{
    const bool verbose = getenv("EPS_FIXTURE_VERBOSE") != NULL;
    unsigned n_beyond = 0;

    for (size_t i = 0; i < fixture_n_pieces(set); i++) {
        const struct fixture_piece piece = fixture_measure(set, i, find, context);
        const bool within = is_within(&piece, limits);
        if (verbose || (!within && n_beyond < 5))
            fprintf(stderr, "%s %s: %.2e from float64: %.1e of its norm, %.2f of PyTorch's own; sample %.2f\n",
                    within ? "within" : "BEYOND", piece.text, piece.distance, piece.distance / piece.norm,
                    piece.distance / piece.single, piece.estimated ? piece.sample / piece.single_sample : 0.0);
        n_beyond += !within;
    }
    return n_beyond;
}
