#include "tests/kit/test.h"

#include "client/eps.h"

#include <string.h>

/* By hand: each difference is one insertion, deletion, substitution or swap. */
TEST(a_slip_of_the_fingers_is_understood)
{
    static const char *const names[] = {"train", "plan", "eval", "generate", "status", "--learning", "--lr"};
    static const struct {
        const char *word, *meant; /* NULL: nothing */
    } slips[] = {
        {"train", "train"},
        {"tain", "train"},            /* a letter is missing: 1 of 4, (4 + 1) / 3 = 1 */
        {"trian", "train"},           /* two are swapped */
        {"traain", "train"},          /* one too many */
        {"TRAIN", "train"},           /* the other case */
        {"pkan", "plan"},             /* another letter */
        {"genrate", "generate"},      /* one of 7 */
        {"evaluate", "eval"},         /* begins with it */
        {"gen", "generate"},          /* is the beginning of it */
        {"--Learning", "--learning"}, /* two dashes count as letters */
        {"xyz", NULL},
        {"", NULL},
        {"ge", NULL},    /* too short a beginning */
        {"trxyz", NULL}, /* three of 5 */
        {"a-word-that-is-longer-than-any-name-that-there-ever-was", NULL},
    };

    for (size_t i = 0; i < sizeof slips / sizeof *slips; i++) {
        const char *meant = eps_nearest(slips[i].word, names, sizeof names / sizeof *names);
        ck_assert_msg(slips[i].meant ? meant && strcmp(meant, slips[i].meant) == 0 : !meant, "'%s': %s", slips[i].word,
                      meant ? meant : "nothing");
    }
    ck_assert_ptr_null(eps_nearest("train", NULL, 0));
}

TEST(underscores_are_dashes)
{
    static const char *const names[] = {"--device", "--device-mem"};

    ck_assert_str_eq(eps_nearest("--device_mem", names, 2), "--device-mem");
}

TEST(the_nearest_of_several_is_taken)
{
    static const char *const names[] = {"gpt2-large", "gpt2", "gpt2-xl"};

    ck_assert_str_eq(eps_nearest("gpt2-lage", names, 3), "gpt2-large");
    ck_assert_str_eq(eps_nearest("gpt3", names, 3), "gpt2");
    ck_assert_str_eq(eps_nearest("gpt2xl", names, 3), "gpt2-xl");
}
