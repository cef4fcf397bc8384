/* NumPy headers, as numpy.lib.format.write_array_header_1_0 writes them, and what is not one. */
#include "tests/kit/test.h"

#include "client/data/npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A header of this version around a dictionary; returns its length. */
static size_t header(uint8_t *out, uint8_t version, const char *dictionary)
{
    const size_t n = strlen(dictionary), start = version == 1 ? 10 : 12;

    memcpy(out, "\x93NUMPY", 6);
    memset(out + 6, 0, 6);
    out[6] = version;
    out[8] = (uint8_t)n, out[9] = (uint8_t)(n >> 8);
    memcpy(out + start, dictionary, n);
    return start + n;
}

/* The beginning of numpy.save("x.npy", numpy.arange(5, dtype="<u2")), NumPy 1.24. */
static const char from_numpy[] = "\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }"
                                 "                                                            \n";

TEST(headers_of_every_type_version_and_order_of_keys_are_read)
{
    static const struct {
        const char *dictionary;
        enum client_integer type;
    } headers[] = {
        {"{'descr': '<u4', 'fortran_order': False, 'shape': (7,), }", CLIENT_U32},
        {"{'shape':(7,),'descr':'<i4','fortran_order':True}", CLIENT_I32},
        {"{ 'fortran_order' : False , 'descr' : '<i8' , 'shape' : ( 7 , ) }  \n", CLIENT_I64},
    };
    uint8_t bytes[256];
    struct client_npy npy;

    ck_assert_uint_eq(sizeof from_numpy - 1, 128);
    ck_assert_int_eq(client_npy_parse(&npy, (const uint8_t *)from_numpy, 128, NULL), 0);
    ck_assert(npy.type == CLIENT_U16 && npy.n == 5 && npy.offset == 128);
    for (uint8_t version = 1; version <= 3; version++) {
        for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
            size_t n = header(bytes, version, headers[i].dictionary);
            ck_assert_int_eq(client_npy_parse(&npy, bytes, n, NULL), 0);
            ck_assert(npy.type == headers[i].type && npy.n == 7 && npy.offset == n);
        }
    }
}

TEST(what_is_not_one_dimension_of_integers_is_refused_with_a_sentence)
{
    static const struct {
        const char *dictionary, *says;
    } headers[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }", "type"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }", "too narrow"},
        {"{'descr': '>u2', 'fortran_order': False, 'shape': (7,), }", "type"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (7, 2), }", "dimension"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (), }", "dimension"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), }", "dimension"},
        {"{'descr': '<u2', 'fortran_order': 0, 'shape': (7,), }", "fortran_order"},
        {"{'descr': '<u2', 'descr': '<u2', 'shape': (7,), }", "once"},
        {"{'descr': '<u2', 'shape': (7,), }", "once"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (7,), 'more': 1}", "more than"},
        {"{'descr': '<u2' 'fortran_order': False, 'shape': (7,), }", "comma"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (7,), } x", "follows"},
        {"", "no dictionary"},
    };
    uint8_t bytes[256];
    struct client_npy npy;

    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        struct error err = {0};
        size_t n = header(bytes, 1, headers[i].dictionary);
        ck_assert_int_eq(client_npy_parse(&npy, bytes, n, &err), -EINVAL);
        ck_assert_msg(strstr(err.text, headers[i].says), "%s: %s", headers[i].dictionary, err.text);
    }
}

/* As numpy.lib.format writes them of zeros((2, 32, 32, 3), "u1"), of its transpose, and of array(5, "<i8"). */
TEST(an_array_has_up_to_four_dimensions_in_either_order)
{
    static const struct {
        const char *dictionary;
        struct client_npy_array array;
    } headers[] = {
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 32, 32, 3), }",
         {CLIENT_U8, {2, 32, 32, 3}, 4, false, 0}},
        {"{'descr': '|u1', 'fortran_order': True, 'shape': (3, 32, 32, 2), }", {CLIENT_U8, {3, 32, 32, 2}, 4, true, 0}},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': (), }", {CLIENT_I64, {0}, 0, false, 0}},
    };
    static const char *const refused[] = {"(1, 2, 3, 4, 5)", "(7)", "(1 2)", "(,)", "(1,,2)", "(-1,)", "7"};
    struct client_npy_array array;
    uint8_t bytes[256];

    for (int i = 0; i < COUNT(headers); i++) {
        const size_t n = header(bytes, 1, headers[i].dictionary);
        const struct client_npy_array *wanted = &headers[i].array;
        ck_assert_int_eq(client_npy_parse_array(&array, bytes, n, NULL), 0);
        ck_assert(array.type == wanted->type && array.fortran == wanted->fortran && array.offset == n);
        ck_assert_uint_eq(array.n_sizes, wanted->n_sizes);
        ck_assert_mem_eq(array.sizes, wanted->sizes, wanted->n_sizes * sizeof *array.sizes);
    }
    for (int i = 0; i < COUNT(refused); i++) {
        char dictionary[200];
        struct error err = {""};
        snprintf(dictionary, sizeof dictionary, "{'descr': '|u1', 'fortran_order': False, 'shape': %s, }", refused[i]);
        ck_assert_int_eq(client_npy_parse_array(&array, bytes, header(bytes, 1, dictionary), &err), -EINVAL);
        ck_assert_holds(err.text, "dimension");
    }
}

/* Each in a block of its own size, so that the sanitizers see a read past it. */
TEST(every_truncation_is_refused_and_every_changed_byte_is_survived)
{
    struct client_npy npy;

    for (size_t n = 0; n < 128; n++) {
        uint8_t *copy = malloc(n + 1);
        memcpy(copy, from_numpy, n);
        ck_assert_int_eq(client_npy_parse(&npy, copy, n, NULL), -EINVAL);
        free(copy);
    }
    uint8_t *copy = malloc(128);
    for (size_t at = 0; at < 128; at++) {
        for (int byte = 0; byte < 256; byte++) {
            memcpy(copy, from_numpy, 128);
            copy[at] = (uint8_t)byte;
            if (client_npy_parse(&npy, copy, 128, NULL) == 0)
                ck_assert_uint_le(npy.offset, 128);
        }
    }
    free(copy);
}
