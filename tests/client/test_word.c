#include "tests/kit/test.h"

#include "client/eps.h"

#include <stdio.h>
#include <string.h>

/* By hand: each difference is one insertion, deletion, substitution or swap. */
TEST(a_slip_of_the_fingers_is_understood)
{
    static const char *const names[] = {"train",      "plan", "eval",  "generate",   "status",
                                        "--learning", "--lr", "model", "drop-layers"};
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
        {"drop-layrs", "drop-layers"},
        {"dorp-layrs", "drop-layers"}, /* two of 10 */
        {"n-gpu-layers", NULL},        /* four of 12 */
        {"statis", "status"},
        {"stotis", NULL},         /* two of 6 */
        {"model-revision", NULL}, /* a word more is another meaning */
        {"model_dir", NULL},
        {"models", "model"},
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

TEST(the_nearest_of_several_is_taken)
{
    static const char *const names[] = {"gpt2-large", "gpt2", "gpt2-xl", "--device", "--device-mem"};
    static const char *const slips[][2] = {{"gpt2-lage", "gpt2-large"},
                                           {"gpt3", "gpt2"},
                                           {"gpt2xl", "gpt2-xl"},
                                           {"--device_mem", "--device-mem"}}; /* underscores are dashes */

    for (int i = 0; i < COUNT(slips); i++)
        ck_assert_str_eq(eps_nearest(slips[i][0], names, COUNT(names)), slips[i][1]);
}

/* What a shell makes of a quoted word is the word. */
TEST(a_quoted_word_is_read_back_by_a_shell)
{
    static const char *const words[] = {"plain/path-1.0_a:b@c%d+e=f,g",
                                        "two words",
                                        "it's",
                                        "''",
                                        "$HOME `id` \"x\" \\",
                                        "",
                                        "~/run",
                                        "a*b?[c]",
                                        "new\nline",
                                        "gr\xC3\xBC\xC3\x9F\x65"};
    char quoted[100], command[200], read_back[100];

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *as = eps_quote(quoted, sizeof quoted, words[i]);
        ck_assert_int_eq(as == words[i], i == 0);
        snprintf(command, sizeof command, "printf %%s %s", as);
        FILE *pipe = popen(command, "r");
        const size_t n = fread(read_back, 1, sizeof read_back - 1, pipe);
        read_back[n] = 0;
        ck_assert_int_eq(pclose(pipe), 0);
        ck_assert_str_eq(read_back, words[i]);
    }
    ck_assert_str_eq(eps_quote(quoted, 8, "it's"), "it's"); /* 'it'\''s' and its end take 10 */
    ck_assert_str_eq(eps_quote(quoted, 10, "it's"), "'it'\\''s'");
}
