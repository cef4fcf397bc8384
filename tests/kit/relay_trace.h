/* tests/kit/relay_trace.h - the relay's events and actions as lines of text, as its specification writes them.
 *
 *   config parts=2 slices=1 slots=2 accumulators=1 optimizer=adama commit=eager deterministic=0 replay=1
 *   attached 0
 *   open 0 0,1,0 - 0,0             step, units by visit, frozen units, owners by part; then, if the visits differ in
 *     share 0 0 0:0 1:0            slices, those, which is a column that the specification lacks
 *
 * An action stands under its event, indented by two. Blanks in a reason are written as '_'. Readers may have names. */
#ifndef TESTS_KIT_RELAY_TRACE_H
#define TESTS_KIT_RELAY_TRACE_H

#include "eps/relay/relay.h"

#include <stdio.h>

enum { TRACE_LIST = 64, TRACE_READERS = 8, TRACE_NAME_BYTES = 16 };

struct relay_trace {
    struct relay *relay; /* NULL before the first config line */
    struct relay_config config;
    uint32_t n_slices;
    char readers[TRACE_READERS][TRACE_NAME_BYTES]; /* those that are not numbers; each is its place here */
    uint32_t visits[TRACE_LIST], slices[TRACE_LIST], frozen[TRACE_LIST], owners[TRACE_LIST];
};

/* Feeds one line that is not indented; a config line begins anew. Writes the actions, each a line, to out.
 * Returns 0, -EINVAL for a line that is neither, or what the relay returned. trace begins zeroed.
 * Undo: relay_trace_free. */
int relay_trace_feed(struct relay_trace *trace, const char *line, FILE *out);
void relay_trace_free(struct relay_trace *trace);

void relay_trace_config(FILE *out, const struct relay_config *config, uint32_t n_slices);
/* Readers are written as numbers. */
void relay_trace_event(FILE *out, const struct relay_event *event);
/* trace (or NULL) knows the names of readers. */
void relay_trace_action(FILE *out, const struct relay_trace *trace, const struct relay_action *action);

#endif
