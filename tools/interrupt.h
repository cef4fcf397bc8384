/* tools/interrupt.h - Ctrl-C and SIGTERM, looked for where it suits: they are blocked, so that no handler is needed. */
#ifndef TOOLS_INTERRUPT_H
#define TOOLS_INTERRUPT_H

void interrupt_hold(void);

/* The number of the signal that waits, SIGINT before SIGTERM; 0: none. */
int interrupt_pending(void);

/* The same in the form that libeps asks; user is not looked at. */
int interrupt_should_stop(void *user);

#endif
