/* proto/operation/schedule_merge.h - which buffers of a finished schedule share a place
 * (proto/operation/schedule.h). */
#ifndef PROTO_OPERATION_SCHEDULE_MERGE_H
#define PROTO_OPERATION_SCHEDULE_MERGE_H

#include "proto/operation/schedule.h"

/* What is left of a buffer that no step touches. */
extern const struct schedule_buffer schedule_no_buffer;

/* True of what other layers still read: inputs; the gradient of a sum that several layers add to. */
bool schedule_is_read_only(const struct program *p, const struct schedule_buffer *b);

/* Forward: an output takes the place of an input that the operation may write over and no later step reads. */
void schedule_merge_values(struct schedule *s, const struct program *p);

/* Backward: the same of gradients; those of inputs and of the first output's shape move to these places, where they are
 * free. entry: the buffer of the first output's gradient, or SCHEDULE_NONE. Sets s->passes. */
void schedule_merge_gradients(struct schedule *s, const struct program *p, int entry);

#endif
