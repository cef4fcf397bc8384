/* A config.json that is made a classifier's, and the labels that a classifier has. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/model/classifier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

static const char bare[] = "{\"architectures\": [\"BertModel\"], \"model_type\": \"bert\", \"vocab_size\": 30, "
                           "\"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
                           "\"intermediate_size\": 16, \"hidden_dropout_prob\": 0.1, \"num_labels\": 9}";
static const char own[] = "{\"architectures\": [\"RobertaForSequenceClassification\"], \"model_type\": \"roberta\", "
                          "\"vocab_size\": 30, \"hidden_size\": 8, \"num_hidden_layers\": 1, "
                          "\"num_attention_heads\": 2, \"intermediate_size\": 16, "
                          "\"id2label\": {\"1\": \"yes\", \"0\": \"no\", \"2\": \"maybe\"}}";

/* What the daemon will read. */
static json_t *config_of(const struct client_model *model)
{
    char *text = client_model_print_config(model, SAFETENSORS_F32, NULL);
    json_t *config = json_loads(text, 0, NULL);

    free(text);
    return config;
}

static const char *text_at(const json_t *config, const char *object, const char *key)
{
    return json_string_value(json_object_get(json_object_get(config, object), key));
}

TEST(an_encoder_becomes_a_classifier_with_the_data_s_labels)
{
    struct client_labels labels;
    struct client_model model;
    struct error err = {""};
    uint32_t at, to[3];

    ck_assert_msg(client_classifier_open(&model,
                                         &(struct client_model_name){.path = processes_put_text("bare.json", bare)},
                                         EPS_CLASSIFY, &err) == 0,
                  "%s", err.text);
    ck_assert_int_eq(client_classifier_task(&model), EPS_CLASSIFY);
    ck_assert_int_eq(client_classifier_labels(&labels, &model, NULL), 0);
    ck_assert_uint_eq(labels.n, 0);
    ck_assert_int_eq(client_labels_find(&at, &labels, "pos", 3, NULL), 0);
    ck_assert_int_eq(client_labels_find(&at, &labels, "neg", 3, NULL), 0);
    ck_assert_int_eq(client_labels_find(&at, &labels, "mid", 3, NULL), 0);
    ck_assert_int_eq(client_labels_sort(&labels, to, NULL), 0);
    ck_assert_int_eq(client_classifier_label(&model, &labels, NULL), 0);
    ck_assert_uint_eq(model.config.n_labels, 3);
    ck_assert(!model.config.regression);

    json_t *config = config_of(&model);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(config, "architectures"), 0)),
                     "BertForSequenceClassification");
    ck_assert_str_eq(text_at(config, "id2label", "0"), "mid");
    ck_assert_str_eq(text_at(config, "id2label", "2"), "pos");
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(config, "label2id"), "neg")), 1);
    ck_assert_str_eq(json_string_value(json_object_get(config, "problem_type")), "single_label_classification");
    ck_assert_ptr_null(json_object_get(config, "num_labels"));
    ck_assert_int_eq(json_integer_value(json_object_get(config, "vocab_size")), 30);
    json_decref(config);
    client_labels_free(&labels);
    client_model_close(&model);
}

TEST(a_regression_has_one_label)
{
    struct client_labels labels;
    struct client_model model;

    ck_assert_int_eq(client_classifier_open(&model,
                                            &(struct client_model_name){.path = processes_put_text("bare.json", bare)},
                                            EPS_REGRESS, NULL),
                     0);
    ck_assert_int_eq(client_classifier_labels(&labels, &model, NULL), 0);
    ck_assert(labels.numbers);
    ck_assert_int_eq(client_classifier_label(&model, &labels, NULL), 0);
    ck_assert_uint_eq(model.config.n_labels, 1);
    ck_assert_int_eq(client_classifier_task(&model), EPS_REGRESS);
    json_t *config = config_of(&model);
    ck_assert_str_eq(json_string_value(json_object_get(config, "problem_type")), "regression");
    json_decref(config);
    client_labels_free(&labels);
    client_model_close(&model);
}

TEST(a_classifier_keeps_its_own_labels)
{
    struct client_labels labels;
    struct client_model model;
    const char *path = processes_put_text("own.json", own);

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(client_classifier_open(&model, &(struct client_model_name){.path = path},
                                                i ? EPS_CLASSIFY : EPS_TASK_DEFAULT, NULL),
                         0);
        ck_assert_int_eq(client_classifier_labels(&labels, &model, NULL), 0);
        ck_assert_uint_eq(labels.n, 3);
        ck_assert_str_eq(labels.names[0], "no");
        ck_assert_str_eq(labels.names[2], "maybe");
        ck_assert_int_eq(client_classifier_label(&model, &labels, NULL), 0);
        json_t *config = config_of(&model);
        ck_assert_str_eq(text_at(config, "id2label", "1"), "yes");
        ck_assert_ptr_null(json_object_get(config, "problem_type"));
        json_decref(config);
        client_labels_free(&labels);
        client_model_close(&model);
    }
}

TEST(what_is_no_classifier_for_the_task_is_refused)
{
    const char *gpt2 = processes_config("gpt2.json", 1, 2, 16, 16);
    struct client_model model;
    struct error err = {""};

    ck_assert_int_eq(client_classifier_open(&model, &(struct client_model_name){.path = gpt2}, EPS_CLASSIFY, &err),
                     -EDOM);
    ck_assert_holds(err.text, "--task classify is for", "bert, ", "modernbert, ", "this is a gpt2");
    ck_assert_int_eq(client_classifier_open(&model,
                                            &(struct client_model_name){.path = processes_put_text("own.json", own)},
                                            EPS_REGRESS, &err),
                     -EINVAL);
    ck_assert_holds(err.text, "own.json", "a classifier already", "classes");
}

/* A name that is missing, and one that is there twice. */
TEST(id2label_must_name_each_label_once)
{
    static const char *const wrong[][2] = {{"{\"id2label\": {\"0\": \"no\", \"2\": \"yes\"}}", "no name for 1"},
                                           {"{\"id2label\": {\"0\": \"no\", \"1\": \"no\"}}", "'no' twice"}};
    struct client_labels labels;
    struct error err = {""};

    for (int i = 0; i < COUNT(wrong); i++) {
        ck_assert_int_eq(client_labels_init(&labels, false, NULL), 0);
        ck_assert_int_eq(client_labels_take(&labels, wrong[i][0], strlen(wrong[i][0]), 2, &err), -EINVAL);
        ck_assert_holds(err.text, wrong[i][1]);
        client_labels_free(&labels);
    }
}
