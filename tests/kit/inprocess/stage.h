/* tests/kit/inprocess/stage.h - a daemon's and its peers' sides of sessions on one loop, raw sockets that say anything,
 * and processes. */
#ifndef TESTS_KIT_INPROCESS_STAGE_H
#define TESTS_KIT_INPROCESS_STAGE_H

#include "proto/wire/connection.h"
#include "proto/wire/session.h"

#include <sys/types.h>

struct stage {
    uv_loop_t loop;
    uv_timer_t watchdog;
    char directory[80];
    struct session_listener *listener;
    int gate;           /* to the other process, of stage_fork */
    bool by_connection; /* peers are viewers, whose sessions have no channel */
};

/* What happened to one side; the callbacks find it by session_data. PULLs count up by their version, checked. */
struct side {
    struct session *s;      /* NULL before and after */
    struct side *next;      /* takes the daemon's next session */
    unsigned n_turned_away; /* sessions of the daemon's that ended before they were open; reason tells of the last */
    unsigned n_opened, n_received, n_closed;
    unsigned n_to_send; /* PULLs, by on_open */
    int fds[4];         /* the last that came */
    unsigned n_fds;
    struct message peer, last;
    char reason[ERROR_TEXT_BYTES]; /* "" for NULL */
    enum message_end end;
    bool close_on_open, close_on_message;
    unsigned cost; /* of a message, by session_charge */
    const char *refuse_on_open;
    unsigned tick_ms;     /* set by on_open; 0: a second */
    struct side *overdue; /* its tick is due once this side has had a message, as if that had kept this side busy */
};

extern const struct session_events side_events;
extern const struct message worker_hello;

void stage_begin(struct stage *st); /* a fresh directory and loop */
void stage_listen(struct stage *st, struct side *daemon);
/* The peer waits for the daemon, however busy the machine is: until it is open it never starts again. */
void stage_connect(struct stage *st, struct side *peer);
void stage_open(struct stage *st, struct side *daemon, struct side *peer); /* the three, until both are open */
/* Runs the loop until *count reaches n; aborts after two minutes. */
void stage_run_until(struct stage *st, const unsigned *count, unsigned n);
/* One side closes its session, and the loop runs until the other has seen that. */
void stage_close(struct stage *st, const struct side *closing, const struct side *other);
/* Unlistens; sees that no handle stays in the loop and nothing in the file system. Close the sessions before. */
void stage_end(struct stage *st);

void side_send_pulls(struct session *s, unsigned first, unsigned n);

/* Runs body in another process, which is killed with this one; before any nanomsg call of this one. */
pid_t stage_fork(struct stage *st, void (*body)(struct stage *st));
void stage_signal(struct stage *st); /* between the two: each await ends with a signal */
void stage_await(struct stage *st);
void stage_kill(pid_t pid);

/* A daemon in a process of its own, which does nothing but this with each message that comes. It listens on return.
 * Ends with its directory. */
pid_t stage_begin_daemon(struct stage *st, void (*on_message)(struct session *s, const struct message *m,
                                                              const int *fds, unsigned n_fds));
void stage_end_daemon(struct stage *st, pid_t pid);

/* A peer that says what it likes: a connection, and once attached a channel, unless the stage is by_connection: then
 * what is said by the channel below goes over the connection. */
struct raw {
    int fd, channel;
    uint64_t sent_by_connection, sent_by_channel;
    uint32_t id;
};

void raw_connect(struct raw *raw, struct stage *st);
void raw_connect_at(struct raw *raw, struct stage *st, const char *connection); /* by its name */
int raw_try_at(struct raw *raw, struct stage *st, const char *connection);      /* 0 or -errno */
void raw_send(struct raw *raw, const void *bytes, size_t n);
void raw_say(struct raw *raw, const struct message *m); /* numbered rightly */

/* What a hostile one says: bytes as they are, or a message whose number is off by `skip`. By the channel if there is
 * one, or over the connection. */
struct raw_word {
    const void *bytes; /* (n) */
    size_t n;
    const struct message *message; /* if bytes is NULL */
    int skip;
    bool through_connection;
};
#define RAW_BYTES(bytes_, n_)                                                                                          \
    {                                                                                                                  \
        .bytes = (bytes_), .n = (n_)                                                                                   \
    }
#define RAW_MESSAGE(...)                                                                                               \
    {                                                                                                                  \
        .message = &(const struct message)                                                                             \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
void raw_utter(struct raw *raw, const struct raw_word *word);
void raw_send_channel(struct raw *raw, const void *bytes, size_t n);
void raw_say_channel(struct raw *raw, const struct message *m);
/* The next packet from the connection, the loop turning meanwhile; 0 at its end. */
size_t raw_receive(struct raw *raw, struct stage *st, uint8_t *bytes, size_t cap);
void raw_expect(struct raw *raw, struct stage *st, enum message_kind kind, struct message *out);
void raw_attach(struct raw *raw, struct stage *st); /* as far as GREETING, not said yet */
void raw_greet(struct raw *raw, struct stage *st);
void raw_open(struct raw *raw, struct stage *st, const struct side *daemon); /* both, until the daemon's is open */
/* DISMISSED for this reason, and it closes. */
void raw_expect_dismissed(struct raw *raw, struct stage *st, const char *reason);
void raw_send_fds(struct raw *raw, const struct message *m, unsigned n_fds);   /* copies of its own descriptor */
ssize_t raw_try_fds(struct raw *raw, const struct message *m, unsigned n_fds); /* as sendmsg */
void raw_close(struct raw *raw);

/* Two ends of a tcp connection on loopback, of no stage; the caller closes them. Asserts. */
void stage_connect_pair(int ends[2]);

#endif
