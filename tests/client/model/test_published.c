/* The list of published models against their published sizes, and as names that a plan takes. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/eps.h"
#include "client/model/published.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

static struct eps_train_options options_of(const char *model)
{
    struct eps_train_options options = eps_train_defaults();

    options.model = model;
    options.seq = 128, options.batch = 2; /* a small search */
    options.host_mem = (uint64_t)1 << 50;
    return options;
}

/* A number that is wrong in the list gives another count: but for those of positions and rotations, of which decoders
 * have no parameters. */
TEST(each_config_has_as_many_parameters_as_are_published)
{
    size_t n = 0;

    for (const struct eps_published *p; (p = eps_published(n)) != NULL; n++) {
        const struct eps_train_options options = options_of(p->name);
        struct eps_error error = {""};
        struct eps_plan plan;
        ck_assert_msg(eps_plan(&plan, &options, &error) == 0, "%s: %s", p->name, error.text);
        ck_assert_msg(plan.n_parameters == p->n_parameters, "%s: %ju, published are %ju", p->name,
                      (uintmax_t)plan.n_parameters, (uintmax_t)p->n_parameters);
    }
    ck_assert_uint_ge(n, 30);
}

TEST(rows_ascend_and_say_where_and_when_their_numbers_were_published)
{
    for (size_t i = 0; eps_published(i); i++) {
        const struct eps_published *p = eps_published(i), *next = eps_published(i + 1);
        int year, month, end = 0;
        const char *slash = strchr(p->name, '/');
        ck_assert_msg(slash && slash > p->name && slash[1] && !strchr(slash + 1, '/'), "%s", p->name);
        ck_assert_msg(sscanf(p->date, "%4d-%2d%n", &year, &month, &end) == 2 && !p->date[end] && year >= 2018 &&
                          month >= 1 && month <= 12,
                      "%s: %s", p->name, p->date);
        ck_assert_msg(!next || next->n_parameters > p->n_parameters, "%s", p->name);
        ck_assert_ptr_eq(client_published_find(p->name), p);
    }
}

/* Whoever has files of that name means them. */
TEST(a_file_or_directory_of_the_name_stands_for_itself)
{
    const struct eps_train_options options = options_of("Qwen/Qwen3-0.6B");
    struct eps_error error;
    struct eps_plan plan;

    expect("mkdir -p Qwen/Qwen3-0.6B", 0);
    ck_assert_ptr_null(client_published_find(processes_path("Qwen/Qwen3-0.6B")));
    ck_assert_int_eq(chdir(processes_directory()), 0);
    ck_assert_int_eq(eps_plan(&plan, &options, &error), -ENOENT);
    ck_assert_holds(error.text, "Qwen/Qwen3-0.6B holds no config.json");
    processes_config("Qwen/Qwen3-0.6B/config.json", 1, 2, 64, 128);
    ck_assert_int_eq(eps_plan(&plan, &options, &error), 0);
    ck_assert_uint_eq(plan.n_layers, 1);
}
