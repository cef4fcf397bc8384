/* Files beside the weights as strings of JSON. */
#include "tests/kit/test.h"

#include "proto/model/side_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The test vectors of RFC 4648, section 10; and by hand: 62, 63, 63, 63. */
static const struct {
    const char *bytes, *text;
} vectors[] = {{"", ""},
               {"f", "Zg=="},
               {"fo", "Zm8="},
               {"foo", "Zm9v"},
               {"foob", "Zm9vYg=="},
               {"fooba", "Zm9vYmE="},
               {"foobar", "Zm9vYmFy"},
               {"\xFB\xFF\xFF", "+///"}};

/* The string is this text, and stands for these bytes. */
static void check(const char *name, const char *bytes, size_t n, const char *text)
{
    json_t *string = side_file_string(name, bytes, n);
    const char *back;
    char *made;
    size_t size;

    ck_assert_pstr_eq(json_string_value(string), text);
    ck_assert_int_eq(side_file_size(&size, name, string), 0);
    ck_assert_uint_eq(size, n);
    ck_assert_int_eq(side_file_bytes(&back, &size, &made, name, string), 0);
    ck_assert_uint_eq(size, n);
    ck_assert_mem_eq(back, bytes, n);
    ck_assert(back == (made ? made : json_string_value(string)));
    free(made);
    json_decref(string);
}

TEST(a_text_is_its_own_string_and_tokenizer_model_is_base64)
{
    check("merges.txt", "a b\n", 4, "a b\n");
    for (int i = 0; i < COUNT(vectors); i++)
        check("tokenizer.model", vectors[i].bytes, strlen(vectors[i].bytes), vectors[i].text);
    check("tokenizer.model", "\0\0", 2, "AAA=");
}

TEST(every_byte_comes_back)
{
    static const char name[] = "tokenizer.model";
    char bytes[258];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 167);
    for (size_t n = sizeof bytes - 2; n <= sizeof bytes; n++) {
        json_t *string = side_file_string(name, bytes, n);
        check(name, bytes, n, json_string_value(string));
        json_decref(string);
    }
}

TEST(what_is_no_text_and_what_is_no_base64_is_refused)
{
    static const char *const wrongs[] = {"A",    "AA",   "AAA",   "AAAAA", "====", "A===",     "AAA=AAAA",      "AA=A",
                                         "AA-_", "AA A", "AAA\n", "AB==",  "AAB=", "AAAA====", "AAAA\xC3\xA9=="};
    size_t n;

    ck_assert_ptr_null(side_file_string("merges.txt", "a\0b", 3));
    ck_assert_ptr_null(side_file_string("merges.txt", "\xFF", 1));
    ck_assert_int_eq(side_file_size(&n, "merges.txt", json_true()), -EINVAL);
    ck_assert_int_eq(side_file_size(&n, "merges.txt", NULL), -EINVAL);
    for (int i = 0; i < COUNT(wrongs); i++) {
        json_t *string = json_string(wrongs[i]);
        ck_assert_ptr_nonnull(string);
        ck_assert_msg(side_file_size(&n, "tokenizer.model", string) == -EINVAL, "%s", wrongs[i]);
        json_decref(string);
    }
}
