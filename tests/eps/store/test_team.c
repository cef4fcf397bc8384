#include "tests/kit/inprocess/plain.h"
#include "tests/kit/test.h"

#include "eps/store/team.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct visits {
    unsigned char *seen; /* (n) how often each element was in a run */
    size_t n;
    atomic_int n_runs;
    atomic_bool crooked; /* a run that begins inside a block */
};

static void count(void *data, size_t begin, size_t n)
{
    struct visits *v = data;

    atomic_fetch_add(&v->n_runs, 1);
    if (begin % TEAM_BLOCK != 0)
        atomic_store(&v->crooked, true);
    for (size_t i = begin; i < begin + n; i++)
        v->seen[i]++;
}

static const size_t sizes[] = {0, 1, 1023, 1024, 1025, 32767, 32768, 32769, 100000, 1 << 20, (1 << 20) + 5};

SUITE_TIMEOUT(60)

/* With as many threads as the loop says, more than there are cores too. */
TEST_RANGE(runs_cover_the_range_once_at_block_limits, 1, 9)
{
    const int n_threads = _i;

    plain_set_threads(n_threads);
    for (int k = 0; k < COUNT(sizes); k++) {
        struct visits v = {.seen = plain_zeros(sizes[k] + 1, 1), .n = sizes[k]};
        team_run(v.n, count, &v);
        for (size_t i = 0; i <= v.n; i++)
            if (v.seen[i] != (i < v.n))
                ck_abort_msg("%d threads, %zu elements: element %zu %u times", n_threads, v.n, i, v.seen[i]);
        ck_assert(!v.crooked);
        ck_assert_int_le(v.n_runs, n_threads);
        free(v.seen);
    }
}

TEST(a_small_range_is_the_callers_alone)
{
    struct visits v = {.seen = plain_zeros(32 * TEAM_BLOCK, 1), .n = 32 * TEAM_BLOCK - 1};

    team_run(v.n, count, &v);
    ck_assert_int_eq(v.n_runs, 1);
    team_run(0, count, &v);
    ck_assert_int_eq(v.n_runs, 1); /* nothing to do, nobody called */
    free(v.seen);
}

TEST(a_device_of_its_own_is_left_two_cores)
{
    ck_assert_uint_eq(team_beside_device(16, 16), 14);
    ck_assert_uint_eq(team_beside_device(4, 16), 4); /* OMP_NUM_THREADS */
    ck_assert_uint_eq(team_beside_device(15, 16), 14);
    for (unsigned n = 1; n <= 3; n++)
        ck_assert_uint_eq(team_beside_device(n, n), 1);
}
