/* The division is computed, not left to OpenMP's schedule, as it must be the same for the first touch and for each
 * later pass. Runs are whole blocks: a checksum is of one block (eps/store/checks.c), and no two threads write one. */
#include "eps/store/team.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum { SPARED = 2 }; /* cores left to devices */

#ifdef _OPENMP
enum { SMALL = 32 * TEAM_BLOCK }; /* elements: waking a thread costs as much as doing fewer */

static size_t range_begin(size_t n, size_t thread, size_t n_threads)
{
    size_t n_blocks = (n + TEAM_BLOCK - 1) / TEAM_BLOCK;
    size_t begin = n_blocks * thread / n_threads * TEAM_BLOCK;

    return begin < n ? begin : n;
}
#endif

void team_run(size_t n, void (*fn)(void *data, size_t begin, size_t count), void *data)
{
    if (n == 0)
        return;
#ifdef _OPENMP
    if (n >= SMALL) {
#pragma omp parallel
        {
            size_t thread = (size_t)omp_get_thread_num(), n_threads = (size_t)omp_get_num_threads();
            size_t begin = range_begin(n, thread, n_threads), end = range_begin(n, thread + 1, n_threads);
            if (begin < end)
                fn(data, begin, end - begin);
        }
        return;
    }
#endif
    fn(data, 0, n);
}

unsigned team_size(void)
{
#ifdef _OPENMP
    return (unsigned)omp_get_max_threads();
#else
    return 1;
#endif
}

unsigned team_beside_device(unsigned n_threads, unsigned n_cores)
{
    const unsigned most = n_cores > SPARED ? n_cores - SPARED : 1;

    return n_threads < most ? n_threads : most;
}

void team_start(void)
{
#pragma omp parallel
    __asm__ volatile(""); /* keeps the compiler from removing an empty region */
}
