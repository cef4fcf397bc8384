/* The grown model is made by parsing a config with more blocks, as any model is, and then matched with the old one
 * piece by piece: so whatever decides a block's kind (lists of layer types, widths, patterns) decides it here, too, and
 * a copy that would land in a place of another kind is found by comparing programs and sizes. */
#include "client/run/grow.h"

#include "client/run/derive.h"
#include "proto/model/config/config_lists.h"
#include "proto/model/family.h"
#include "proto/model/config/model_config_print.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct grow {
    struct client_derive derive;
    uint32_t n_added;
    bool without_moments; /* of the copies */
};

static int grow_read_option(struct grow *g, const char *option, struct error *err)
{
    char *end;
    const unsigned long n = option[0] >= '1' && option[0] <= '9' ? strtoul(option, &end, 10) : 0;

    if (n == 0 || n > 4096 || (*end && strcmp(end, ",moments=copy") != 0 && strcmp(end, ",moments=zero") != 0))
        return error_set(err, -EDOM, "--grow %.60s: it takes a number of blocks, and moments=copy or moments=zero",
                         option);
    g->n_added = (uint32_t)n;
    g->without_moments = strcmp(end, ",moments=zero") == 0;
    return 0;
}

/* ---- the grown model ---- */

/* The config's text, with more blocks. Owned; NULL: no memory, or no config. */
static char *grow_config(const char *text, size_t n, uint32_t n_added)
{
    json_t *config = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    const struct family *family = family_find(config);
    const char *widths = family ? model_widths_key(family) : NULL;
    const char *key = json_object_get(config, "n_layer") ? "n_layer" : "num_hidden_layers";
    const json_int_t blocks = json_integer_value(json_object_get(config, key));
    char *grown = NULL;

    if (blocks > 0 && json_object_set_new(config, key, json_integer(blocks + n_added)) == 0 &&
        config_extend_list(json_object_get(config, "layer_types"), (uint32_t)blocks, n_added) == 0 &&
        config_extend_list(widths ? json_object_get(config, widths) : NULL, (uint32_t)blocks, n_added) == 0 &&
        model_guests_grow(config, (uint32_t)blocks, n_added) == 0)
        grown = model_config_text(config);
    json_decref(config);
    return grown;
}

static int refuse_config(struct error *err)
{
    return error_set(err, -EINVAL, "--grow: config.json says the number of blocks in a way that is not known here");
}

static int grow_open_models(struct grow *g, struct error *err)
{
    struct client_derive *d = &g->derive;
    struct model_config config;
    int rc = model_config_parse(&config, d->old_config, d->n_old_config, err);

    if (!rc && g->n_added > config.n_layers)
        rc = error_set(err, -EDOM, "--grow %u: the model has %u blocks, of which that many cannot be copied",
                       g->n_added, config.n_layers);
    if (rc)
        return rc;
    char *grown = grow_config(d->old_config, d->n_old_config, g->n_added);
    if (!grown)
        return refuse_config(err);
    rc = client_derive_models(d, &config, grown, err);
    return rc || d->model.config.n_layers == config.n_layers + g->n_added ? rc : refuse_config(err);
}

/* ---- which tensor comes from which ---- */

/* The layer's tensors are those of another, in their order. False: they are not alike. */
static bool grow_take_layer(struct grow *g, const struct model_layer *to, const struct model_layer *from, bool added)
{
    const struct model *old = &g->derive.old, *model = &g->derive.model;

    if (!from || from->n_visits != to->n_visits || from->program->row != to->program->row)
        return false;
    for (uint32_t v = 0; v < to->n_visits; v++) {
        const struct model_unit *unit = &model->units[model->visits[to->first_visit + v]],
                                *source = &old->units[old->visits[from->first_visit + v]];
        if (unit->n_pieces != source->n_pieces)
            return false;
        for (uint32_t p = 0; p < unit->n_pieces; p++) {
            const uint32_t t = model->pieces[unit->first_piece + p].tensor,
                           s = old->pieces[source->first_piece + p].tensor;
            if (model->tensors[t].n != old->tensors[s].n)
                return false;
            g->derive.origins[t] = (struct derive_origin){.tensor = s, .without_moments = added && g->without_moments};
        }
    }
    return true;
}

/* Blocks up to the old number come from themselves, those above from the topmost ones. */
static int grow_find_origins(struct grow *g, struct error *err)
{
    const struct model *old = &g->derive.old, *to = &g->derive.model;
    const struct model_layer *const first = &to->layers[to->first_block];

    for (const struct model_layer *l = first; l < first + to->n_block_layers; l++) {
        const bool added = l->index >= old->config.n_layers;
        const uint32_t source = l->index - (added ? g->n_added : 0);
        if (!grow_take_layer(g, l, client_derive_layer(old, source, l->part), added))
            return error_set(err, -EINVAL,
                             "--grow %u: block %u would be of another kind than block %u, which it copies: choose a "
                             "number of blocks after which kinds recur",
                             g->n_added, l->index, source);
    }
    return 0;
}

int client_grow(char grown[PATH_MAX], const char *folder, const struct eps_train_options *in,
                const struct client_watch *watch, struct error *note, struct error *err)
{
    struct grow g = {.derive = {.option = "--grow", .folder = folder, .watch = watch}};
    int rc = client_derive_open(&g.derive, in, err);

    if (!rc)
        rc = grow_read_option(&g, in->grow, err);
    if (!rc)
        rc = grow_open_models(&g, err);
    if (!rc)
        rc = grow_find_origins(&g, err);
    if (!rc)
        rc = client_derive_write(grown, &g.derive, in, err);
    client_derive_say(note, &g.derive);
    client_derive_close(&g.derive);
    return rc;
}
