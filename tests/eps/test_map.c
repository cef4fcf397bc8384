/* MAP: whom the daemon gives its weights to, and when. What they are: tests/system/commands/test_served_weights.c. */
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static void setup(void)
{
    processes_setup();
    processes_daemon("lab", 1, NULL);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, processes_remove)

static void ask(struct client_link *link, uint32_t first)
{
    client_link_send(link, &(struct message){.kind = MESSAGE_MAP, .map.first = first});
}

static void expect_end(struct client_link *link, const char *why)
{
    struct error err;
    struct message m;
    int fd = -1;

    while (client_link_next(link, &m, &fd, &err) == 0)
        ck_assert_int_ne(m.kind, MESSAGE_MAPPED);
    ck_assert_holds(err.text, why);
    ck_assert_int_eq(fd, -1);
}

TEST(a_client_at_rest_gets_them_to_read)
{
    struct driver driver;
    struct segment weights;
    struct error err;
    struct message m;
    int fd;

    driver_open(&driver, "lab", &(struct driver_options){.n_layers = 2});
    driver_train(&driver, 3);
    driver_await_done(&driver, 3);
    ask(&driver.link, 0);
    ck_assert_int_eq(client_link_expect(&driver.link, MESSAGE_MAPPED, &m, &fd, &err), 0);
    ck_assert(m.mapped.step == 3 && m.mapped.first == 0 && m.mapped.n == m.mapped.n_units && m.mapped.n >= 2);
    ck_assert(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EPERM);
    ck_assert_int_eq(segment_attach(&weights, fd, m.mapped.weights_bytes, SEGMENT_READ, &err), 0);
    segment_close(&weights);
    ask(&driver.link, m.mapped.n_units - 1);
    ck_assert_int_eq(client_link_expect(&driver.link, MESSAGE_MAPPED, &m, NULL, &err), 0);
    ck_assert(m.mapped.first == m.mapped.n_units - 1 && m.mapped.n == 1);
    ask(&driver.link, UINT32_MAX);
    ck_assert_int_eq(client_link_expect(&driver.link, MESSAGE_MAPPED, &m, NULL, &err), 0);
    ck_assert_uint_eq(m.mapped.n, 0);
    driver_train(&driver, 4);
    driver_close(&driver);
}

TEST(nobody_gets_them_in_a_step)
{
    struct driver driver;

    driver_open(&driver, "lab", &(struct driver_options){.n_layers = 2, .vocabulary = 30000});
    driver_begin(&driver);
    ask(&driver.link, 0);
    expect_end(&driver.link, "a request that does not fit the state of its job");
    client_link_free(&driver.link);
}

TEST(no_viewer_gets_them)
{
    struct client_link viewer;
    struct driver driver;

    driver_open(&driver, "lab", &(struct driver_options){.n_layers = 2});
    driver_look(&viewer, "lab");
    ask(&viewer, 0);
    expect_end(&viewer, "a message that its role does not send");
    client_link_free(&viewer);
    driver_close(&driver);
}

/* What it asks is answered; this is not. */
TEST(no_client_gets_those_of_another_ones_job)
{
    struct client_link other;
    struct driver driver;
    struct message m;

    driver_open(&driver, "lab", &(struct driver_options){.n_layers = 2});
    driver_attach(&other, "lab", ROLE_CLIENT);
    ask(&other, 0);
    driver_status(&other, &m);
    ck_assert_int_eq(m.kind, MESSAGE_STATUS_REPLY);
    client_link_free(&other);
    driver_close(&driver);
}

TEST(an_evaluation_has_none_to_give)
{
    struct driver driver;

    driver_open(&driver, "lab", &(struct driver_options){.only_looks = true});
    ask(&driver.link, 0);
    expect_end(&driver.link, "a request that does not fit the state of its job");
    client_link_free(&driver.link);
}
