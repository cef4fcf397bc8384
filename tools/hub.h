/* tools/hub.h - models by their name on the Hugging Face hub: found in its cache, or downloaded by hf, its own program,
 * once the user agrees. */
#ifndef TOOLS_HUB_H
#define TOOLS_HUB_H

#include "tools/arguments.h"

#include <limits.h>
#include <stdbool.h>

/* What is needed of a model. */
enum hub_files {
    HUB_MODEL,     /* config, tokenizer and weights */
    HUB_NO_WEIGHTS /* the first two */
};

struct hub {
    bool yes;                 /* --yes: download without asking */
    char directory[PATH_MAX]; /* of the model that was found */
};

/* The row of a command that takes --model. */
#define HUB_YES(hub)                                                                                                   \
    {                                                                                                                  \
        "--yes", NULL, ARGUMENT_FLAG, &(hub)->yes,                                                                     \
            "download without asking: a --model ORG/NAME of the Hugging Face hub that is not here yet"                 \
    }

/* True for "ORG/NAME" in the hub's characters. */
bool hub_is_name(const char *text);

/* If *model (may be NULL) is a name of the hub, and neither a file here nor begins with a directory's, sets *model to
 * the directory of its newest snapshot in the hub's cache, which is downloaded if it is not there and hf is: on a
 * terminal after asking, else with --yes alone. Without hf *model stays, and libeps tells what to do. Returns -1 to go
 * on, or the exit status after a sentence. */
int hub_find(struct hub *hub, const char **model, enum hub_files files, const struct command *command);

/* Downloads what a model needs, whatever is there already, and prints the directory. Returns the exit status. */
int hub_pull(struct hub *hub, const char *name, const struct command *command);

#endif
