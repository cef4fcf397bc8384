/* What holds for each row of the table of options. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "client/options/value.h"

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
