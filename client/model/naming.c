/* A snapshot in the Hugging Face hub's cache is a directory that is named by its commit, as a checkpoint is by its
 * step. The step tells checkpoints apart; a commit tells a reader nothing, so the name of the model stands for it. */
#include "client/model/model.h"

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The model's name in a path into the Hugging Face hub's cache, ".../models--ORG--NAME/snapshots/COMMIT"; NULL: it is
 * none. In place. */
static char *naming_in_cache(char *path)
{
    char *at = strstr(path, "/models--"), *name = at ? strstr(at + 9, "--") : NULL;
    const size_t n = name ? strcspn(name, "/") : 0;

    if (n <= 2 || strncmp(name + n, "/snapshots/", 11) != 0 || strchr(name + n + 11, '/'))
        return NULL;
    name[n] = 0;
    return name + 2;
}

void client_model_call(struct client_model *model, const char *path, bool directory)
{
    char real[PATH_MAX], *name;

    if (!realpath(path, real))
        snprintf(real, sizeof real, "%s", path);
    char *const cached = directory ? naming_in_cache(real) : NULL;
    name = cached ? cached : basename(real);
    if (!directory && strcmp(name, "config.json") == 0) {
        char *parent = dirname(real); /* basename points into real, and dirname cuts off before it */
        name = basename(parent);
    } else if (!directory && strlen(name) > 5 && strcmp(name + strlen(name) - 5, ".json") == 0) {
        name[strlen(name) - 5] = 0;
    }
    snprintf(model->name, sizeof model->name, "%s", strcmp(name, "/") == 0 ? "model" : name);
}
