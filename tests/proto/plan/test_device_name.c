#include "proto/plan/device_name.h"
#include "tests/kit/run.h"

#include <check.h>
#include <errno.h>
#include <string.h>

static const struct good {
    const char *text;
    enum device_kind kind;
    unsigned index;
    bool indexed;
} good[] = {{"auto", DEVICE_AUTO, 0, false},    {"cpu", DEVICE_CPU, 0, false},
            {"cuda", DEVICE_CUDA, 0, false},    {"cuda:0", DEVICE_CUDA, 0, true},
            {"cuda:17", DEVICE_CUDA, 17, true}, {"cuda:9999", DEVICE_CUDA, 9999, true},
            {"auto:1", DEVICE_AUTO, 1, true}};

START_TEST(a_name_is_parsed_and_printed_again)
{
    char text[DEVICE_NAME_BYTES];
    struct device_name name;

    ck_assert_int_eq(device_name_parse(&name, "--device", good[_i].text, NULL), 0);
    ck_assert_int_eq(name.kind, good[_i].kind);
    ck_assert_uint_eq(name.index, good[_i].index);
    ck_assert_int_eq(name.indexed, good[_i].indexed);
    ck_assert_str_eq(device_name_print(text, &name), good[_i].text);
}
END_TEST

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
                                  "cuda:10000",
                                  "cuda:99999999999999999999"};

START_TEST(what_is_no_name_is_refused_with_the_names_there_are)
{
    struct device_name name;
    struct error err = {""};

    ck_assert_int_eq(device_name_parse(&name, "--device", bad[_i], &err), -EDOM);
    ck_assert_msg(strncmp(err.text, "--device ", 9) == 0 && strstr(err.text, bad[_i]) && strstr(err.text, "cuda:N"),
                  "%s", err.text);
}
END_TEST

START_TEST(a_device_is_of_its_kind)
{
    ck_assert(device_name_is("cuda:1", "cuda"));
    ck_assert(device_name_is("cpu", "cpu"));
    ck_assert(!device_name_is("cuda:1", "cpu"));
    ck_assert(!device_name_is("cudax", "cuda"));
    ck_assert(!device_name_is("cu", "cuda"));
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("device_name");

    tcase_add_loop_test(tests, a_name_is_parsed_and_printed_again, 0, sizeof good / sizeof *good);
    tcase_add_loop_test(tests, what_is_no_name_is_refused_with_the_names_there_are, 0, sizeof bad / sizeof *bad);
    tcase_add_test(tests, a_device_is_of_its_kind);
    return run_tests(tests);
}
