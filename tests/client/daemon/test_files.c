/* Files that a client serves to a daemon of another user: both sides in one process, and clients that mean ill. */
#include "client/daemon/files.h"
#include "proto/base/trace.h"
#include "proto/model/weights.h"
#include "proto/wire/files.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LONG = 2 * FILE_WINDOW + 4099 }; /* three windows */

static struct files *files;
static int theirs[FILES_SENT + 1]; /* of the client */
static struct client_files *served;
static char *bytes, *back; /* (LONG) */

static void setup(void)
{
    struct error err = {""};

    processes_setup();
    ck_assert_msg(files_open(&files, theirs, true, &err) == 0, "%s", err.text);
    bytes = malloc(LONG), back = malloc(LONG);
    for (size_t i = 0; i < LONG; i++)
        bytes[i] = (char)(i * 2654435761u >> 13);
}

static void teardown(void)
{
    client_files_close(served);
    files_release(files);
    free(bytes), free(back);
    processes_remove();
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, teardown)

/* A client that means well; its trace goes to this file. */
static void serve(int trace_fd)
{
    struct error err = {""};

    ck_assert_msg(client_files_start(&served, theirs, trace_fd, &err) == 0, "%s", err.text);
}

static struct file serve_file(int fd)
{
    uint32_t number;

    ck_assert_int_eq(client_files_add(&number, served, &fd, 1, NULL), 0);
    return file_served(files_server(files), number);
}

static int long_file(void)
{
    const int fd = memfd_create("long", MFD_CLOEXEC);

    ck_assert_int_eq(pwrite(fd, bytes, LONG, 0), LONG);
    return fd;
}

static int trace_file(void)
{
    return open("trace", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

TEST(a_served_file_is_read_and_written_as_an_own_one)
{
    const int fd = memfd_create("file", MFD_CLOEXEC);
    uint64_t size = 1;

    serve(trace_file());
    serve_file(long_file()); /* another */
    const struct file file = serve_file(fd);
    ck_assert_int_eq(file_size(&size, &file, NULL), 0);
    ck_assert_uint_eq(size, 0);
    ck_assert_int_eq(file_reserve(&file, LONG + 10, NULL), 0);
    ck_assert_int_eq(file_write(&file, bytes, LONG, 7, NULL), 0);
    ck_assert_int_eq(file_flush(&file, NULL), 0);
    ck_assert_int_eq(pread(fd, back, LONG, 7), LONG);
    ck_assert(memcmp(back, bytes, LONG) == 0);
    memset(back, 0, LONG);
    ck_assert_int_eq(file_read(&file, back, LONG, 7, NULL), 0);
    ck_assert(memcmp(back, bytes, LONG) == 0);
    ck_assert_int_eq(file_read(&file, back, 5, 7 + FILE_WINDOW, NULL), 0);
    ck_assert(memcmp(back, bytes + FILE_WINDOW, 5) == 0);
    ck_assert_int_eq(file_truncate(&file, 3, NULL), 0);
    ck_assert_int_eq(file_size(&size, &file, NULL), 0);
    ck_assert_uint_eq(size, 3);
}

/* One after the other, then back, then another file's: each is what its place in its file holds. */
TEST(a_window_is_what_was_asked_for_whatever_was_read_ahead)
{
    const int other = memfd_create("other", MFD_CLOEXEC);
    const void *window;

    serve(trace_file());
    const struct file a = serve_file(long_file()), b = serve_file(other);
    static const struct {
        int of_b;
        uint64_t at;
        size_t n, ahead;
    } reads[] = {{0, 0, 100, 200},  {0, 100, 200, 300}, {0, 0, 100, 100}, {1, 100, 100, 0},
                 {0, 100, 200, 50}, {0, 300, 50, 0},    {0, 350, 1, 1},   {0, 352, 1, 0}};

    ck_assert_int_eq(pwrite(other, bytes + 1000, 1000, 0), 1000);
    for (int i = 0; i < COUNT(reads); i++) {
        const struct file *file = reads[i].of_b ? &b : &a;
        ck_assert_int_eq(file->server->window(file->server, &window, file->index, reads[i].at, reads[i].n,
                                              reads[i].ahead, NULL),
                         0);
        ck_assert_msg(memcmp(window, bytes + (reads[i].of_b ? 1000 : 0) + reads[i].at, reads[i].n) == 0, "%d", i);
    }
}

TEST(a_client_serves_what_it_added_and_as_it_was_opened)
{
    const int fd = long_file();
    char path[64];
    struct error err = {""};
    uint64_t size;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    serve(trace_file());
    const struct file file = serve_file(fd), read_only = serve_file(open(path, O_RDONLY | O_CLOEXEC)),
                      none = file_served(files_server(files), 77), full = serve_file(open("/dev/full", O_RDWR));
    ck_assert_int_eq(file_write(&read_only, bytes, 10, 0, &err), -EBADF);
    ck_assert_str_eq(err.text, "cannot be written: Bad file descriptor");
    ck_assert_int_ne(file_truncate(&read_only, 0, &err), 0);
    ck_assert_int_eq(file_size(&size, &none, &err), -EBADF);
    ck_assert_int_eq(file_size(&size, &full, &err), -EINVAL);
    ck_assert_int_eq(file_write(&full, bytes, 10, 0, &err), -ENOSPC);
    ck_assert_str_eq(err.text, "cannot be written: No space left on device");
    ck_assert_int_eq(file_read(&file, back, 10, LONG - 5, &err), -EIO); /* beyond its end */
    ck_assert_str_eq(err.text, "cannot be read: Input/output error");
    ck_assert_int_eq(file_read(&file, back, 5, LONG - 5, &err), 0); /* after all that, still */
    client_files_remove(served, file.index, 1);
    ck_assert_int_eq(file_read(&file, back, 5, 0, &err), -EBADF);
    ck_assert_int_eq(file_size(&size, &read_only, &err), 0);
}

/* ---- clients that mean ill -------------------------------------------------------------------------------------- */

static void say(enum message_kind kind, uint64_t sequence)
{
    const struct message m = {.kind = kind, .sequence = sequence};

    ck_assert_int_eq(files_send(theirs[0], &m, NULL), 0);
}

static void leave(void)
{
    close(theirs[0]);
}

static void say_nonsense(void)
{
    ck_assert_int_eq(send(theirs[0], bytes, 100, 0), 100);
}

static void say_too_much(void)
{
    ck_assert_int_eq(send(theirs[0], bytes, 2 * MESSAGE_MAX_BYTES, 0), 2 * MESSAGE_MAX_BYTES);
}

static void say_another_number(void)
{
    say(MESSAGE_FILE_DONE, 2);
}

static void say_ping(void)
{
    say(MESSAGE_PING, 1);
}

static const struct {
    void (*act)(void);
    int rc;
    const char *sentence;
} faults[] = {
    {leave, -EPIPE, "closed"},
    {say_nonsense, -EPROTO, "no message"},
    {say_too_much, -EPROTO, "no message"},
    {say_another_number, -EPROTO, "FILE_DONE 2"},
    {say_ping, -EPROTO, "PING 1"},
};

/* Nor is it asked again. */
TEST_EACH(a_client_that_answers_wrongly_has_failed, COUNT(faults))
{
    const struct file file = file_served(files_server(files), 0);
    struct error err = {""};
    uint64_t size;

    faults[_i].act();
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(file_size(&size, &file, &err), faults[_i].rc);
        ck_assert_holds(err.text, "client that serves the job's files", faults[_i].sentence);
        ck_assert_int_eq(file_read(&file, back, LONG, 0, &err), faults[_i].rc);
    }
}

/* The daemon has no room for them. */
TEST(descriptors_in_an_answer_do_not_come)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    const struct message m = {.kind = MESSAGE_FILE_DONE, .sequence = 1, .file_done.size = 5};
    struct iovec vector = {.iov_base = back, .iov_len = message_encode((uint8_t *)back, MESSAGE_MAX_BYTES, &m)};
    const struct msghdr header = {.msg_iov = &vector,
                                  .msg_iovlen = 1,
                                  .msg_control = control,
                                  .msg_controllen = sizeof control};
    const struct file file = file_served(files_server(files), 0);
    uint64_t size = 0;

    *(struct cmsghdr *)(void *)control =
        (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    ck_assert_int_gt(sendmsg(theirs[0], &header, 0), 0);
    const unsigned before = processes_count_fds(getpid());
    ck_assert_int_eq(file_size(&size, &file, NULL), 0);
    ck_assert_uint_eq(size, 5);
    ck_assert_uint_eq(processes_count_fds(getpid()), before);
}

static void *read_long(void *data)
{
    const struct file file = file_served(files_server(files), 0);

    *(int *)data = file_read(&file, back, LONG, 0, NULL);
    return NULL;
}

/* Whether it waits already or not. */
TEST(nobody_waits_for_a_client_that_was_given_up)
{
    pthread_t thread;
    struct message m;
    int rc = 0;

    ck_assert_int_eq(pthread_create(&thread, NULL, read_long, &rc), 0);
    ck_assert_int_eq(files_receive(theirs[0], &m, NULL), 0); /* and says nothing */
    files_abandon(files);
    pthread_join(thread, NULL);
    ck_assert_int_eq(rc, -ECANCELED);
    read_long(&rc);
    ck_assert_int_eq(rc, -ECANCELED);
}

TEST(the_memory_cannot_be_made_shorter)
{
    ck_assert_int_eq(ftruncate(theirs[1], 0), -1);
    ck_assert_int_eq(errno, EPERM);
}

static int stop_changing; /* __atomic */

static void *change(void *data)
{
    for (size_t i = 0; !__atomic_load_n(&stop_changing, __ATOMIC_RELAXED); i++)
        ((volatile char *)data)[i * 7919 % 4096] = (char)(i >> 3);
    return NULL;
}

/* What is accepted is what was checked: each number of a header that is accepted is within the file. */
TEST(a_header_that_changes_while_it_is_read_is_one_or_the_other)
{
    const int fd = store_fixture_file();
    struct store_fixture f;
    struct error err;
    pthread_t thread;
    uint64_t size;

    store_fixture_open(&f, store_fixture_small, true, 0);
    store_fixture_write(&f.store, fd, -1, NULL);
    char *const memory = mmap(NULL, FILES_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, theirs[1], 0);
    ck_assert(memory != MAP_FAILED);
    serve(trace_file());
    const struct file file = serve_file(fd);
    ck_assert_int_eq(file_size(&size, &file, NULL), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, change, memory), 0);
    for (int i = 0; i < 300; i++) {
        struct weights weights;
        if (weights_open(&weights, &f.model, &file, 1, NULL, &err))
            continue;
        for (size_t k = 0; k < weights.files[0].n_entries; k++)
            ck_assert_uint_le(weights.files[0].entries[k].offset, size);
        weights_close(&weights);
    }
    __atomic_store_n(&stop_changing, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    store_fixture_close(&f);
}

/* ---- a model ---------------------------------------------------------------------------------------------------- */

/* Its table of tokens takes three windows. */
TEST(a_model_is_loaded_by_windows_with_the_same_bits)
{
    const int weights = store_fixture_file(), moments = store_fixture_file();
    struct model_config config = store_fixture_big;
    struct store_fixture from, to;
    struct error err = {""};

    config.vocabulary = 2 * FILE_WINDOW / 4 / config.width + 1000;
    serve(trace_file());
    store_fixture_open(&from, config, true, 0);
    store_draw(&from.store, 7);
    for (uint64_t i = 0; i < from.store.own.trained_n; i++)
        from.store.m[i] = (float)(i % 1013) - 500, from.store.v[i] = (float)(i % 997);
    store_fixture_write(&from.store, weights, moments, NULL);
    const struct file files_of[] = {serve_file(weights), serve_file(moments)};
    store_fixture_open(&to, config, true, 0);
    ck_assert_msg(store_fixture_load(&to.store, &files_of[0], 1, &err) == 0, "%s", err.text);
    ck_assert_msg(store_fixture_load_moments(&to.store, &files_of[1], &err) == 0, "%s", err.text);
    for (uint32_t u = 0; u < from.model.n_units; u++) {
        const size_t n = from.model.units[u].n * sizeof(float);
        ck_assert_msg(memcmp(store_weights(&to.store, u), store_weights(&from.store, u), n) == 0, "unit %u", u);
    }
    struct store_fixture *both[] = {&from, &to};
    for (struct store_piece at = {0}; store_fixture_next(&from, &at);) {
        const uint64_t first = from.model.units[at.unit].trained_offset + at.piece->offset;
        ck_assert(memcmp(both[0]->store.m + first, both[1]->store.m + first, at.piece->n * sizeof(float)) == 0);
        ck_assert(memcmp(both[0]->store.v + first, both[1]->store.v + first, at.piece->n * sizeof(float)) == 0);
    }
    store_fixture_close(&from);
    store_fixture_close(&to);
}

/* ---- the trace -------------------------------------------------------------------------------------------------- */

TEST(events_that_are_sent_are_appended_whole)
{
    const int fd = trace_file(), socket = files_take_trace(files);
    struct trace trace;

    serve(fd);
    trace_open(&trace, socket, "epsd", "optimizer");
    for (int i = 0; i < 100; i++)
        trace_end(&trace, trace_clock(), "fold", "h.3", NULL);
    ck_assert_int_eq(trace_close(&trace), 0);
    close(socket);
    client_files_close(served);
    served = NULL;
    char *text = processes_read("trace");
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, "\"name\":\"fold h.3\"}")); at++)
        n++;
    ck_assert_uint_eq(n, 100);
    free(text);
}

TEST(events_that_the_disk_does_not_take_are_told_of)
{
    const int fd = open("/dev/full", O_WRONLY | O_APPEND | O_CLOEXEC), socket = files_take_trace(files);
    struct trace trace;

    serve(fd);
    trace_open(&trace, socket, "epsd", "optimizer");
    ck_assert_int_eq(trace_close(&trace), 0);
    close(socket);
    ck_assert_int_eq(client_files_close(served), -ENOSPC);
    served = NULL;
    close(fd);
}

/* Whoever else has the socket cannot make the sender wait. */
TEST(events_that_are_not_taken_at_once_are_dropped_and_counted)
{
    const int socket = files_take_trace(files);
    struct trace trace;

    fcntl(socket, F_SETFL, 0);
    trace_open(&trace, socket, "epsd", "optimizer");
    for (int i = 0; i < 20000; i++)
        trace_end(&trace, trace_clock(), "fold", "h.3", NULL);
    ck_assert_uint_gt(trace.n_dropped, 0);
    ck_assert_int_eq(trace_close(&trace), -ENOBUFS);
    close(socket);
    serve(trace_file());
}
