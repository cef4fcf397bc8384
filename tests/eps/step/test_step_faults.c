/* What a job that ends for damaged memory says. */
#include "tests/kit/test.h"

#include "eps/step/faults.h"

#include <errno.h>

/* Host 1 owns a unit, to which another host's slice of step 5 came while its own workers are in step 4. */
TEST(an_owner_names_a_slice_that_was_damaged_before_its_step_is_open_here)
{
    struct model_layer layer = {.kind = MODEL_SINGLE, .name = "norm"};
    struct model_unit unit = {.id = (uint64_t)MODEL_SINGLE << 56};
    struct model_piece piece = {0};
    struct peers peers = {0};
    struct job job = {.peers = &peers,
                      .state = JOB_STEPPING,
                      .step = 3,
                      .facts.sharded = true,
                      .model = {.layers = &layer, .units = &unit, .pieces = &piece, .n_layers = 1, .n_units = 1}};
    struct steps steps = {.job = &job, .open.open_step.step = 3};
    const struct updater_task fold = {.kind = UPDATER_FOLD, .step = 4, .slice = 2, .result = -EBADMSG};

    faults_on_damaged(&steps, &fold);
    ck_assert_int_eq(job.state, JOB_ENDING);
    ck_assert_int_eq(job.end_code, -EIO);
    ck_assert_holds(job.end.text,
                    "host memory is damaged: in step 5, slice 2 of the contribution of a worker to unit norm");
}
