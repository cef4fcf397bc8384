/* tests/kit/puppet.h - a worker of a real daemon that contributes what the test wants.
 *
 * It has no device: it asks for weights visit by visit, upwards, then again downwards, and contributes a pattern, to
 * the end of each step, whatever becomes of it. What it does amiss it does in step 1, the second, unless it is said
 * below. */
#ifndef TESTS_KIT_PUPPET_H
#define TESTS_KIT_PUPPET_H

#include <stdint.h>
#include <sys/types.h>

enum { PUPPET_REFUSED = 9, PUPPET_GIVEN = 3 }; /* exit status of one whose session the daemon refused; else 0 */

enum puppet_fault {
    /* What is not finite. Of two: that below the topmost, which comes right behind it; being of the lower unit, it is
     * judged first however late the optimizer thread wakes. */
    PUPPET_IN_FIRST_CONTRIBUTION,
    PUPPET_IN_LAST_CONTRIBUTION,
    PUPPET_IN_LOSS,
    PUPPET_NOWHERE,
    PUPPET_IN_FIRST_OF_TWO,
    /* What breaks the relay's rules: a unit that the model has not. */
    PUPPET_PULLS_AMISS,
    /* It cannot finish its share. */
    PUPPET_FAILS,
    /* None: weights of a step that is over, in the middle of the next and before there is one. It takes nothing but
     * VOID for an answer: else it exits with PUPPET_GIVEN. */
    PUPPET_PULLS_LATE,
    /* None, and its device is one that computes beside the optimizer. */
    PUPPET_BESIDE,
    /* The same, and it pulls the topmost block first, for a job of one part that remembers norms: of each token it must
     * find the last step's, as it contributes them, puppet_norm; else it exits with PUPPET_GIVEN. */
    PUPPET_FINDS_NORMS,
    /* Its process ends, once the daemon has its loss. */
    PUPPET_DIES,
    /* The same, once its first contribution is folded. */
    PUPPET_DIES_LATER,
    /* The same, but its process is stopped (SIGSTOP). */
    PUPPET_STOPS_LATER,
    /* What it never does, though its session is in order and answers each PING: answer ASSIGN; contribute; answer
     * RELEASE, after it failed in step 0; wait its turn: all that it asks for is what only it could bring about. */
    PUPPET_NEVER_ASSIGNED,
    PUPPET_NEVER_CONTRIBUTES,
    PUPPET_NEVER_RELEASES,
    PUPPET_PULLS_AHEAD,
    /* No worker for any job: its device is called "foo", or nothing; it refuses ASSIGN, which another one may accept;
     * its process ends at ASSIGN, or as soon as it is attached. */
    PUPPET_STRANGE,
    PUPPET_NAMELESS,
    PUPPET_REFUSES,
    PUPPET_REFUSES_ONCE, /* and then behaves */
    PUPPET_DIES_ASSIGNED,
    PUPPET_DIES_ATTACHED,
};

/* A process that plays one, attached to the daemon of this name. Before any session of the caller's. */
pid_t puppet_start(const char *name, enum puppet_fault fault);
/* The same; it counts work with each PONG, whatever it does. */
pid_t puppet_start_counting(const char *name, enum puppet_fault fault);
/* As puppet_start, in this process, which ends with it. */
void puppet_play(const char *name, enum puppet_fault fault) __attribute__((noreturn));
/* Until the daemon has a worker. */
void puppet_await(const char *name);

/* Number i of its contribution to a visit in step 0; it doubles from step to step, so that no step's norm is
 * another's. */
float puppet_pattern(uint32_t visit, uint64_t i);
/* Each norm behind its contributions in a step. */
float puppet_norm(uint64_t step);

#endif
