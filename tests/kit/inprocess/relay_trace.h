/* tests/kit/inprocess/relay_trace.h - a relay that is fed lines of text, and writes its actions as lines: the form of
 * the traces that its executable specification writes.
 *
 *   config parts=2 slices=1 slots=2 accumulators=1 optimizer=adama commit=eager deterministic=0 replay=1
 *   attached 0 1             a worker, and its room; without it, unlimited
 *   open 0 0,1,0 - 0,0       step, units by visit, frozen units, owners by part; then, if the visits differ in slices,
 *     share 0 0 0:0 1:0      those
 *
 * Blanks in a reason are written as '_'. */
#ifndef TESTS_KIT_INPROCESS_RELAY_TRACE_H
#define TESTS_KIT_INPROCESS_RELAY_TRACE_H

#include "eps/relay/relay.h"

#include <stdint.h>
#include <stdio.h>

enum { RELAY_TRACE_BYTES = 4096 /* most of a line */, RELAY_TRACE_LIST = 64 /* most numbers of a list */ };

/* Begins zeroed. */
struct relay_trace {
    struct relay *relay; /* NULL before the first config line */
    struct relay_config config;
    uint32_t n_slices;
    FILE *out; /* of relay_trace_say, into: */
    char said[RELAY_TRACE_BYTES];
    uint32_t visits[RELAY_TRACE_LIST], slices[RELAY_TRACE_LIST], frozen[RELAY_TRACE_LIST], owners[RELAY_TRACE_LIST];
};

/* Feeds one line that is not indented; a config line begins anew. Writes the actions, each a line, to out. Returns 0,
 * -EINVAL for a line that is neither, or what the relay returned. */
int relay_trace_feed(struct relay_trace *trace, const char *line, FILE *out);
/* The same of a line as printf has it, which the relay accepts: asserts. The actions, until the next line. */
const char *relay_trace_say(struct relay_trace *trace, const char *format, ...) __attribute__((format(printf, 2, 3)));
void relay_trace_free(struct relay_trace *trace);

#endif
