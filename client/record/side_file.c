#include "client/record/side_file.h"

#include "proto/model/checkpoint.h"
#include "proto/wire/segment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPTIONS_BYTES = 64 << 10 }; /* room for the options */
enum { LEARNED_BYTES = 96 };       /* per learned token: English takes 46, a script with two bytes a letter 80 */

/* Prints a side file. Owned; NULL: no memory. options may be NULL. */
static char *print_side(json_t *options, json_t *files)
{
    json_t *side = json_object(), *none = json_object();
    const int rc = json_object_set(side, "options", options ? options : none) ||
                   json_object_set(side, "files", files ? files : none);
    char *text = rc ? NULL : json_dumps(side, JSON_INDENT(1));

    json_decref(side);
    json_decref(none);
    return text;
}

uint64_t client_side_file_saved_bytes(json_t *files, const struct eps_preset *preset)
{
    const bool learns = preset && preset->learns;
    char *text = print_side(NULL, learns ? NULL : files); /* the same size before and after learning */
    const size_t n = text ? strlen(text) : 0;

    free(text);
    return n ? n + (learns ? (uint64_t)LEARNED_BYTES * preset->vocabulary : 0) : 0;
}

uint64_t client_side_file_bytes(json_t *files, const struct eps_preset *preset)
{
    const uint64_t n = client_side_file_saved_bytes(files, preset);

    return n ? n + OPTIONS_BYTES : 0;
}

int client_side_file_create(int *fd, json_t *options, json_t *files, size_t room, struct error *err)
{
    char *text = print_side(options, files);
    size_t n = text ? strlen(text) : 0;
    int rc;

    *fd = -1;
    if (text && n < room) {
        char *const padded = realloc(text, room);
        if (padded)
            memset(padded + n, ' ', room - n);
        else
            free(text);
        text = padded, n = room;
    }
    if (!text)
        return error_set(err, -ENOMEM, "out of memory");
    rc = n > CHECKPOINT_MAX_TEXT ? error_set(err, -EFBIG, "options and tokenizer take %zu bytes, more than %d MiB", n,
                                             CHECKPOINT_MAX_TEXT >> 20)
                                 : 0;
    if (!rc) {
        *fd = segment_seal("the run's side file", text, n, err);
        rc = *fd < 0 ? *fd : 0;
        *fd = rc ? -1 : *fd;
    }
    free(text);
    return rc;
}
