/* Cards that were not measured. By hand, from their data sheets: an RTX 4090 multiplies at 165.2 of an H100's 989.4
 * TFLOP/s. */
#include "proto/plan/time/card.h"
#include "tests/kit/test.h"

#include <string.h>

TEST(a_card_is_known_by_the_name_that_its_driver_has)
{
    ck_assert_str_eq(card_find("NVIDIA GeForce RTX 4090")->name, "rtx-4090");
    ck_assert_str_eq(card_find("NVIDIA GeForce RTX 5090")->name, "rtx-5090");
    ck_assert_str_eq(card_find("NVIDIA H100 80GB HBM3")->name, "h100");
    ck_assert_ptr_null(card_find("NVIDIA GeForce RTX 4080"));
    ck_assert_ptr_null(card_find("NVIDIA GeForce RTX 4090 Laptop GPU"));
    ck_assert_ptr_null(card_find(""));
}

TEST(a_card_is_assumed_to_do_what_its_data_sheet_says_in_an_h100s_proportion)
{
    const struct profile *h100 = profile_default("cuda");
    const struct profile p = card_profile_of("cuda:1", "NVIDIA GeForce RTX 4090");
    struct error err = {""};

    ck_assert_msg(profile_check(&p, &err) == 0, "%s", err.text);
    ck_assert_double_eq_tol(p.matmul_flops[NUMBER_BF16][3] / 660e12, 165.2 / 989.4,
                            1e-9); /* half of 330.4: fp32 sums */
    ck_assert_double_eq_tol(p.matmul_flops[NUMBER_FP32][2] / 50e12, 82.6 / 66.9, 1e-9);
    ck_assert_double_eq_tol(p.attention_flops[PROFILE_BACKWARD][ATTENTION_TENSOR][NUMBER_BF16] / 215e12, 165.2 / 989.4,
                            1e-9);
    ck_assert_double_eq_tol(p.conv2d_flops[CONV2D_INPUT][CONV2D_OWN][NUMBER_FP32] / 15e12, 82.6 / 66.9, 1e-9);
    ck_assert_double_eq_tol(p.memory_bytes_per_s / 2.6e12, 1008 / 3350., 1e-9);
    ck_assert_double_eq_tol(p.norm_bytes_per_s[PROFILE_BACKWARD] / 2.06e12, 1008 / 3350., 1e-9);
    ck_assert_double_eq_tol(p.link_bytes_per_s / 53e9, 0.5, 1e-9);
    ck_assert_double_eq(p.n_multiprocessors, 128);
    ck_assert(p.host_bytes_per_s == h100->host_bytes_per_s &&
              p.update_parameters_per_s == h100->update_parameters_per_s && p.call_s == h100->call_s);
}

TEST(what_is_not_known_is_the_default)
{
    const struct profile cuda = card_profile_of("cuda", "NVIDIA L4"),
                         cpu = card_profile_of("cpu", "NVIDIA GeForce RTX 4090"),
                         h100 = card_profile_of("cuda", "NVIDIA H100 NVL");

    ck_assert_mem_eq(&cuda, profile_default("cuda"), sizeof cuda);
    ck_assert_mem_eq(&cpu, profile_default("cpu"), sizeof cpu);
    ck_assert_double_eq(h100.matmul_flops[NUMBER_BF16][3], 660e12);
}
