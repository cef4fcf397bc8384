/* Directories made by transformers load, and give its logits. */
#include "tests/kit/command.h"
#include "tests/kit/inprocess/inprocess.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "proto/model/wrapper.h"

#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(single)

struct tokens {
    const char *directory;
    uint32_t rows, seq, vocabulary;
    uint32_t *ids;  /* (rows, seq) */
    double *logits; /* (rows, seq, vocabulary), from float64 */
    double within;  /* of each log p */
    enum number_type precision;
};

static void tokens_open(struct tokens *t, const char *directory)
{
    const char *precision = "fp32";
    double largest = 0;
    json_t *rows, *json;

    *t = (struct tokens){.directory = directory, .within = NAN};
    json = json_load_file(print("%s/tokens.json", t->directory), 0, NULL);
    ck_assert_int_eq(json_unpack(json, "{s:i, s:i, s:i, s:o, s?s, s?f}", "rows", &t->rows, "seq", &t->seq, "vocabulary",
                                 &t->vocabulary, "ids", &rows, "precision", &precision, "within", &t->within),
                     0);
    t->precision = strcmp(precision, "bf16") == 0 ? NUMBER_BF16 : NUMBER_FP32;
    const size_t n = (size_t)t->rows * t->seq, n_logits = n * t->vocabulary;
    t->ids = malloc(n * sizeof *t->ids);
    t->logits = malloc(n_logits * sizeof *t->logits);
    for (size_t i = 0; i < n; i++)
        t->ids[i] = (uint32_t)json_integer_value(json_array_get(json_array_get(rows, i / t->seq), i % t->seq));
    json_decref(json);
    FILE *file = fopen(print("%s/logits.f64", t->directory), "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(t->logits, sizeof *t->logits, n_logits, file), n_logits);
    fclose(file);
    for (size_t i = 0; i < n_logits; i++)
        largest = fmax(largest, fabs(t->logits[i]));
    if (isnan(t->within))
        t->within = 1e-5 * largest;
}

static struct inprocess *load(const struct tokens *t)
{
    struct inprocess_options how = {.batch = t->rows,
                                    .seq = t->seq,
                                    .n_parts = 1,
                                    .microbatch = 1,
                                    .evaluate_only = true,
                                    .precision = t->precision};
    char *text = processes_read(print("%s/config.json", t->directory)), note[WRAPPER_NOTE_BYTES];
    char *inner = wrapper_text_config(note, text, strlen(text));
    struct inprocess *ip;
    struct error err = {""};
    glob_t found;
    struct file files[8];

    ck_assert_msg(model_config_parse(&how.config, inner ? inner : text, strlen(inner ? inner : text), &err) == 0, "%s",
                  err.text);
    free(text), free(inner);
    ck_assert_msg(inprocess_open(&ip, &how, &err) == 0, "%s", err.text);
    ck_assert_int_eq(glob(print("%s/*.safetensors", t->directory), 0, NULL, &found), 0);
    ck_assert_uint_le(found.gl_pathc, 8);
    for (size_t i = 0; i < found.gl_pathc; i++)
        files[i] = file_own(open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC));
    ck_assert_msg(store_fixture_load(&ip->store, files, (unsigned)found.gl_pathc, &err) == 0, "%s: %s", t->directory,
                  err.text);
    for (size_t i = 0; i < found.gl_pathc; i++)
        close(files[i].fd);
    globfree(&found);
    return ip;
}

/* log p of each label at one position, by asking for each label in turn; all other positions do not count. */
static double worst_position(struct inprocess *ip, const struct tokens *t, uint32_t *labels, uint32_t at)
{
    const double *logits = t->logits + (size_t)at * t->vocabulary;
    double sum = 0, worst = 0, loss;
    struct error err = {""};

    for (uint32_t k = 0; k < t->vocabulary; k++)
        sum += exp(logits[k]);
    for (uint32_t k = 0; k < t->vocabulary; k++) {
        labels[at] = k;
        ck_assert_msg(inprocess_evaluate(ip, t->ids, labels, at / t->seq, 1, &loss, &err) == 0, "%s", err.text);
        worst = fmax(worst, fabs(logits[k] - log(sum) + loss));
    }
    labels[at] = UINT32_MAX;
    return worst;
}

/* The engine has no way to give logits, so what is compared is log p of every label at every position: the same up to
 * a constant. */
static void check_logits(const char *directory)
{
    struct tokens t;
    double worst = 0;

    tokens_open(&t, directory);
    struct inprocess *ip = load(&t);
    const uint32_t n = t.rows * t.seq;
    uint32_t *labels = malloc(n * sizeof *labels);
    memset(labels, 0xff, n * sizeof *labels);
    for (uint32_t at = 0; at < n; at++) {
        worst = fmax(worst, worst_position(ip, &t, labels, at));
        ck_assert_msg(worst <= t.within, "%s: position %u", directory, at);
    }
    printf("logits %s: %.3e\n", directory, worst);
    inprocess_close(ip);
    free(labels), free(t.ids), free(t.logits);
}

/* All that tests/oracle/logits.py made; or, for tests/oracle/distribution.py, all that is in EPS_TEST_LOGITS. */
TEST(logits_are_those_of_transformers)
{
    const char *folder = getenv("EPS_TEST_LOGITS");
    glob_t found;

    ck_assert_int_eq(glob(print("%s/*/logits.f64", folder ? folder : TESTS_DIR "/fixtures"), 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        check_logits(dirname(found.gl_pathv[i]));
    globfree(&found);
}
