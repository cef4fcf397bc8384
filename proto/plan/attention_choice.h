/* proto/plan/attention_choice.h - which way of proto/operation/attention_way.h a job computes attention in.
 *
 * Ways round differently, so all workers of a job have the same one, checkpoints store it, and a resumed run keeps it.
 * No algorithm of cuDNN's is taken for faster than our kernels before `eps bench` has timed it on the device. */
#ifndef PROTO_PLAN_ATTENTION_CHOICE_H
#define PROTO_PLAN_ATTENTION_CHOICE_H

#include "proto/plan/fit.h"

/* The way of a job. If it asks for none: the one in which attention of all its blocks takes the least time, by the
 * first profile that was measured, of those that all devices support; our own kernels without such a profile, in other
 * types than bf16, and for rows that are much shorter than the longest, as a library is prepared for one length.
 * Independent of budgets, as no budget changes a bit. */
enum plan_attention plan_attention_of(const struct plan_fit_asked *asked);

/* -EINVAL with a sentence: what the job asks for is not of its type, or a device does not support it. */
int plan_attention_check(const struct plan_fit_asked *asked, struct error *err);

/* Whether a device whose best way is `best` supports what the job asks for; always if it asks for none. */
bool plan_attention_meets(enum plan_attention best, enum plan_attention_wish wish);

/* -EINVAL with the sentence of a device that does not. */
int plan_attention_refuse(enum plan_attention best, enum plan_attention_wish wish, struct error *err);

/* The name of a wish, as --attention has it; a constant string. */
const char *plan_attention_wish_name(enum plan_attention_wish wish);

#endif
