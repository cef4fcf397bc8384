/* Curves in lines of text: columns are spans of steps, heights their means. */
#include "tests/kit/test.h"

#include "tools/screen/chart.h"

#include <math.h>
#include <string.h>

static struct series curve;
static struct chart chart;

static const char *row(unsigned i, unsigned n_rows)
{
    static char text[3 * CHART_COLUMNS + 1];

    chart_row(text, sizeof text, &chart, i, n_rows, false);
    return text;
}

/* 1,000 points of 1 in the first half of the steps, and two of 3 in the other: half of the columns each. */
TEST(a_column_is_a_span_of_steps_not_of_points)
{
    curve = (struct series){.n = 0};
    for (int i = 1; i <= 1000; i++)
        series_add(&curve, i, 1);
    series_add(&curve, 1500, 3);
    series_add(&curve, 2000, 3);
    chart_make(&chart, &curve, 4);
    ck_assert_uint_eq(chart.n, 4);
    ck_assert_double_eq(chart.columns[0], 1);
    ck_assert_double_eq(chart.columns[1], 1);
    ck_assert_double_eq(chart.columns[2], 3);
    ck_assert_double_eq(chart.columns[3], 3);
    ck_assert(chart.least == 1 && chart.most == 3);
    ck_assert_str_eq(row(0, 2), "  ##");
    ck_assert_str_eq(row(1, 2), "__##");
}

/* A span without a point is as the one before it. */
TEST(a_gap_is_bridged)
{
    curve = (struct series){.n = 0};
    series_add(&curve, 1, 5);
    series_add(&curve, 2, 5);
    series_add(&curve, 100, 1);
    series_add(&curve, 101, 1);
    chart_make(&chart, &curve, 4);
    ck_assert_uint_eq(chart.n, 4);
    ck_assert(chart.columns[1] == 5 && chart.columns[2] == 5 && chart.columns[3] == 1);
}

TEST(what_is_not_finite_stands_out_and_has_no_part_in_the_range)
{
    curve = (struct series){.n = 0};
    series_add(&curve, 1, 1);
    series_add(&curve, 2, INFINITY);
    series_add(&curve, 3, 2);
    chart_make(&chart, &curve, 10);
    ck_assert(chart.n == 3 && chart.least == 1 && chart.most == 2);
    ck_assert_str_eq(row(0, 1), "_##");
}

TEST(a_curve_of_no_points_or_one_or_of_one_value_has_columns_for_each)
{
    curve = (struct series){.n = 0};
    chart_make(&chart, &curve, 10);
    ck_assert_uint_eq(chart.n, 0);
    ck_assert_str_eq(row(0, 1), "");
    series_add(&curve, 7, 2);
    chart_make(&chart, &curve, 10);
    ck_assert(chart.n == 1 && chart.least == 2 && chart.most == 2);
    series_add(&curve, 8, 2);
    chart_make(&chart, &curve, 10);
    ck_assert_str_eq(row(0, 1), "__");
}
