#include "tests/kit/test.h"

#include "proto/model/file/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static void read_back(float *out, const struct safetensors *file, const char *name, uint64_t n)
{
    const struct safetensors_entry *entry = safetensors_find(file, name);
    struct error err = {""};

    ck_assert_msg(entry != NULL, "%s", name);
    ck_assert_msg(safetensors_read(out, entry, 0, n, &err) == 0, "%s", err.text);
}

SUITE_TIMEOUT(120)

/* The package's file has the values of tests/oracle/make_safetensors_fixture.py. */
TEST(what_is_written_equals_the_package_byte_by_byte)
{
    static const struct safetensors_plan plan[] = {{"h.0.ln_1.bias", 1, {3, 1}, SAFETENSORS_F32},
                                                   {"wte.weight", 2, {2, 3}, SAFETENSORS_F32}};
    static const float bias[] = {1, 2, 3}, wte[] = {-0.5f, -0.25f, 0, 0.25f, 0.5f, 0.75f};
    uint8_t expected[1024], written[1024];
    const int package = open(TESTS_DIR "/fixtures/vectors/package_f32.safetensors", O_RDONLY | O_CLOEXEC);
    const ssize_t n = read(package, expected, sizeof expected);
    int fd = memfd_create("written", MFD_CLOEXEC);
    struct safetensors_writer writer;

    ck_assert_int_eq(safetensors_begin(&writer, fd, plan, 2, NULL), 0);
    ck_assert_int_eq(safetensors_append(&writer, bias, sizeof bias, NULL), 0);
    ck_assert_int_eq(safetensors_append(&writer, wte, 8, NULL), 0); /* in runs */
    ck_assert_int_eq(safetensors_append(&writer, wte + 2, 16, NULL), 0);
    ck_assert_int_eq(safetensors_end(&writer, NULL), 0);
    ck_assert_int_gt(n, 0);
    ck_assert_int_eq(pread(fd, written, sizeof written, 0), n);
    ck_assert_mem_eq(written, expected, (size_t)n);
    close(package);
    close(fd);
}

/* Names that JSON must escape, all types, no tensor at all, and headers of every length modulo 8. */
TEST(what_is_written_reads_back)
{
    static const float values[] = {1.1f, 2.2f, 3.3f, 4.4f, 5.5f, 6.6f, 7.7f};
    static const uint16_t brain[] = {0x3f80, 0xc000, 0x4049, 0x3555}; /* the last: fp16 */
    static const int64_t updates[] = {-1, (int64_t)1 << 40};
    char name[64] = "\"\\\xC3\xBC";
    const struct safetensors_plan plan[] = {{name, 2, {2, 3}, SAFETENSORS_F32},
                                            {"a", 1, {1, 1}, SAFETENSORS_F32},
                                            {"b", 2, {1, 3}, SAFETENSORS_BF16},
                                            {"half", 1, {1, 1}, SAFETENSORS_F16},
                                            {"updates", 1, {2, 1}, SAFETENSORS_I64}};
    struct safetensors_writer writer;
    struct safetensors file;
    struct error err;
    float back[6];
    int64_t counts[2];

    for (size_t n = 0; n <= 5; n += 5)
        for (int length = 0; length < 8; length++) {
            int fd = memfd_create("written", MFD_CLOEXEC);
            strcat(name, "x");
            ck_assert_int_eq(safetensors_begin(&writer, fd, plan, n, &err), 0);
            ck_assert_int_eq(lseek(fd, 0, SEEK_CUR) % 8, 0);
            if (n) {
                ck_assert_int_eq(safetensors_append(&writer, values, sizeof values, &err), 0); /* may span tensors */
                ck_assert_int_eq(safetensors_append(&writer, brain, sizeof brain, &err), 0);
                ck_assert_int_eq(safetensors_append(&writer, updates, sizeof updates, &err), 0);
            }
            ck_assert_int_eq(safetensors_end(&writer, &err), 0);
            ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
            ck_assert_uint_eq(file.n_entries, n);
            if (n) {
                read_back(back, &file, name, 6);
                ck_assert_mem_eq(back, values, 6 * sizeof *back);
                read_back(back, &file, "a", 1);
                ck_assert_float_eq(back[0], 7.7f);
                read_back(back, &file, "b", 3);
                ck_assert(back[0] == 1 && back[1] == -2 && back[2] == 3.140625f);
                read_back(back, &file, "half", 1);
                ck_assert_float_eq(back[0], 0x1.554p-2f);
                ck_assert_int_eq(safetensors_read_counts(counts, safetensors_find(&file, "updates"), 0, 2, NULL), 0);
                ck_assert_mem_eq(counts, updates, sizeof counts);
            }
            safetensors_close(&file);
            close(fd);
        }
}

/* Offsets by hand: 16 bytes of counts, 6 of bf16, 4 of fp32, behind a header that is a multiple of 8. */
TEST(a_layout_says_where_everything_goes)
{
    static const struct safetensors_plan plan[] = {{"updates", 1, {2, 1}, SAFETENSORS_I64},
                                                   {"b", 2, {1, 3}, SAFETENSORS_BF16},
                                                   {"f", 1, {1, 1}, SAFETENSORS_F32}};
    static const char json[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                               "\"updates\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
                               "\"b\":{\"dtype\":\"BF16\",\"shape\":[1,3],\"data_offsets\":[16,22]},"
                               "\"f\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[22,26]}}";
    struct safetensors_layout layout;

    ck_assert_int_eq(safetensors_layout_init(&layout, plan, 3, NULL), 0);
    ck_assert_uint_eq(layout.header_bytes % 8, 0);
    ck_assert_mem_eq(layout.header + 8, json, strlen(json));
    for (size_t i = 8 + strlen(json); i < layout.header_bytes; i++)
        ck_assert_int_eq(layout.header[i], ' ');
    ck_assert_uint_eq(layout.offsets[0], layout.header_bytes);
    ck_assert_uint_eq(layout.offsets[1], layout.header_bytes + 16);
    ck_assert_uint_eq(layout.offsets[2], layout.header_bytes + 22);
    ck_assert_uint_eq(layout.file_bytes, layout.header_bytes + 26);
    safetensors_layout_free(&layout);
    safetensors_layout_free(&layout);
}

TEST(a_full_disk_is_reported)
{
    static const struct safetensors_plan plan = {"a", 1, {1, 1}, SAFETENSORS_F32};
    struct safetensors_writer writer;
    struct error err;
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(safetensors_begin(&writer, fd, &plan, 1, &err), -ENOSPC);
    ck_assert_str_eq(err.text, "cannot be written: No space left on device");
    writer = (struct safetensors_writer){.fd = fd, .expected = 4};
    ck_assert_int_eq(safetensors_append(&writer, (const float[]){1}, 4, &err), -ENOSPC);
    ck_assert_uint_eq(writer.written, 0);
    close(fd);
}

/* A pipe takes part of what it is offered, and cannot be flushed. */
TEST(a_short_write_is_reported)
{
    enum { N = 1 << 16 };
    static float values[N];
    static const struct safetensors_plan plan = {"a", 1, {N, 1}, SAFETENSORS_F32};
    struct safetensors_writer writer;
    struct error err;
    int fds[2];

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    ck_assert_int_eq(safetensors_begin(&writer, fds[1], &plan, 1, &err), 0);
    ck_assert_int_eq(safetensors_append(&writer, values, sizeof values, &err), -EAGAIN);
    ck_assert_int_eq(safetensors_end(&writer, &err), -EINVAL);
    ck_assert_str_eq(err.text, "0 bytes of data were written of 262144");
    writer.written = writer.expected;
    ck_assert_int_eq(safetensors_end(&writer, &err), -EINVAL);
    ck_assert_str_eq(err.text, "cannot be flushed to the disk: Invalid argument");
    close(fds[0]);
    close(fds[1]);
}

struct reader {
    pthread_t writer;
    const int *fds;
    uint8_t *bytes;
    size_t n;
};

static void on_signal(int signal)
{
    (void)signal;
}

/* Lets the writer fill the pipe, interrupts it there (in the first write, which ends short, and in the next ones, which
 * cannot begin), and only then reads. */
static void *interrupt_and_read(void *argument)
{
    const struct reader *reader = argument;
    struct pollfd room = {.fd = reader->fds[1], .events = POLLOUT};
    size_t n = 0;

    while (poll(&room, 1, 0) == 1)
        sched_yield();
    for (int i = 0; i < 1000; i++) {
        pthread_kill(reader->writer, SIGUSR1);
        sched_yield();
    }
    for (ssize_t got = 1; got > 0 && n < reader->n; n += (size_t)got)
        got = read(reader->fds[0], reader->bytes + n, reader->n - n);
    return NULL;
}

TEST(an_interrupted_write_goes_on_where_it_was)
{
    enum { N = 1 << 18 };
    static float values[N];
    static uint8_t bytes[N * sizeof(float) + 1024];
    static const struct safetensors_plan plan = {"a", 1, {N, 1}, SAFETENSORS_F32};
    const struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART */
    struct safetensors_writer writer;
    struct error err;
    pthread_t thread;
    int fds[2];

    for (int i = 0; i < N; i++)
        values[i] = (float)i;
    sigaction(SIGUSR1, &action, NULL);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_eq(safetensors_begin(&writer, fds[1], &plan, 1, &err), 0);
    int header = 0;
    ioctl(fds[0], FIONREAD, &header);
    struct reader reader = {pthread_self(), fds, bytes, (size_t)header + sizeof values};
    ck_assert_int_eq(pthread_create(&thread, NULL, interrupt_and_read, &reader), 0);
    ck_assert_int_eq(safetensors_append(&writer, values, sizeof values, &err), 0);
    pthread_join(thread, NULL);
    ck_assert(memcmp(bytes + header, values, sizeof values) == 0);
    close(fds[0]);
    close(fds[1]);
}
