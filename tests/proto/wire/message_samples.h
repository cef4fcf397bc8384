/* tests/proto/wire/message_samples.h - a message of each kind, with a value of its own in every field. */
#ifndef TESTS_PROTO_WIRE_MESSAGE_SAMPLES_H
#define TESTS_PROTO_WIRE_MESSAGE_SAMPLES_H

#include "proto/wire/message.h"

/* Zeroed first, padding included, so that two can be compared as bytes. */
struct message message_sample(enum message_kind kind);

#endif
