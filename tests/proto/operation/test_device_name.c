#include "proto/operation/device_name.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>

static const struct good {
    const char *text;
    enum device_kind kind;
    unsigned index;
    bool indexed;
    const char *id;
} good[] = {{"auto", DEVICE_AUTO, 0, false, ""},
            {"cpu", DEVICE_CPU, 0, false, ""},
            {"cuda", DEVICE_CUDA, 0, false, ""},
            {"cuda:0", DEVICE_CUDA, 0, true, ""},
            {"cuda:17", DEVICE_CUDA, 17, true, ""},
            {"cuda:9999", DEVICE_CUDA, 9999, true, ""},
            {"auto:1", DEVICE_AUTO, 1, true, ""},
            {"cuda:GPU-8", DEVICE_CUDA, 0, true, "GPU-8"},
            {"cuda:GPU-8f2c0001-0000-4000-8000-0123456789ab", DEVICE_CUDA, 0, true,
             "GPU-8f2c0001-0000-4000-8000-0123456789ab"},
            {"cuda:0000:3b:00.0", DEVICE_CUDA, 0, true, "0000:3b:00.0"},
            {"cuda:10a4e:ff:1f.7", DEVICE_CUDA, 0, true, "10a4e:ff:1f.7"}};

TEST_EACH(a_name_is_parsed_and_printed_again, COUNT(good))
{
    char text[DEVICE_NAME_BYTES];
    struct device_name name;

    ck_assert_int_eq(device_name_parse(&name, "--device", good[_i].text, NULL), 0);
    ck_assert_int_eq(name.kind, good[_i].kind);
    ck_assert_uint_eq(name.index, good[_i].index);
    ck_assert_int_eq(name.indexed, good[_i].indexed);
    ck_assert_str_eq(name.id, good[_i].id);
    ck_assert_str_eq(device_name_print(text, &name), good[_i].text);
}

/* As nvidia-smi prints them (-L; -q), and with Linux's shorter form. */
TEST(an_id_in_another_form_is_the_same)
{
    static const char *const forms[][2] = {
        {"cuda:GPU-8F2C", "cuda:GPU-8f2c"},
        {"cuda:00000000:3B:00.0", "cuda:0000:3b:00.0"},
        {"cuda:3b:0.0", "cuda:0000:3b:00.0"},
    };
    char text[DEVICE_NAME_BYTES];
    struct device_name name;

    for (size_t i = 0; i < COUNT(forms); i++) {
        ck_assert_int_eq(device_name_parse(&name, "--device", forms[i][0], NULL), 0);
        ck_assert_str_eq(device_name_print(text, &name), forms[i][1]);
    }
}

static const char *const bad[] = {"",
                                  "gpu",
                                  "cud",
                                  "cudax",
                                  "CUDA",
                                  "cuda:",
                                  "cuda:x",
                                  "cuda:-1",
                                  "cuda:+1",
                                  "cuda: 1",
                                  "cuda:1 ",
                                  "cuda:01",
                                  "cpu:0",
                                  ":1",
                                  "cuda:1:2",
                                  "cuda:1.0",
                                  "cuda:GPU-",
                                  "cuda:gpu-8f2c",
                                  "cuda:GPU-8f2g",
                                  "cuda:GPU-8f2c0001-0000-4000-8000-0123456789abc",
                                  "auto:GPU-8f2c",
                                  "auto:3b:00.0",
                                  "cpu:3b:00.0",
                                  "cuda:3b:00",
                                  "cuda:3b:00.8",
                                  "cuda:3b:20.0",
                                  "cuda:3bc:00.0",
                                  "cuda::3b:00.0",
                                  "cuda:0:0000:3b:00.0",
                                  "cuda:123456789:3b:00.0",
                                  "cuda:10000",
                                  "cuda:99999999999999999999"};

TEST_EACH(what_is_no_name_is_refused_with_the_names_there_are, COUNT(bad))
{
    struct device_name name;
    struct error err = {""};

    ck_assert_int_eq(device_name_parse(&name, "--device", bad[_i], &err), -EDOM);
    ck_assert_holds(err.text, "--device ", bad[_i], "cuda:N");
}

TEST(a_device_is_of_its_kind)
{
    ck_assert(device_name_is("cuda:1", "cuda"));
    ck_assert(device_name_is("cpu", "cpu"));
    ck_assert(!device_name_is("cuda:1", "cpu"));
    ck_assert(!device_name_is("cudax", "cuda"));
    ck_assert(!device_name_is("cu", "cuda"));
}
