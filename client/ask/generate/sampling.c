/* A value that the file has is checked where it is taken, since the option that overrides it is then the remedy. Of a
 * greedy draw nothing else is taken, and nothing else is said. */
#include "client/ask/generate/sampling.h"

#include "proto/model/file/model_files.h"

#include <errno.h>
#include <math.h>

#define SETTINGS "generation_config.json"

struct client_sample_options client_sampling_of(const struct eps_sampling *asked)
{
    return (struct client_sample_options){
        .temperature = isnan(asked->temperature) ? 1 : asked->temperature,
        .top_k = asked->top_k == UINT32_MAX ? 0 : asked->top_k,
        .top_p = isnan(asked->top_p) ? 1 : asked->top_p,
        .min_p = isnan(asked->min_p) ? 0 : asked->min_p,
        .repetition_penalty = isnan(asked->repetition_penalty) ? 1 : asked->repetition_penalty,
        .seed = asked->seed,
    };
}

/* A number of the file; NULL: it has none. */
static int sampling_find(const json_t **out, const json_t *settings, const char *key, const char *option,
                         struct error *err)
{
    *out = json_object_get(settings, key);
    if (!*out || json_is_null(*out)) {
        *out = NULL;
        return 0;
    }
    return json_is_number(*out)
               ? 0
               : error_set(err, -EINVAL, SETTINGS ": %s is not a number: mend it, or give %s", key, option);
}

static int sampling_refuse(const char *key, double value, const char *accepted, const char *option, struct error *err)
{
    return error_set(err, -EINVAL, SETTINGS ": %s %g is not %s: mend it, or give %s", key, value, accepted, option);
}

static void sampling_say(struct error *note, const char *text, double value)
{
    if (note->text[0])
        error_append(note, ", %s %g", text, value);
    else
        error_set(note, 0, "drawn as " SETTINGS " says: %s %g", text, value);
}

static int take_temperature(struct client_sample_options *out, const json_t *settings, struct error *note,
                            struct error *err)
{
    const json_t *number;
    const int rc = sampling_find(&number, settings, "temperature", "--temperature", err);
    const double value = json_number_value(number);

    if (rc || !number)
        return rc;
    if (!(value >= 0 && isfinite(value)))
        return sampling_refuse("temperature", value, "0 or more", "--temperature", err);
    out->temperature = value;
    sampling_say(note, "temperature", value);
    return 0;
}

static int take_top_k(struct client_sample_options *out, const json_t *settings, struct error *note, struct error *err)
{
    const json_t *number;
    const int rc = sampling_find(&number, settings, "top_k", "--top-k", err);
    const double value = json_number_value(number);

    if (rc || !number)
        return rc;
    if (!(value >= 0 && value < UINT32_MAX && value == floor(value)))
        return sampling_refuse("top_k", value, "a count of tokens", "--top-k", err);
    out->top_k = (uint32_t)value;
    if (value > 0)
        sampling_say(note, "top-k", value);
    return 0;
}

static int take_top_p(struct client_sample_options *out, const json_t *settings, struct error *note, struct error *err)
{
    const json_t *number;
    const int rc = sampling_find(&number, settings, "top_p", "--top-p", err);
    const double value = json_number_value(number);

    if (rc || !number)
        return rc;
    if (!(value > 0 && value <= 1))
        return sampling_refuse("top_p", value, "above 0 and at most 1", "--top-p", err);
    out->top_p = value;
    if (value < 1)
        sampling_say(note, "top-p", value);
    return 0;
}

static bool asks_to_draw(const struct eps_sampling *asked)
{
    return !isnan(asked->temperature) || asked->top_k != UINT32_MAX || !isnan(asked->top_p) || !isnan(asked->min_p);
}

static int sampling_take(struct client_sample_options *out, const struct eps_sampling *asked, const json_t *settings,
                         struct error *note, struct error *err)
{
    int rc = 0;

    if (json_is_false(json_object_get(settings, "do_sample")) && !asks_to_draw(asked)) {
        out->temperature = 0;
        error_set(note, 0, "the likeliest token always, as " SETTINGS " says by do_sample: false");
    } else if (isnan(asked->temperature)) {
        rc = take_temperature(out, settings, note, err);
    }
    if (!rc && out->temperature > 0 && asked->top_k == UINT32_MAX)
        rc = take_top_k(out, settings, note, err);
    if (!rc && out->temperature > 0 && isnan(asked->top_p))
        rc = take_top_p(out, settings, note, err);
    return rc;
}

int client_sampling_resolve(struct client_sample_options *out, struct error *note, const struct eps_sampling *asked,
                            const json_t *side, struct error *err)
{
    json_t *settings = model_files_json(side, SETTINGS);

    *out = client_sampling_of(asked);
    note->text[0] = 0;
    const int rc = sampling_take(out, asked, settings, note, err);
    json_decref(settings);
    return rc;
}
