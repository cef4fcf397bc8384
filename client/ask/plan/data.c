/* eps_plan_data: what a plan takes from the data. It opens the run as eps_train does, up to its resolved options, so
 * that both choose alike; the run is then let go, as it has neither a directory nor a daemon yet. */
#include "client/daemon/observer.h"
#include "client/eps.h"
#include "client/options/options.h"
#include "client/options/value.h"
#include "client/run/run.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Workers of a daemon are not asked for: a plan's are its own. */
static int plan_data_resolve(struct client_run *run, const struct eps_train_options *in, struct error *err)
{
    struct eps_train_options asked = *in;
    int rc;

    asked.connect = NULL;
    rc = client_run_new(run, &asked, &asked, NULL, err);
    return rc ? rc : client_run_resolve(run, 0, err);
}

/* Without data, what says how they are read would change nothing. */
static int plan_data_check(const struct eps_train_options *in, struct error *err)
{
    static const char *const names[] = {"--eval-data", "--columns", "--separator", "--chat-template",
                                        "--train-on",  "--long",    "--order",     "--split-special-tokens",
                                        "--seed",      "--steps",   "--epochs",    "--mask-fraction"};
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; in->n_data == 0 && i < n; i++)
        for (size_t k = 0; rows[i].name && k < sizeof names / sizeof *names; k++)
            if (rows[i].plan && strcmp(rows[i].name, names[k]) == 0 && client_option_is_set(in, &rows[i]))
                return error_set(
                    err, -EDOM,
                    "%s says how --data are read, and a plan without them reads none: give --data, or leave it out",
                    names[k]);
    return 0;
}

int eps_plan_data(struct eps_train_options *options, struct eps_error *error)
{
    struct client_run run;
    struct error err = {""};
    int rc = plan_data_check(options, &err);

    if (rc || options->n_data == 0)
        return client_report(error, &err, rc);
    rc = plan_data_resolve(&run, options, &err);

    if (!rc) {
        const struct eps_train_options *o = &run.options;
        const struct plan_goal goal = client_run_goal(&run);
        options->model = o->model, options->teaches = o->teaches;
        options->batch = o->batch, options->seq = o->seq, options->source_seq = o->source_seq;
        options->parts = o->parts, options->steps = o->steps, options->epochs = NAN;
        options->n_labels = o->task == EPS_CLASSIFY ? run.model.config.n_labels : 0;
        options->dpo_beta = o->dpo_beta, options->dpo_smoothing = o->dpo_smoothing;
        options->data_tokens = goal.entries;
        options->mask_fraction = o->mask_fraction;
    }
    client_run_close(&run);
    return client_report(error, &err, rc);
}
