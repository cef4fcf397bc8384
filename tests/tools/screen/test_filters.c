/* The script of a picture of filters: places and colours of taps, by hand. */
#include "tools/screen/filters.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *script_of(const struct filters_titled *runs, size_t n, const char *format)
{
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    filters_write(out, runs, n, format);
    fclose(out);
    return text;
}

/* A filter of two taps in colour: its numbers from -1 to 3 are 0 to 255; and 17 of one tap in grey, of which the last
 * is alone in a second line, with white around it. A filter of one number has no range, and nor has one that is not a
 * number. */
TEST(a_tap_has_its_place_and_colour)
{
    float colours[] = {-1, 0, 3, 3, 1, -1}, greys[17] = {0};
    struct filters_titled runs[] = {{{1, 1, 2, 3, colours}, "it's"}, {{17, 1, 1, 1, greys}, "grey"}};
    char *text = script_of(runs, 2, "png");

    ck_assert_ptr_nonnull(strstr(text, "$filters0 << EOD\n0 0 0 64 255\n1 0 255 128 0\nEOD\nset title 'it\u2019s'"));
    ck_assert_ptr_nonnull(strstr(text, "$filters1 << EOD\n0 0 127 127 127\n1 0 255 255 255\n2 0 127 127 127\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n30 1 255 255 255\n0 2 127 127 127\n1 2 255 255 255\n"));
    ck_assert_ptr_nonnull(strstr(text, "set terminal pngcairo font 'sans,10' size 288,112 noenhanced"));
    free(text);
    greys[0] = NAN;
    text = script_of(&runs[1], 1, "svg");
    ck_assert_ptr_nonnull(strstr(text, "set terminal svg"));
    ck_assert_ptr_nonnull(strstr(text, "<< EOD\n0 0 127 127 127\n"));
    free(text);
}
