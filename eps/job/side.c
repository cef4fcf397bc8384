#include "eps/job/side.h"

#include "proto/model/checkpoint.h"
#include "proto/model/output.h"
#include "proto/model/side_file.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

static bool is_own_name(const char *name)
{
    static const char *const own[] = {CHECKPOINT_CONFIG, CHECKPOINT_WEIGHTS, CHECKPOINT_MOMENTS, CHECKPOINT_TRAINING};

    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return false;
}

enum { OWN_FILES = 3 }; /* those of own[] that training.json lists */

static int check_side(json_t *side, struct error *err)
{
    json_t *options = json_object_get(side, "options"), *files = json_object_get(side, "files"), *text;
    const char *name;
    size_t n;

    if (!json_is_object(options) || (files && !json_is_object(files)))
        return error_set(err, -EINVAL, "the job's side file: not {\"options\": {...}, \"files\": {...}}");
    if (json_object_size(files) > CHECKPOINT_MAX_FILES - OWN_FILES)
        return error_set(err, -EINVAL,
                         "the job's side file: %zu files, where a checkpoint has room for %d beside its own",
                         json_object_size(files), CHECKPOINT_MAX_FILES - OWN_FILES);
    json_object_foreach(files, name, text)
    {
        if (!output_is_name(name) || is_own_name(name) || side_file_size(&n, name, text) != 0)
            return error_set(err, -EINVAL,
                             "the job's side file: %.80s is neither a text with a name ending in .json, .txt or .jinja "
                             "nor tokenizer.model in base64",
                             name);
    }
    return 0;
}

int side_parse(json_t **out, const char *side, size_t side_bytes, struct error *err)
{
    json_error_t why;

    *out = json_loadb(side, side_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!*out)
        return error_set(err, -EINVAL, "the job's side file: %s at byte %d", why.text, why.position);
    int rc = check_side(*out, err);
    if (rc)
        json_decref(*out);
    return rc;
}

int side_products(struct products *out, const json_t *side, struct error *err)
{
    return products_from_json(out, json_object_get(json_object_get(side, "options"), "products"), err);
}
