#include "eps/drain.h"
#include "eps/step/membership.h"
#include "tests/system/world/world.h"

/* Rare places: functions that are called where something uncommon happens. The linker brings their calls here
 * (CMakeLists.txt), so the product has no marks. A fault comes once in so many times. */
struct relay_worker;
struct relay_tag;

#define RARE(odds, name, parameters, ...)                                                                              \
    void __real_##name parameters;                                                                                     \
    void __wrap_##name parameters;                                                                                     \
    void __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        world_rare(#name, odds);                                                                                       \
        __real_##name(__VA_ARGS__);                                                                                    \
    }

RARE(4, job_vacate, (struct job_seat * seat), seat)
RARE(4, job_renew_seat, (struct job_seat * seat), seat)
RARE(4, job_turn_away, (struct job_seat * seat, int code, const char *why), seat, code, why)
RARE(4, steps_share, (struct steps * steps, struct peer *worker), steps, worker)
RARE(4, membership_on_assigned, (struct steps * steps, struct peer *worker, const struct message *m), steps, worker, m)
RARE(4, save_on_first_step, (struct saves * saves), saves)
RARE(50, relay_put, (struct relay * r, struct relay_worker *w, uint32_t slot, const struct relay_tag *tag), r, w, slot,
     tag)
RARE(4, steps_note_change, (struct steps * steps), steps)
RARE(2, faults_suspect, (struct steps * steps, struct peer *worker, uint32_t id), steps, worker, id)
RARE(8, evaluate_start, (struct job * job, const struct message *m), job, m)
RARE(4, job_unload, (struct job * job, struct updater *updater), job, updater)
RARE(4, daemon_open_job,
     (struct daemon * d, struct peer *client, const struct message *m, const int *fds, unsigned n_fds), d, client, m,
     fds, n_fds)
