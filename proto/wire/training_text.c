/* The daemon reserves memory for this text, and eps plan predicts it, before the text exists: options, and a tokenizer
 * that is yet to be learned, come later. So it is padded with blanks to the room that was promised, and has one size in
 * all checkpoints of a run.
 *
 * On its way back it is untrusted. Its names become names of files in a directory, so each is checked, and none may be
 * that of a file which the checkpoint writes itself. */
#include "proto/wire/training_text.h"

#include "proto/base/dump.h"
#include "proto/model/adapter.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/model_files.h"
#include "proto/model/output.h"
#include "proto/wire/segment.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_BYTES = 64 << 10 }; /* room for the options */
enum { LEARNED_BYTES = 96 };       /* per learned token: English takes 46, a script with two bytes a letter 80 */

/* Owned; NULL: no memory. options and files may be NULL. */
static char *training_text_encode(json_t *options, json_t *files)
{
    json_t *all = json_object(), *none = json_object();
    const int rc = json_object_set(all, "options", options ? options : none) ||
                   json_object_set(all, "files", files ? files : none);
    char *text = rc ? NULL : dump_json(NULL, all, &(struct dump_form){.indent = " "});

    json_decref(all);
    json_decref(none);
    return text;
}

uint64_t training_text_saved_bytes(json_t *files, uint32_t n_learned)
{
    char *text = training_text_encode(NULL, n_learned ? NULL : files); /* the same size before and after learning */
    const size_t n = text ? strlen(text) : 0;

    free(text);
    return n ? n + (uint64_t)LEARNED_BYTES * n_learned : 0;
}

uint64_t training_text_room(json_t *files, uint32_t n_learned)
{
    const uint64_t n = training_text_saved_bytes(files, n_learned);

    return n ? n + OPTIONS_BYTES : 0;
}

int training_text_seal(int *fd, json_t *options, json_t *files, size_t room, struct error *err)
{
    char *text = training_text_encode(options, files);
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
        return error_memory(err);
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

static bool is_own_name(const char *name)
{
    static const char *const own[] = {CHECKPOINT_CONFIG, CHECKPOINT_WEIGHTS, ADAPTER_BASE,
                                      ADAPTER_WEIGHTS,   CHECKPOINT_MOMENTS, CHECKPOINT_TRAINING};

    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return false;
}

enum { OWN_FILES = 3 }; /* those of own[] that training.json lists */

static int training_text_check(json_t *parsed, struct error *err)
{
    json_t *options = json_object_get(parsed, "options"), *files = json_object_get(parsed, "files"), *text;
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
        if (!output_is_name(name) || is_own_name(name) || model_files_size(&n, name, text) != 0)
            return error_set(err, -EINVAL,
                             "the job's side file: %.80s is neither a text with a name ending in .json, .txt or .jinja "
                             "nor tokenizer.model in base64",
                             name);
    }
    return 0;
}

int training_text_parse(json_t **out, const char *text, size_t n_bytes, struct error *err)
{
    json_error_t why;

    *out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!*out)
        return error_set(err, -EINVAL, "the job's side file: %s at byte %d", why.text, why.position);
    int rc = training_text_check(*out, err);
    if (rc) {
        json_decref(*out);
        *out = NULL;
    }
    return rc;
}

int training_text_products(struct products *out, const json_t *parsed, struct error *err)
{
    return products_from_json(out, json_object_get(json_object_get(parsed, "options"), "products"), err);
}

int training_text_loss_scale(struct loss_scale *out, const json_t *parsed, struct error *err)
{
    const json_t *scale = json_object_get(json_object_get(parsed, "options"), "loss_scale");
    const double value = json_real_value(json_object_get(scale, "value"));
    const json_int_t n = json_integer_value(json_object_get(scale, "clean_steps"));
    int exponent;

    if (!scale)
        return 0;
    if (!(value >= 0x1p-100 && value <= 0x1p100) || frexp(value, &exponent) != 0.5 || n < 0 || n > INT32_MAX)
        return error_set(err, -EINVAL, "loss_scale is no power of two with a count of steps: the file is damaged");
    *out = (struct loss_scale){value, (uint32_t)n};
    return 0;
}

int training_text_set_loss_scale(json_t *options, const struct loss_scale *scale)
{
    json_t *value = json_pack("{s:f, s:I}", "value", scale->value, "clean_steps", (json_int_t)scale->n_clean);

    return !value || json_object_set_new(options, "loss_scale", value) ? -ENOMEM : 0;
}
