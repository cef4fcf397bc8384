/* tests/proto/wire/session_of.h - sessions with peers of other users, for tests of what depends on the user alone. */
#ifndef TESTS_PROTO_WIRE_SESSION_OF_H
#define TESTS_PROTO_WIRE_SESSION_OF_H

#include "proto/wire/session.h"

/* A session that has this user and nothing else: no link, no life. What is sent goes nowhere. Borrowed; the last 64 are
 * there. */
struct session *session_of(uid_t uid);

#endif
