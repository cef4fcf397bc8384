/* The table of options as arguments of its commands: each row is parsed into its member, and is in --help. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/options/value.h"
#include "tools/table_options.h"

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
    [EPS_OPTION_NUMBER_32] = {{"4294967294"}, "4294967294"}, /* the largest means unset */
    [EPS_OPTION_LONG] = {{"4294967297"}, "4294967297"},
    [EPS_OPTION_NUMBER] = {{"0"}, "0"},
    [EPS_OPTION_BYTES] = {{"5GiB"}, "5368709120"},
    [EPS_OPTION_REAL] = {{"0.1"}, "0.1"},
    [EPS_OPTION_PAIR] = {{"0.1,0.25"}, "0.1,0.25"},
};

/* A command's struct. */
union asked {
    struct eps_train_options train;
    struct eps_eval_options eval;
    struct eps_data_options data;
    struct eps_generate_options generate;
    struct eps_chat_options chat;
    struct eps_export_options export;
};

static union asked defaults_of(enum eps_command command)
{
    return command == EPS_COMMAND_EVAL       ? (union asked){.eval = eps_eval_defaults()}
           : command == EPS_COMMAND_DATA     ? (union asked){.data = eps_data_defaults()}
           : command == EPS_COMMAND_GENERATE ? (union asked){.generate = eps_generate_defaults()}
           : command == EPS_COMMAND_CHAT     ? (union asked){.chat = eps_chat_defaults()}
           : command == EPS_COMMAND_EXPORT   ? (union asked){.export = eps_export_defaults()}
                                             : (union asked){.train = eps_train_defaults()};
}

static int parse(struct table_options *out, union asked *asked, enum eps_command command, const char *name,
                 const char *first, const char *second)
{
    char *argv[] = {(char *)(uintptr_t) "eps", (char *)(uintptr_t)name, (char *)(uintptr_t)first,
                    (char *)(uintptr_t)second};

    *asked = defaults_of(command);
    *out = (struct table_options){.options = asked};
    table_options_take(out, command);
    return table_options_parse(out, &(struct command){"eps", "", out->arguments, out->n},
                               second  ? 4
                               : first ? 3
                                       : 2,
                               argv);
}

/* The option has another value than by default, and no other one has. */
static void check_alone(const union asked *parsed, const struct eps_option *row, enum eps_command command)
{
    const union asked unset = defaults_of(command);
    char now[CLIENT_OPTION_TEXT], before[CLIENT_OPTION_TEXT];
    struct eps_option other;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        if (!eps_option_of(&other, &rows[i], command) || strcmp(other.name ? other.name : "", row->name) == 0)
            continue;
        if (other.kind != EPS_OPTION_HEADING && other.kind != EPS_OPTION_TEXTS)
            ck_assert_msg(strcmp(client_option_print(now, parsed, &other),
                                 client_option_print(before, &unset, &other)) == 0,
                          "%s sets %s", row->name, other.name);
    }
    ck_assert_msg(client_option_is_set(parsed, row), "%s is not set", row->name);
}

static void check_choices(const struct eps_option *row, enum eps_command command)
{
    char word[CLIENT_OPTION_KEY], said[CLIENT_OPTION_TEXT];
    struct table_options parsed;
    union asked asked;

    for (const char *at = row->value; *at; at += strcspn(at, "|"), at += *at == '|') {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "|"), at);
        ck_assert_msg(parse(&parsed, &asked, command, row->name, word, NULL) == -1, "%s %s", row->name, word);
        ck_assert_str_eq(client_option_print(said, &asked, row), word);
        check_alone(&asked, row, command);
        table_options_free(&parsed);
    }
}

TEST_EACH(each_row_is_an_argument_that_sets_its_member_alone, EPS_COMMANDS)
{
    const enum eps_command command = (enum eps_command)_i;
    char said[CLIENT_OPTION_TEXT];
    struct table_options parsed;
    struct eps_option row;
    union asked asked;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        if (!eps_option_of(&row, &rows[i], command) || !row.train || row.kind == EPS_OPTION_HEADING)
            continue;
        if (row.kind == EPS_OPTION_CHOICE) {
            check_choices(&row, command);
            continue;
        }
        const char *const *words = values[row.kind].words;
        ck_assert_msg(parse(&parsed, &asked, command, row.name, words[0], words[1]) == -1, "%s", row.name);
        check_alone(&asked, &row, command);
        const void *at = (const char *)&asked + row.offset;
        if (row.kind == EPS_OPTION_TEXTS) {
            const char *const *const texts = *(const char *const *const *)at;
            const size_t *const n_texts = (const size_t *)((const char *const *const *)at + 1);
            ck_assert_str_eq(print("%zu %s %s", *n_texts, texts[0], texts[1]), "2 a b");
        } else
            ck_assert_str_eq(client_option_print(said, &asked, &row), values[row.kind].printed);
        table_options_free(&parsed);
    }
}

TEST(an_option_that_is_unset_is_printed_as_none)
{
    const struct eps_train_options unset = eps_train_defaults();
    char said[CLIENT_OPTION_TEXT];
    struct eps_option row;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        if (!eps_option_of(&row, &rows[i], EPS_COMMAND_TRAIN) || row.kind == EPS_OPTION_HEADING ||
            row.kind == EPS_OPTION_TEXTS)
            continue;
        const bool is_text = row.kind == EPS_OPTION_FLAG || row.kind == EPS_OPTION_TEXT ||
                             row.kind == EPS_OPTION_OPTIONAL_TEXT || row.kind == EPS_OPTION_PATTERNS;
        ck_assert_str_eq(client_option_print(said, &unset, &row), is_text ? "default without it" : "none");
    }
}

/* Words that no memory has room for are no misuse. The sanitizers end a process that asks for so many. */
TEST_IF(a_command_line_without_memory_fails_with_1, !SANITIZED)
{
    struct argument_texts texts = {.n = SIZE_MAX / 16};
    const struct argument argument = {"--each", "WORD", ARGUMENT_EACH, &texts, ""};
    const struct command command = {"eps", "", &argument, 1};
    char *argv[] = {(char *)(uintptr_t) "eps", (char *)(uintptr_t) "--each", (char *)(uintptr_t) "word"};

    ck_assert_int_eq(arguments_parse(&command, 3, argv), 1);
}

TEST(help_has_each_row_of_its_command_and_no_other)
{
    static const char *const names[EPS_COMMANDS] = {"train", "plan", "data", "eval", "generate", "chat", "export"};
    struct eps_option row;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (int command = 0; command < EPS_COMMANDS; command++) {
        expect(print("eps %s --help all", names[command]), 0);
        for (size_t i = 0; i < n; i++) {
            if (!eps_option_of(&row, &rows[i], (enum eps_command)command))
                continue;
            const char *help = row.train;
            const char *line = row.kind == EPS_OPTION_HEADING ? print("\n%s:\n", help ? help : rows[i].train)
                               : row.value                    ? print("\n  %s %s", row.name, row.value)
                                                              : print("\n  %s ", row.name);
            ck_assert_msg(!strstr(command_out(), line) == !help, "eps %s:%s", names[command], line);
        }
    }
}
