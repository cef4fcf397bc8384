/* Directories made by transformers load, and give its logits. */
#include "tests/kit/inprocess.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(single)

/* Made by tests/oracle/logits.py: one file, several, bfloat16, and without "transformer." in the names. */
static const char *const directories[] = {"tied", "untied", "bf16", "bare"};
enum { N_DIRECTORIES = sizeof directories / sizeof *directories };

struct fixture_tokens {
    char directory[512];
    uint32_t rows, seq, vocabulary;
    uint32_t *ids;  /* (rows, seq) */
    double *logits; /* (rows, seq, vocabulary), from float64 */
    double largest; /* of their magnitudes */
};

static void path_of(char path[600], const char *directory, const char *file)
{
    ck_assert_int_lt(snprintf(path, 600, "%s/%s", directory, file), 600);
}

static size_t read_file(void *out, size_t most, const char *directory, const char *name)
{
    char path[600];
    FILE *file;
    size_t n;

    path_of(path, directory, name);
    file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s: cannot be opened", path);
    n = fread(out, 1, most, file);
    fclose(file);
    return n;
}

static void tokens_open(struct fixture_tokens *t, const char *name)
{
    char path[600];
    json_t *json, *rows;
    size_t n;

    *t = (struct fixture_tokens){0};
    snprintf(t->directory, sizeof t->directory, "%s/fixtures/%s", TESTS_DIR, name);
    path_of(path, t->directory, "tokens.json");
    json = json_load_file(path, 0, NULL);
    ck_assert_msg(json != NULL, "%s: not there, or not JSON", path);
    t->rows = (uint32_t)json_integer_value(json_object_get(json, "rows"));
    t->seq = (uint32_t)json_integer_value(json_object_get(json, "seq"));
    t->vocabulary = (uint32_t)json_integer_value(json_object_get(json, "vocabulary"));
    rows = json_object_get(json, "ids");
    n = (size_t)t->rows * t->seq;
    t->ids = malloc(n * sizeof *t->ids);
    t->logits = malloc(n * t->vocabulary * sizeof *t->logits);
    for (size_t i = 0; i < n; i++)
        t->ids[i] = (uint32_t)json_integer_value(json_array_get(json_array_get(rows, i / t->seq), i % t->seq));
    json_decref(json);
    n *= t->vocabulary;
    ck_assert_uint_eq(read_file(t->logits, n * sizeof *t->logits, t->directory, "logits.f64"), n * sizeof *t->logits);
    for (size_t i = 0; i < n; i++)
        t->largest = fmax(t->largest, fabs(t->logits[i]));
}

static void tokens_close(struct fixture_tokens *t)
{
    free(t->ids);
    free(t->logits);
}

static struct inprocess *load(const struct fixture_tokens *t)
{
    struct inprocess_options how = {
        .batch = t->rows, .seq = t->seq, .n_parts = 1, .microbatch = 1, .evaluate_only = true};
    struct inprocess *ip;
    struct error err = {""};
    char text[16384], pattern[600];
    glob_t found;
    int fds[8], rc;

    size_t n = read_file(text, sizeof text, t->directory, "config.json");
    ck_assert_msg(model_config_parse(&how.config, text, n, &err) == 0, "%s", err.text);
    ck_assert_msg(inprocess_open(&ip, &how, &err) == 0, "%s", err.text);

    path_of(pattern, t->directory, "*.safetensors");
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    ck_assert_uint_le(found.gl_pathc, 8);
    for (size_t i = 0; i < found.gl_pathc; i++)
        fds[i] = open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC);
    rc = store_load(&ip->store, fds, (unsigned)found.gl_pathc, &err);
    ck_assert_msg(rc == 0, "%s: %s", t->directory, err.text);
    for (size_t i = 0; i < found.gl_pathc; i++)
        close(fds[i]);
    globfree(&found);
    return ip;
}

/* log p of each label at one position, by asking for each label in turn; all other positions do not count. */
static double worst_position(struct inprocess *ip, const struct fixture_tokens *t, uint32_t *labels, uint32_t at)
{
    const double *logits = t->logits + (size_t)at * t->vocabulary;
    double sum = 0, worst = 0;
    struct error err = {""};

    for (uint32_t k = 0; k < t->vocabulary; k++)
        sum += exp(logits[k]);
    for (uint32_t k = 0; k < t->vocabulary; k++) {
        double loss;
        labels[at] = k;
        ck_assert_msg(inprocess_evaluate(ip, t->ids, labels, at / t->seq, 1, &loss, &err) == 0, "%s", err.text);
        worst = fmax(worst, fabs(logits[k] - log(sum) + loss));
    }
    labels[at] = UINT32_MAX;
    return worst;
}

/* The engine has no way to give logits, so what is compared is log p of every label at every position: the same up to
 * a constant. */
TEST_EACH(logits_are_those_of_transformers, N_DIRECTORIES)
{
    struct fixture_tokens t;
    struct inprocess *ip;
    uint32_t *labels;

    tokens_open(&t, directories[_i]);
    ip = load(&t);
    labels = malloc((size_t)t.rows * t.seq * sizeof *labels);
    memset(labels, 0xff, (size_t)t.rows * t.seq * sizeof *labels);
    for (uint32_t at = 0; at < t.rows * t.seq; at++)
        ck_assert_double_le(worst_position(ip, &t, labels, at), 1e-5 * t.largest);
    inprocess_close(ip);
    free(labels);
    tokens_close(&t);
}
