/* Domains of a family's own: how many elements a row has there. */
#include "proto/operation/program.h"
#include "tests/kit/test.h"

/* By hand: tokens 2 to 4; the second half; of 7 tokens in 3 parts, the last two begin at 2; an image of 5 lines. */
static const struct {
    struct program_own own;
    uint32_t n_tokens, first, n, least;
} domains[] = {
    {{.first = 2, .n = 3}, 9, 2, 3, 5},          {{.first = 1, .n = 1, .of = 2}, 10, 5, 5, 2},
    {{.first = 1, .n = 2, .of = 3}, 7, 2, 5, 2}, {{.height = 5, .width = 7}, 9, 0, 35, 35},
    {{.height = 5, .width = 7}, 36, 0, 35, 35},
};

TEST_EACH(a_domain_has_its_elements, COUNT(domains))
{
    struct program p = {.own[PROGRAM_DOMAINS - 1 - PROGRAM_OWN] = domains[_i].own};
    const int value = p.n_values++;

    p.values[value] = (struct program_value){.domain = PROGRAM_DOMAINS - 1, .columns = 4};
    ck_assert_uint_eq(program_own_first(&domains[_i].own, domains[_i].n_tokens), domains[_i].first);
    ck_assert_uint_eq(program_own_least(&domains[_i].own), domains[_i].least);
    ck_assert_uint_eq(program_elements(&p, value, 3, domains[_i].n_tokens), 3 * domains[_i].n);
}
