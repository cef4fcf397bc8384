#include "tests/kit/command.h"
#include "tests/kit/test.h"
#include "tests/proto/model/config_texts.h"

#include "proto/model/decoder.h"

#include <errno.h>
#include <string.h>

static int parse(struct model_config *out, const char *text, struct error *err)
{
    const char *json = quoted(text);

    return model_config_parse(out, json, strlen(json), err);
}

#define FULL   ", 'layer_types': ['full_attention', 'full_attention', 'full_attention']"
#define LISTED ", 'layer_types': ['full_attention', 'sliding_attention', 'full_attention']"

/* As Exaone4Config of transformers 5.24 has it, which writes 0 where there is no window; published files have null, and
 * a word beside layer_types, which are stronger. Where some blocks slide, the others are not rotated. */
static const struct {
    const char *text;
    uint32_t window;
    uint64_t sliding, unrotated;
} periods[] = {
    {EXAONE4 ", 'sliding_window': null, 'sliding_window_pattern': null" FULL "}", 0, 0, 0},
    {EXAONE4 ", 'sliding_window': null, 'sliding_window_pattern': 0" FULL "}", 0, 0, 0},
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': 2}", 7, 5, 2},
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': 'LG'}", 7, 5, 2},
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': 'LLLG'" LISTED "}", 7, 2, 5},
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': 0" LISTED "}", 7, 2, 5},
};

TEST_EACH(a_period_of_blocks_is_a_number_or_a_word, COUNT(periods))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, periods[_i].text, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(decoder_of(&c)->window, periods[_i].window);
    ck_assert_uint_eq(decoder_of(&c)->sliding.set[0], periods[_i].sliding);
    ck_assert_uint_eq(decoder_of(&c)->unrotated.set[0], periods[_i].unrotated);
}

static const struct {
    const char *text, *what;
} others[] = {
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': 'LLGL'}", "letters L that end in one G"},
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': 'LL'}", "letters L that end in one G"},
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': ''}", "letters L that end in one G"},
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': -1}", "sliding_window_pattern is -1"},
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': 1.5}", "sliding_window_pattern is 1.5"},
    {EXAONE4 ", 'sliding_window': 7, 'sliding_window_pattern': null}", "it needs layer_types"},
};

TEST_EACH(other_periods_are_refused, COUNT(others))
{
    struct model_config c;
    struct error err;

    ck_assert_int_eq(parse(&c, others[_i].text, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, others[_i].what) != NULL, "%s", err.text);
}
