/* tests/sim/planted.hpp - for tests of the simulator: mistakes are planted in a child process, whose last words count;
 * what has none gives the right result in every order. */
#ifndef CUDASIM_PLANTED_HPP
#define CUDASIM_PLANTED_HPP

#include "tests/kit/test.h"
#include "tests/sim/cudasim.h"

#include <fnmatch.h>
#include <functional>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) ck_assert_int_eq(call, cudaSuccess)
#define RED_ZONE "AddressSanitizer" /* names it first, where it watches */

inline const int THREADS = 64;

inline cudaStream_t make_stream()
{
    cudaStream_t stream;

    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

template <typename T> inline T *on_device(size_t n)
{
    T *memory;

    OK(cudaMalloc((void **)&memory, n * sizeof *memory));
    return memory;
}

template <typename T> inline T *page_locked(size_t n)
{
    T *memory;

    OK(cudaHostAlloc((void **)&memory, n * sizeof *memory, cudaHostAllocDefault));
    return memory;
}

inline char text[1 << 16];

/* What a child that makes the mistake says before it dies is then in text; "" if it lives. */
inline void hear(const std::function<void()> &mistake)
{
    size_t n = 0;
    int ends[2], status;

    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        mistake();
        cudasim_finish();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg((status == 0) == (n == 0), "status %d: %s", status, text);
}

/* sentence: with * for what is no matter. */
#define SAYS(sentence, ...)                                                                                            \
    do {                                                                                                               \
        hear([]() { __VA_ARGS__ });                                                                                    \
        ck_assert_msg(fnmatch("*" sentence "*", text, 0) == 0, "it says: %s", text);                                   \
    } while (0)
/* The same, or that AddressSanitizer was first. */
#define SAYS_OR_ASAN(sentence, ...)                                                                                    \
    do {                                                                                                               \
        hear([]() { __VA_ARGS__ });                                                                                    \
        ck_assert_msg(fnmatch("*" sentence "*", text, 0) == 0 || strstr(text, RED_ZONE), "it says: %s", text);         \
    } while (0)

/* In how many orders of streams and threads the result is right, and in how many there are. */
inline const int ORDERS = 4 * 3;

inline int n_right(const std::function<bool()> &right)
{
    int n = 0;

    for (int i = 0; i < ORDERS; i++) {
        cudasim_order((enum cudasim_streams)(i % 4), (enum cudasim_threads)(i / 4), (uint64_t)i);
        n += right();
    }
    cudasim_order(CUDASIM_STREAMS_AS_ISSUED, CUDASIM_THREADS_FORWARD, 0);
    return n;
}

#endif
