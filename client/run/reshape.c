/* eps_reshape: what eps_train does with grow and replace before its first step, by itself. The options that the run is
 * found by are those of a run that resumes elsewhere, so every refusal is the same. */
#include "client/eps.h"

#include "client/daemon/observer.h"
#include "client/run/grow.h"
#include "client/run/replace.h"

#include <errno.h>
#include <string.h>

static int reshape_ask(void *data, struct error *err)
{
    const struct eps_reshape_options *options = data;

    return options->should_stop(options->user) ? error_set(err, -EINTR, "interrupted") : 0;
}

static int reshape(const struct eps_reshape_options *options, struct error *err)
{
    struct eps_reshape_options asked = *options;
    const struct client_watch watch = {options->should_stop ? reshape_ask : NULL, &asked};
    struct eps_train_options in = eps_train_defaults();
    char written[PATH_MAX];
    struct error note = {""};

    in.resume = options->run, in.out = options->out;
    if (!in.resume || !in.out)
        return error_set(err, -EDOM, "%s",
                         in.resume ? "no `out`: the directory of the run that goes on with the other model"
                                   : "no `run`: the directory of the run, or a checkpoint in it");
    if (!options->grow == !options->replace)
        return error_set(err, -EDOM, "one of `grow` and `replace` says what changes: %s",
                         options->grow ? "reshape by the one, and what that wrote by the other" : "name one");
    in.grow = options->grow, in.replace = options->replace;
    const int rc = (in.grow ? client_grow : client_replace)(written, NULL, &in, &watch, &note, err);
    if (note.text[0] && options->on_note)
        options->on_note(options->user, note.text);
    return rc;
}

int eps_reshape(const struct eps_reshape_options *options, struct eps_error *error)
{
    struct error err = {""};
    const int rc = reshape(options, &err);

    return client_report(error, &err, rc);
}
