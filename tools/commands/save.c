/* eps save: the output directory is asked for before the save, as the run may have ended when the save is complete. */
#include "client/eps.h"
#include "tools/commands.h"
#include "tools/screen/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* "OUT/step-N" */
static void print_saved(uint64_t step, const char *path, bool json)
{
    if (json)
        answer_print(json_pack("{s:I, s:o}", "step", (json_int_t)step, "path", text_json(path)));
    else
        printf("%s\n", path);
}

static int save_save(struct eps_observer *observer, const struct asked *asked, struct eps_error *error)
{
    struct eps_status status;
    char path[300];
    uint64_t step;
    int rc = eps_observer_status(observer, &status, error); /* its strings are valid until the next call */

    if (!rc)
        snprintf(path, sizeof path - 40, "%s", status.out);
    if (!rc)
        rc = eps_observer_save(observer, &step, error);
    if (!rc) {
        snprintf(path + strlen(path), 40, "/step-%" PRIu64, step);
        print_saved(step, path, asked->json);
    }
    return rc;
}

int command_save(int argc, char **argv)
{
    static const struct request request = {
        "eps save",
        "Saves a checkpoint of the live run to its output directory while training goes on, and prints its path when "
        "it is complete. Ctrl-C ends the wait, not the save.",
        "print an object with step and path",
        save_save,
        .takes_job = false,
    };

    return request_command(argc, argv, &request);
}
