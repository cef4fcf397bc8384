/* client/order/sample.h - the samples that a row is made of, by their numbers. */
#ifndef CLIENT_ORDER_SAMPLE_H
#define CLIENT_ORDER_SAMPLE_H

#include <stdint.h>

enum client_part { CLIENT_TRAIN, CLIENT_HELD_OUT };

/* Which row of a part, and what else its values depend on. */
struct client_sample {
    uint64_t id;   /* text, masked: a window's number; labelled, images: a row's, in the data's order */
    uint64_t draw; /* masked, images: the row's number in the run, by which masks, or views, are drawn; else unused */
};

#endif
