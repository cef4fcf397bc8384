/* Curves of any length as few means. */
#include "tests/kit/test.h"

#include "tools/screen/plot.h"

#include <math.h>

TEST(a_short_curve_is_kept_as_it_is)
{
    static struct series s;

    series_add(&s, 1, 5), series_add(&s, 2, NAN), series_add(&s, 3, INFINITY), series_add(&s, 4, 7);
    ck_assert_uint_eq(s.n, 4);
    ck_assert_double_eq(series_x(&s, 1), 2);
    ck_assert_double_eq(series_y(&s, 0), 5);
    ck_assert(isnan(series_y(&s, 1)));
    ck_assert(isnan(series_y(&s, 2)));
    ck_assert_double_eq(series_most(&s), 7);
}

/* 1,000,000 points of y = 2x, in at most 1024 means: 1024 * 2^9 points are too few, so each has 2^10. The mean of the
 * first 1024 x is 512.5. */
TEST(a_long_curve_is_means_of_equally_many_points)
{
    static struct series s;

    for (int i = 1; i <= 1000000; i++)
        series_add(&s, i, 2.0 * i);
    ck_assert_uint_eq(s.stride, 1024);
    ck_assert_uint_eq(s.n, 977); /* ceil(1,000,000 / 1024) */
    ck_assert_double_eq(series_x(&s, 0), 512.5);
    for (size_t i = 0; i < s.n; i++)
        ck_assert_double_eq_tol(series_y(&s, i), 2 * series_x(&s, i), 1e-6);
    ck_assert_double_eq(series_x(&s, 976), (999425 + 1000000) / 2.0); /* the last has 576 */
}

TEST(numbers_that_are_none_do_not_count)
{
    static struct series s;

    for (int i = 0; i < 4 * SERIES_MEANS; i++)
        series_add(&s, i, i % 2 ? NAN : 3);
    for (size_t i = 0; i < s.n; i++)
        ck_assert_double_eq(series_y(&s, i), 3);
}

TEST(what_comes_late_was_zero_before)
{
    static struct series all, late;

    for (int i = 0; i < 3000; i++)
        series_add(&all, i, 1);
    series_zero(&late, &all);
    for (int i = 3000; i < 6000; i++)
        series_add(&all, i, 1), series_add(&late, i, 1);
    ck_assert_uint_eq(late.n, all.n);
    for (size_t i = 0; i < all.n; i++)
        ck_assert_double_eq(series_x(&late, i), series_x(&all, i));
    ck_assert_double_eq(series_y(&late, 0), 0);
    ck_assert_double_eq(series_y(&late, late.n - 1), 1);
}

TEST(nothing_has_no_most)
{
    static struct series s;

    ck_assert(isnan(series_most(&s)));
    series_add(&s, 1, NAN);
    ck_assert(isnan(series_most(&s)));
}
