#include "tests/kit/test.h"

#include "proto/wire/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 * 4096 + 100 };

static struct segment created(enum segment_access others)
{
    struct segment segment;
    struct error err = {0};

    ck_assert_msg(segment_create(&segment, "weights", BYTES, others, &err) == 0, "%s", err.text);
    return segment;
}

TEST(a_fresh_segment_is_zero_aligned_and_not_inherited)
{
    struct segment segment = created(SEGMENT_READ);
    const uint8_t *bytes = segment.base;

    ck_assert_uint_eq(segment.bytes, BYTES);
    ck_assert_uint_eq((uintptr_t)segment.base % 4096, 0);
    ck_assert_int_eq(fcntl(segment.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    for (size_t i = 0; i < BYTES; i++)
        if (bytes[i])
            ck_abort_msg("byte %zu is %u", i, bytes[i]);
    segment_close(&segment);
    ck_assert_ptr_null(segment.base);
    segment_close(&segment); /* twice is harmless */
}

TEST(weights_are_read_and_not_written_by_who_attached)
{
    struct segment owner = created(SEGMENT_READ), other;
    struct error err = {0};
    char path[64];

    ck_assert_int_eq(segment_attach(&other, dup(owner.fd), BYTES, SEGMENT_READ_WRITE, &err), -EPERM);
    ck_assert_holds(err.text, "mapping 12388 bytes of shared memory");
    ck_assert_int_eq(segment_attach(&other, dup(owner.fd), BYTES, SEGMENT_READ, &err), 0);
    ck_assert_int_eq(other.fd, -1);
    ck_assert(mprotect(other.base, BYTES, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    ck_assert(pwrite(owner.fd, "x", 1, 0) == -1 && errno == EPERM);
    snprintf(path, sizeof path, "/proc/self/fd/%d", owner.fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(again, 0);
    ck_assert(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED && errno == EPERM);
    close(again);
    memset(owner.base, 0xA5, BYTES); /* after the other mapped it, and after the seals */
    ck_assert_mem_eq(other.base, owner.base, BYTES);
    segment_close(&owner);
    ck_assert_uint_eq(((const uint8_t *)other.base)[BYTES - 1], 0xA5); /* it outlives its owner */
    segment_close(&other);
}

TEST(an_inbox_is_written_by_both_sides)
{
    struct segment owner = created(SEGMENT_READ_WRITE), other;
    struct error err;

    ck_assert_int_eq(segment_attach(&other, dup(owner.fd), BYTES, SEGMENT_READ_WRITE, &err), 0);
    ((uint8_t *)other.base)[7] = 1;
    ((uint8_t *)owner.base)[8] = 2;
    ck_assert_uint_eq(((uint8_t *)owner.base)[7], 1);
    ck_assert_uint_eq(((uint8_t *)other.base)[8], 2);
    segment_close(&other);
    segment_close(&owner);
}

TEST_EACH(its_length_and_its_seals_are_final, 2)
{
    struct segment owner = created(_i ? SEGMENT_READ : SEGMENT_READ_WRITE);

    ck_assert(ftruncate(owner.fd, 0) == -1 && errno == EPERM);
    ck_assert(ftruncate(owner.fd, 1 << 20) == -1 && errno == EPERM);
    ck_assert(fcntl(owner.fd, F_ADD_SEALS, F_SEAL_WRITE) == -1 && errno == EPERM);
    segment_close(&owner);
}

/* Attaching must take fd, accepted or not. */
static void refused(int fd, size_t bytes, const char *why)
{
    struct segment segment;
    struct error err = {0};

    ck_assert_int_eq(segment_attach(&segment, fd, bytes, SEGMENT_READ, &err), -EINVAL);
    ck_assert_holds(err.text, why);
    ck_assert_ptr_null(segment.base);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
    ck_assert_int_eq(errno, EBADF);
}

TEST(what_is_too_short_or_could_shrink_or_is_something_else_is_refused)
{
    struct segment owner = created(SEGMENT_READ);
    int pipes[2], unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    refused(dup(owner.fd), 4 * 4096 + 1, "16384 bytes, not the promised 16385");
    refused(dup(owner.fd), SIZE_MAX, "16384 bytes, not the promised 18446744073709551615");
    refused(dup(owner.fd), 0, "16384 bytes, not the promised 0");
    segment_close(&owner);
    ck_assert_int_eq(ftruncate(unsealed, 4096), 0);
    refused(unsealed, 4096, "not sealed");
    refused(open("/etc/passwd", O_RDONLY | O_CLOEXEC), 1, "not shared memory");
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    refused(pipes[0], 1, "not shared memory");
    close(pipes[1]);
}

TEST(sealed_bytes_are_read_and_nothing_else_is_looked_at)
{
    struct error err = {0};
    char back[8] = "";
    size_t n = 0;
    const int fd = segment_seal("config.json", "{\"a\":1}", 7, &err);

    ck_assert_msg(fd >= 0, "%s", err.text);
    ck_assert_int_eq(segment_sealed_bytes(&n, fd, "config.json", &err), 0);
    ck_assert_uint_eq(n, 7);
    ck_assert_int_eq(pread(fd, back, 8, 0), 7);
    ck_assert_str_eq(back, "{\"a\":1}");
    ck_assert_int_lt(pwrite(fd, "x", 1, 0), 0);
    ck_assert_int_lt(ftruncate(fd, 0), 0);
    ck_assert_int_lt(ftruncate(fd, 100), 0);
    ck_assert_int_lt(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    close(fd);
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    for (int lacking = F_SEAL_SEAL; lacking <= F_SEAL_WRITE; lacking <<= 1) {
        const int almost = memfd_create("almost", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        ck_assert_int_eq(fcntl(almost, F_ADD_SEALS, all & ~lacking), 0);
        ck_assert_int_eq(segment_sealed_bytes(&n, almost, "config.json", &err), -EINVAL);
        close(almost);
    }
    const int others[] = {open("/etc/passwd", O_RDONLY | O_CLOEXEC), open("/", O_PATH | O_CLOEXEC),
                          memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    for (int i = 0; i < COUNT(others); i++) {
        ck_assert_int_eq(segment_sealed_bytes(&n, others[i], "config.json", &err), -EINVAL);
        ck_assert_holds(err.text, "config.json ", "sealed");
        close(others[i]);
    }
}

TEST(more_than_there_can_be_is_refused)
{
    struct segment segment;
    struct error err = {0};

    ck_assert_int_eq(segment_create(&segment, "weights", SIZE_MAX, SEGMENT_READ, &err), -ENOMEM);
    ck_assert_holds(err.text, "18446744073709551615 bytes", "weights");
    ck_assert_int_lt(segment_create(&segment, "weights", (size_t)1 << 60, SEGMENT_READ, &err), 0);
    ck_assert_holds(err.text, "1152921504606846976 bytes of shared memory for weights: ");
    ck_assert_ptr_null(segment.base);
}
