/* Which messages a daemon takes from whom; what it does with them, and in which state, is tested by what they are
 * for. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/proto/wire/message_samples.h"

#include <string.h>
#include <unistd.h>

SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

static const char *const refusal = "a message that its role does not send";

#define OBSERVED " STATUS MEMORY UNITS WORKERS RECENT QUEUE FILES DRAIN SAVE "
static const char *const sent[] = {
    [ROLE_CLIENT] = OBSERVED "JOB DESCRIBE TAKE OPEN_STEP MAP EVALUATE GENERATE OUTPUT_DONE CLOSE ",
    [ROLE_VIEWER] = OBSERVED "SNAPSHOT ",
    [ROLE_WORKER] =
        " ASSIGNED REFUSED RELEASE FAILED PULL READ LOSS CONTRIBUTION DIGEST EVALUATED GENERATED LEDGER DRAIN ",
};

/* What the session itself takes, or says; and what ends the daemon. */
static const char *const others = " HELLO WELCOME GREETING PING PONG DISMISSED BYE STOP ";

static bool lists(const char *names, enum message_kind kind)
{
    return strstr(names, print(" %s ", message_name(kind))) != NULL;
}

/* True if it is taken, or refused for another reason: then what follows is, as a worker is in no job, and others are
 * answered. */
static bool is_taken(enum message_role role, enum message_kind kind)
{
    const struct message after = {.kind = role == ROLE_WORKER ? MESSAGE_PULL : MESSAGE_STATUS};
    struct message m = message_sample(kind);
    struct client_link link;
    struct error err = {""};
    int rc = 0, fd;

    driver_attach(&link, "lab", role);
    client_link_send(&link, &m);
    client_link_send(&link, &after);
    do {
        rc = client_link_next(&link, &m, &fd, &err);
        if (fd >= 0)
            close(fd);
    } while (rc == 0 && m.kind != MESSAGE_STATUS_REPLY);
    client_link_free(&link);
    return !strstr(err.text, refusal);
}

TEST_RANGE(each_role_sends_what_is_its_own, ROLE_CLIENT, ROLE_VIEWER + 1)
{
    processes_daemon("lab", 0, NULL);
    for (enum message_kind kind = MESSAGE_HELLO; kind < MESSAGE_KINDS; kind++)
        if (!lists(others, kind))
            ck_assert_msg(is_taken((enum message_role)_i, kind) == lists(sent[_i], kind), "%s by role %d",
                          message_name(kind), _i);
}
