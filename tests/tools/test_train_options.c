/* The table of options as arguments of eps train and eps plan: each row is parsed into its member, and is in --help. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/options/value.h"
#include "tools/train_options.h"

#include <string.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

/* What is typed for a type's value, and how it is printed. */
static const struct {
    const char *words[2], *printed;
} values[] = {
    [EPS_OPTION_FLAG] = {{NULL}, ""},
    [EPS_OPTION_TEXT] = {{"word"}, "word"},
    [EPS_OPTION_OPTIONAL_TEXT] = {{NULL}, "-"},
    [EPS_OPTION_PATTERNS] = {{"h.0.*", "wte.*"}, "h.0.*,wte.*"},
    [EPS_OPTION_TEXTS] = {{"a", "b"}, NULL},
    [EPS_OPTION_COUNT] = {{"7"}, "7"},
    [EPS_OPTION_AUTO] = {{"7"}, "7"},
    [EPS_OPTION_NUMBER_32] = {{"4294967295"}, "4294967294"}, /* the largest would mean unset */
    [EPS_OPTION_LONG] = {{"4294967297"}, "4294967297"},
    [EPS_OPTION_NUMBER] = {{"0"}, "0"},
    [EPS_OPTION_BYTES] = {{"5GiB"}, "5368709120"},
    [EPS_OPTION_REAL] = {{"0.1"}, "0.1"},
    [EPS_OPTION_PAIR] = {{"0.1,0.25"}, "0.1,0.25"},
};

static int parse(struct train_options *out, enum train_command which, const char *name, const char *first,
                 const char *second)
{
    char *argv[] = {(char *)(uintptr_t) "eps", (char *)(uintptr_t)name, (char *)(uintptr_t)first,
                    (char *)(uintptr_t)second};

    train_options_init(out, which);
    return train_options_parse(out, &(struct command){"eps", "", out->arguments, out->n},
                               second  ? 4
                               : first ? 3
                                       : 2,
                               argv);
}

/* The option is set, and no other one. */
static void check_alone(const struct train_options *parsed, const struct eps_option *row)
{
    struct eps_option other;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++)
        if (eps_option_of(&other, &rows[i], EPS_COMMAND_TRAIN))
            ck_assert_msg(client_option_is_set(&parsed->options, &other) == (&rows[i] == row), "%s sets %s", row->name,
                          rows[i].name);
}

static void check_choices(const struct eps_option *row, enum train_command which)
{
    char word[CLIENT_OPTION_KEY], said[CLIENT_OPTION_TEXT];
    struct train_options parsed;

    for (const char *at = row->value; *at; at += strcspn(at, "|"), at += *at == '|') {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "|"), at);
        ck_assert_msg(parse(&parsed, which, row->name, word, NULL) == -1, "%s %s", row->name, word);
        ck_assert_str_eq(client_option_print(said, &parsed.options, row), word);
        check_alone(&parsed, row);
        train_options_free(&parsed);
    }
}

TEST_EACH(each_row_is_an_argument_that_sets_its_member_alone, 2)
{
    const enum train_command which = _i ? TRAIN_OPTIONS_OF_PLAN : TRAIN_OPTIONS_OF_TRAIN;
    char said[CLIENT_OPTION_TEXT];
    struct train_options parsed;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        if (!(which == TRAIN_OPTIONS_OF_PLAN ? rows[i].plan : rows[i].train) || rows[i].kind == EPS_OPTION_HEADING)
            continue;
        if (rows[i].kind == EPS_OPTION_CHOICE) {
            check_choices(&rows[i], which);
            continue;
        }
        const char *const *words = values[rows[i].kind].words;
        ck_assert_msg(parse(&parsed, which, rows[i].name, words[0], words[1]) == -1, "%s", rows[i].name);
        check_alone(&parsed, &rows[i]);
        const void *at = (const char *)&parsed.options + rows[i].offset;
        if (rows[i].kind == EPS_OPTION_TEXTS) {
            const char *const *const texts = *(const char *const *const *)at;
            const size_t *const n_texts = (const size_t *)((const char *const *const *)at + 1);
            ck_assert_str_eq(print("%zu %s %s", *n_texts, texts[0], texts[1]), "2 a b");
        } else
            ck_assert_str_eq(client_option_print(said, &parsed.options, &rows[i]), values[rows[i].kind].printed);
        train_options_free(&parsed);
    }
}

TEST(help_has_each_row_of_its_command_and_no_other)
{
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (int plan = 0; plan < 2; plan++) {
        expect(print("eps %s --help", plan ? "plan" : "train"), 0);
        for (size_t i = 0; i < n; i++) {
            const char *help = plan ? rows[i].plan : rows[i].train;
            const char *line = rows[i].kind == EPS_OPTION_HEADING ? print("\n%s:\n", help ? help : rows[i].train)
                               : rows[i].value                    ? print("\n  %s %s", rows[i].name, rows[i].value)
                                                                  : print("\n  %s ", rows[i].name);
            ck_assert_msg(!strstr(command_out(), line) == !help, "eps %s:%s", plan ? "plan" : "train", line);
        }
    }
}
