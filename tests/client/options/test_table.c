/* What holds for each row of the table of options. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "client/options/options.h"
#include "client/options/value.h"

#include <errno.h>
#include <math.h>
#include <string.h>

TEST(each_row_is_an_option_of_its_own_with_a_help)
{
    struct eps_option a, b;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        size_t n_commands = 0;
        for (enum eps_command c = EPS_COMMAND_TRAIN; c < EPS_COMMANDS; c++)
            n_commands += eps_option_of(&a, &rows[i], c) && a.train;
        ck_assert_msg(n_commands > 0, "row %zu has no help", i);
        if (rows[i].kind == EPS_OPTION_HEADING) {
            ck_assert(!rows[i].name && !rows[i].value && !rows[i].key);
            continue;
        }
        ck_assert_msg(strncmp(rows[i].name, "--", 2) == 0, "%s", rows[i].name);
        ck_assert_msg(!rows[i].value == (rows[i].kind == EPS_OPTION_FLAG), "%s", rows[i].name);
        for (size_t k = 0; k < i; k++) {
            if (!rows[k].name)
                continue;
            for (enum eps_command c = EPS_COMMAND_TRAIN; c < EPS_COMMANDS; c++)
                ck_assert_msg(!eps_option_of(&a, &rows[i], c) || !eps_option_of(&b, &rows[k], c) ||
                                  (a.offset != b.offset && strcmp(a.name, b.name) != 0),
                              "%s has the name or the member of %s", rows[i].name, rows[k].name);
        }
    }
}

/* A checkpoint's keys are numbered from 1: none is there twice, none is missing. */
TEST(keys_are_numbered_without_a_gap)
{
    size_t n, n_stored = 0, found;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++)
        n_stored += rows[i].key > 0;
    for (unsigned key = 1; key <= n_stored; key++) {
        found = 0;
        for (size_t i = 0; i < n; i++)
            found += rows[i].key == key;
        ck_assert_msg(found == 1, "%zu rows have the key %u", found, key);
    }
    ck_assert_ptr_null(client_option_stored((unsigned)n_stored + 1));
}

/* A row for each option: what no row names, the struct's resolved texts and the caller's programs, is NULL or empty. */
TEST(by_default_every_option_is_unset)
{
    const struct eps_train_options options = eps_train_defaults();
    struct eps_option row;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++)
        ck_assert_msg(!eps_option_of(&row, &rows[i], EPS_COMMAND_TRAIN) || !client_option_is_set(&options, &row), "%s",
                      rows[i].name);
    ck_assert(isnan(options.lr) && isnan(options.beta2) && options.seed == UINT64_MAX && options.keep == UINT32_MAX);
    ck_assert(!options.programs && options.n_data == 0 && !*options.model_note && !*options.task_note);
}

/* The help of --change lists what may change. */
TEST(the_help_of_change_names_the_options_that_may_change)
{
    char names[400] = "NAME is";
    const char *last = NULL, *help = NULL;
    size_t n, n_names = 0;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        if (rows[i].name && strcmp(rows[i].name, "--change") == 0)
            help = rows[i].train;
        if (rows[i].resume != EPS_RESUME_CHANGES)
            continue;
        ck_assert_msg(rows[i].key > 0, "%s may change, but is not stored", rows[i].name);
        if (last)
            strcat(strcat(names, n_names++ ? ", " : " "), last + 2);
        last = rows[i].name;
    }
    ck_assert(help && last);
    ck_assert_holds(help, print("%s or %s.", names, last + 2));
}

/* Options of any of the commands below. */
union asked {
    struct eps_train_options train;
    struct eps_eval_options eval;
    struct eps_data_options data;
};

/* All options unset but this one. */
static union asked asked_of(enum eps_command command, const struct eps_option *row)
{
    static const char *const text = "x";
    static const double half[2] = {0.5, 0.5};
    static const uint64_t one = 1;
    union asked asked = {.train = eps_train_defaults()};
    void *member;

    if (command == EPS_COMMAND_EVAL)
        asked.eval = eps_eval_defaults();
    else if (command == EPS_COMMAND_DATA)
        asked.data = eps_data_defaults();
    member = (char *)&asked + row->offset;
    switch (row->kind) {
    case EPS_OPTION_HEADING:
    case EPS_OPTION_TEXTS: /* data: of all tasks */
        break;
    case EPS_OPTION_FLAG:
        *(bool *)member = true;
        break;
    case EPS_OPTION_TEXT:
    case EPS_OPTION_OPTIONAL_TEXT:
    case EPS_OPTION_PATTERNS:
        memcpy(member, &text, sizeof text);
        break;
    case EPS_OPTION_COUNT:
    case EPS_OPTION_AUTO:
    case EPS_OPTION_NUMBER_32:
    case EPS_OPTION_CHOICE:
        memcpy(member, &one, sizeof(uint32_t));
        break;
    case EPS_OPTION_LONG:
    case EPS_OPTION_NUMBER:
    case EPS_OPTION_BYTES:
        memcpy(member, &one, sizeof one);
        break;
    case EPS_OPTION_REAL:
    case EPS_OPTION_PAIR:
        memcpy(member, half, row->kind == EPS_OPTION_PAIR ? sizeof half : sizeof *half);
    }
    return asked;
}

/* The task's own sentence, or one of the table's; a task without either would end the program. */
TEST(each_task_takes_an_option_or_says_why_not)
{
    static const enum eps_command commands[] = {EPS_COMMAND_TRAIN, EPS_COMMAND_PLAN, EPS_COMMAND_EVAL,
                                                EPS_COMMAND_DATA};
    const struct eps_task_facts *task;
    struct eps_option row;
    size_t n, n_refused = 0;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n * COUNT(commands); i++) {
        const enum eps_command command = commands[i % COUNT(commands)];
        if (!eps_option_of(&row, &rows[i / COUNT(commands)], command))
            continue;
        const union asked asked = asked_of(command, &row);
        for (size_t k = 0; (task = eps_task_at(k)) != NULL; k++) {
            const bool takes = row.tasks == 0 || row.tasks & task->task;
            struct error err = {""};
            ck_assert_msg(client_options_check_tasks(&asked, command, task->task, false, &err) == (takes ? 0 : -EDOM),
                          "%s of %s: \"%s\"", row.name, task->key, err.text);
            ck_assert_msg(takes || strncmp(err.text, row.name, strlen(row.name)) == 0, "%s: %s", row.name, err.text);
            n_refused += !takes;
        }
    }
    ck_assert_uint_gt(n_refused, 100);
}
