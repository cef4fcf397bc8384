/* eps/job/job_internal.h - how a job begins. For eps/job/ alone; everyone else includes eps/job/job.h. */
#ifndef EPS_JOB_JOB_INTERNAL_H
#define EPS_JOB_JOB_INTERNAL_H

#include "eps/job/job.h"

/* job_plan.c. The request is judged and everything sized: 0, or a sentence and -EINVAL, -ENOMEM (the host has not the
 * room), -EPERM, -EACCES. The model is there. */
int job_plan(struct job *job, struct error *err);

/* job_load.c. Takes the request's descriptors in every case, and reads config.json. */
int job_take_files(struct job *job, const int *fds, unsigned n_fds, struct error *err);
/* On the optimizer thread, whose team touches the pages first, and which may wait for disks. context: the job. What is
 * wrong is in its load_error. */
int job_do_load(void *context);
/* There too: gives all large memory back, of which 4 GiB take as long as a step. */
int job_do_unload(void *context);

#endif
