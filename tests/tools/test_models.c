/* eps models: what it says of a family is so. What it is compared with are the fixtures that PyTorch made, other
 * commands of the program, and, of attention, what a device told (tests/proto/operation/test_attention_path.c). */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <string.h>

SUITE_TIMEOUT(120)

static json_t *families;

static void setup(void)
{
    processes_setup();
    families = expect_json("eps models --json", 0);
}

static void teardown(void)
{
    json_decref(families);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, teardown)

static const char *name_of(const json_t *family)
{
    return json_string_value(json_object_get(family, "model_type"));
}

/* The config of a fixture of the family that PyTorch's numbers are beside; its path is config.json. */
static json_t *fixture_config(const json_t *family)
{
    expect(print("cd " TESTS_DIR "/fixtures; c=%s/config.json; [ -e $c ] || c=$(grep -lE '\"model_type\": \"%s\"' "
                 "*/config.json | head -n 1); test -n \"$c\" && ls ${c%%/*}/*.f64 && cp $c $OLDPWD/config.json",
                 name_of(family), name_of(family)),
           0);
    json_t *config = json_load_file("config.json", 0, NULL);
    ck_assert_msg(config != NULL, "%s", name_of(family));
    json_object_del(config, "adapter"); /* of a fixture that has one */
    ck_assert_int_eq(json_dump_file(config, "config.json", 0), 0);
    return config;
}

#define PLAN "eps plan --device-mem 1GiB --batch 4 --device cpu "

/* Each family has numbers of PyTorch, and tests read all of these. The keys that must be off are refused by name;
 * without them the config is planned. */
TEST(what_is_listed_is_compared_with_pytorch_and_what_is_refused_is_refused)
{
    size_t i, k;
    json_t *family, *key;

    ck_assert_uint_ge(json_array_size(families), 43);
    json_array_foreach(families, i, family)
    {
        json_t *config = fixture_config(family);
        expect(print(PLAN "--model config.json %s", strstr(name_of(family), "resnet") ? "" : "--seq 8"), 0);
        json_array_foreach(json_object_get(family, "off"), k, key)
        {
            const char *name = json_string_value(key);
            const char *const of_all = print("%.*s", (int)strcspn(name, "*"), name);
            const char *const one = strchr(name, '*') ? print("%sx", of_all) : name;
            if (strchr(one, '.'))
                continue; /* within an object that other keys are in */
            json_object_set_new(config, one, json_true());
            ck_assert_int_eq(json_dump_file(config, "asks.json", 0), 0);
            json_object_del(config, one);
            expect_sentence(PLAN "--seq 8 --model asks.json", 1, print("%s is true: this is not supported", one));
        }
        json_decref(config);
    }
}

/* --lora takes each of the maps that a family has, and says so of none that it has not. */
TEST(adapters_may_be_beside_each_map_that_is_listed)
{
    size_t i, k;
    json_t *family, *map;

    json_array_foreach(families, i, family)
    {
        const bool has_images = strcmp(name_of(family), "wide_resnet") == 0 || strstr(name_of(family), "_resnet");
        json_decref(fixture_config(family));
        ck_assert_int_eq(json_array_size(json_object_get(family, "adapters")) == 0, has_images);
        if (has_images)
            continue;
        const char *all = "";
        json_array_foreach(json_object_get(family, "adapters"), k, map) all =
            print("%s%s%s", all, k ? "," : "", json_string_value(map));
        expect(print(PLAN "--seq 8 --model config.json --lora rank=2,targets=%s", all), 0);
        expect(print(PLAN "--seq 8 --model config.json --lora rank=2,targets=%s,x_proj", all), 2, "x_proj");
    }
}

/* Scores with a cap, ALiBi and windows on both sides have no kernels for tensor cores, in the calls that a device told
 * of; nets of images have no attention. */
static const struct {
    const char *name, *attention;
} paths[] = {{"bert", "tensor"},
             {"bloom", "plain"},
             {"gemma2", "plain"},
             {"gemma3_text", "tensor"},
             {"gpt2", "tensor"},
             {"llama", "tensor"},
             {"modernbert", "tensor, plain"},
             {"t5", "tensor"},
             {"wide_resnet", "none"}};

TEST_EACH(attention_takes_the_path_that_a_device_told_of, COUNT(paths))
{
    json_t *list = expect_json(print("eps models --json %s", paths[_i].name), 0);

    ck_assert_uint_eq(json_array_size(list), 1);
    ck_assert_str_eq(json_string_value(json_at(json_array_get(list, 0), "attention")), paths[_i].attention);
    json_decref(list);
    expect(print("eps models | grep -E '^%s +[A-Z][A-Za-z0-9]+ +%s +[a-z]'", paths[_i].name, paths[_i].attention), 0);
}

TEST(one_family_is_printed_whole)
{
    expect("eps models bert", 0,
           "bert\n  architecture  BertForMaskedLM\n  classifier    BertForSequenceClassification\n"
           "  learns from   masked text, labelled rows\n  devices       CPUs, CUDA GPUs\n"
           "  attention     tensor: on tensor cores\n  adapters      query, key, value, dense\n"
           "  must be off   add_cross_attention, cross_attention_hidden_size\n");
    expect("eps models glm4_moe", 0,
           "adapters      q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, gate\n");
    expect("eps models wide_resnet", 0, "wide_resnet (eps's own: transformers does not read it)\n",
           "adapters      none");
    expect(
        "test $(eps models | awk 'length > 120' | wc -l) = 0 && for f in $(eps models | awk 'NR > 1 {print $1}'); do "
        "eps models $f | awk -v f=$f 'NR == 1 && $1 != f || length > 120 {exit 1}' || exit 1; done",
        0);
}

TEST(a_family_that_is_not_there_is_refused_with_the_nearest_name)
{
    expect_sentence("eps models qwen3_next", 2,
                    "no family is called qwen3_next: the nearest name is qwen3_5_moe_text;");
    expect_sentence("eps models --json xyz", 2, "no family is called xyz: eps models lists");
}
