/* OpenMP reads OMP_NUM_THREADS when a program begins, so --threads sets it for the processes that this one starts; this
 * one's own threads, which read data, ask for it later (client/data/pieces.h). */
#include "tools/usual.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_THREADS = 1024 };

void usual_add(struct table_options *options, struct usual *usual, const char *quiet)
{
    const struct argument both[] = {
        {"Process", .kind = ARGUMENT_HEADING},
        {"--threads", "N", ARGUMENT_COUNT, &usual->threads,
         "computing threads of this command and of each process that it starts; default: OMP_NUM_THREADS, else one per "
         "processor"},
        {"--quiet", NULL, ARGUMENT_FLAG, &usual->quiet, quiet}};

    table_options_add(options, both, quiet ? 3 : 2);
}

int usual_apply(const struct usual *usual, const struct command *command, const char *remote)
{
    char sentence[300], number[16];

    if (usual->threads == 0)
        return -1;
    if (remote) {
        snprintf(sentence, sizeof sentence,
                 "--threads %" PRIu32 " does not go with --connect %.100s, whose processes have their own: set "
                 "OMP_NUM_THREADS where they start",
                 usual->threads, remote);
        return arguments_fail(command, -EDOM, sentence);
    }
    if (usual->threads > MOST_THREADS) {
        snprintf(sentence, sizeof sentence, "--threads %" PRIu32 " is more than %d", usual->threads, MOST_THREADS);
        return arguments_fail(command, -EDOM, sentence);
    }
    snprintf(number, sizeof number, "%" PRIu32, usual->threads);
    return setenv("OMP_NUM_THREADS", number, 1) ? arguments_fail(command, -ENOMEM, "out of memory") : -1;
}
