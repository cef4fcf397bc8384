#include "tests/proto/net/remote.h"

#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

struct stage remote_stage;
struct side remote_epsd, remote_worker, remote_later; /* the daemon's first session, its peer, and the daemon's next */
struct port *remote_port;
const uint8_t remote_key[KEY_BYTES] = {1, 2, 3}, remote_other_key[KEY_BYTES] = {1, 2, 4};
static int saved_stderr;

const char *remote_log_path(void)
{
    return processes_path("log");
}

void remote_listen_with(const struct port_options *options)
{
    struct port_options all = *options;
    struct error err = {""};

    if (!all.address)
        all.address = "tcp://127.0.0.1:0";
    all.key = remote_key;
    ck_assert_msg(port_listen(&remote_port, &remote_stage.loop, &all, remote_stage.listener, &err) == 0, "%s",
                  err.text);
}

void remote_begin(void)
{
    remote_epsd = remote_worker = remote_later = (struct side){0};
    remote_epsd.next = &remote_later;
    processes_setup();
    saved_stderr = dup(STDERR_FILENO);
    const int fd = open(remote_log_path(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    ck_assert_int_ge(fd, 0);
    dup2(fd, STDERR_FILENO);
    close(fd);
    stage_begin(&remote_stage);
    stage_listen(&remote_stage, &remote_epsd);
}

void remote_end(void)
{
    port_unlisten(remote_port);
    stage_end(&remote_stage); /* no handle is left */
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    processes_remove();
}

int remote_connect_from(unsigned from)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7F000000u + from)},
                       there = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port_number(remote_port)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&here, sizeof here), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&there, sizeof there), 0);
    return fd;
}

void remote_say(int fd, const void *bytes, size_t n)
{
    ck_assert_int_eq(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
}

bool remote_hear(int fd, uint8_t *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = recv(fd, bytes + at, n - at, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return false;
        if (got > 0)
            at += (size_t)got;
        else
            uv_run(&remote_stage.loop, UV_RUN_NOWAIT);
    }
    return true;
}

bool remote_is_closed(int fd)
{
    uint8_t byte;
    const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);

    return got == 0 || (got < 0 && errno != EAGAIN);
}

void remote_expect_end(int fd)
{
    uint8_t byte;

    ck_assert(!remote_hear(fd, &byte, 1));
    close(fd);
}

bool remote_shake(struct secured *c, enum handshake_channel channel, uint64_t session, const uint8_t *with)
{
    struct handshake_setup setup = {.calls = true, .channel = channel, .session = session};
    uint8_t out[HANDSHAKE_HELLO_BYTES], in[HANDSHAKE_HELLO_BYTES];
    const char *why;
    size_t n;

    c->fd = remote_connect_from(1);
    c->n_sent = 0;
    setup.key = with;
    randombytes_buf(setup.secret, sizeof setup.secret);
    handshake_begin(&c->h, &setup, out, &n);
    remote_say(c->fd, out, n);
    while (handshake_wants(&c->h) > 0) {
        if (!remote_hear(c->fd, in, handshake_wants(&c->h)) || handshake_take(&c->h, in, out, &n, &why) < 0)
            return false;
        if (n > 0)
            remote_say(c->fd, out, n);
    }
    cipher_init(&c->send, CIPHER_CHACHA, c->h.send);
    cipher_init(&c->receive, CIPHER_CHACHA, c->h.receive);
    return true;
}

void remote_join(struct remote *r)
{
    ck_assert(remote_shake(&r->control, HANDSHAKE_CONTROL, 0, remote_key));
    ck_assert(remote_shake(&r->bulk, HANDSHAKE_BULK, r->control.h.name, r->control.h.child));
}

size_t remote_seal_message(uint8_t frame[REMOTE_FRAME_BYTES], struct secured *c, const struct message *m)
{
    uint8_t payload[CONTROL_MAX_BYTES] = {1};
    const size_t n = 1 + message_encode(payload + 1, MESSAGE_MAX_BYTES, m);

    cipher_seal(&c->send, frame, payload, n, c->n_sent++);
    return CIPHER_HEADER_BYTES + n + CIPHER_TAG_BYTES;
}

void remote_send_message(struct secured *c, const struct message *m)
{
    uint8_t frame[REMOTE_FRAME_BYTES];

    remote_say(c->fd, frame, remote_seal_message(frame, c, m));
}

void remote_attach(struct remote *r)
{
    remote_join(r);
    remote_send_message(&r->control, &worker_hello);
    stage_run_until(&remote_stage, &remote_epsd.n_opened, 1);
}

void remote_leave(struct remote *r)
{
    close(r->control.fd);
    close(r->bulk.fd);
}
