/* eps/job/job_internal.h - how a job begins. For eps/job/ alone; everyone else includes eps/job/job.h. */
#ifndef EPS_JOB_JOB_INTERNAL_H
#define EPS_JOB_JOB_INTERNAL_H

#include "eps/job/job.h"

/* In job_plan.c. Builds the model, judges the request and sizes everything: 0, or a sentence and -EINVAL, -ENOMEM (too
 * little room on the host), -EPERM, -EACCES. */
int job_plan(struct job *job, struct error *err);

/* In job_load.c. Takes the request's descriptors in every case, and reads config.json. */
int job_take_files(struct job *job, const int *fds, unsigned n_fds, struct error *err);
/* On the optimizer thread: its team touches the pages first, and it may wait for disks. context: the job. Errors go
 * to its load_error. */
int job_do_load(void *context);
/* On the optimizer thread: makes a seat's memory anew. context: the seat. */
int job_do_renew(void *context);
/* On the optimizer thread: gives all large memory back. 4 GiB take as long as a step. */
int job_do_unload(void *context);

#endif
