/* What a family learns from is asked of each task by the family's table alone, so this list has a new family as soon as
 * it has a file, and a new task as well. Of a family with a classifier, rows with labels are learned by that head; all
 * others go with every model of the family.
 *
 * What attention does on a GPU, and which maps adapters are beside, no table says: a model of the family's default
 * config is described for it, as one that is trained would be. */
#include "client/daemon/observer.h"
#include "client/eps.h"
#include "client/task/source.h"
#include "proto/model/adapter.h"
#include "proto/model/family.h"
#include "proto/operation/attention_path.h"
#include "proto/step/paths.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Of a row as long as the model allows, up to this: so that windows slide. */
enum { MODELS_TOKENS = 1 << 17 };

static enum eps_attention_path models_attention(const struct model *model)
{
    const uint32_t most = model->config.n_positions;
    const unsigned paths = step_attention_paths(model, NUMBER_BF16, most < MODELS_TOKENS ? most : MODELS_TOKENS);
    const unsigned plain = 1u << ATTENTION_PLAIN;

    if (paths == 0)
        return EPS_PATH_NONE;
    return paths == plain ? EPS_PATH_PLAIN : paths & plain ? EPS_PATH_BOTH : EPS_PATH_TENSOR;
}

/* The last parts of names, each once. */
struct models_maps {
    char names[EPS_FAMILY_MAPS][PROGRAM_NAME_BYTES];
    const char *list[EPS_FAMILY_MAPS + 1];
    size_t n;
    bool of_experts; /* also those of experts and routers */
};

static void models_add(struct models_maps *maps, const char *name, size_t n)
{
    size_t i = 0;

    while (i < maps->n && (strlen(maps->list[i]) != n || strncmp(maps->list[i], name, n) != 0))
        i++;
    if (i < maps->n || i == EPS_FAMILY_MAPS)
        return;
    snprintf(maps->names[i], sizeof maps->names[i], "%.*s", (int)n, name);
    maps->list[maps->n++] = maps->names[i];
}

static int models_on_linear(void *data, const struct model_linear *linear)
{
    struct models_maps *maps = data;
    size_t from = linear->n_stem;

    if (linear->layer->kind != MODEL_BLOCK || (linear->role != LINEAR_PLAIN && !maps->of_experts))
        return 0;
    while (from > 0 && linear->stem[from - 1] != '.')
        from--;
    if (linear->role != LINEAR_EXPERTS)
        models_add(maps, linear->stem + from, linear->n_stem - from);
    for (const char *at = linear->role == LINEAR_EXPERTS ? linear->parts : ""; *at; at += strspn(at, ",")) {
        const size_t n = strcspn(at, ",");
        models_add(maps, at, n);
        at += n;
    }
    return 0;
}

/* As config.json of that model_type alone would be read, if none of its keys were required. */
static int models_describe(struct model *out, const struct family *family, struct error *err)
{
    struct model_config config;

    family_set_defaults(&config, family);
    family->complete(&config);
    if (family->has_source)
        config.source = 1, config.row = 2;
    return model_init(out, &config, err);
}

/* Nets of images have neither attention nor adapters. */
static int models_tell(const struct family *family, void (*on_family)(void *user, const struct eps_family *family),
                       void *user, struct error *err)
{
    const struct family_classifier *classifier = family->classifier;
    struct models_maps maps = {.of_experts = family->adapts_experts};
    struct model model = {0};
    struct eps_family found = {.model_type = family->model_type,
                               .architecture =
                                   family->architectures ? family->architectures[0] : classifier->architecture,
                               .classifier = classifier ? classifier->architecture : NULL,
                               .teaches = client_source_learned(family),
                               .is_own = family->is_own,
                               .maps = maps.list,
                               .off = family->unsupported};
    const int rc = family->sees_images ? 0 : models_describe(&model, family, err);

    if (rc)
        return rc;
    if (!family->sees_images) {
        found.attention = models_attention(&model);
        model_each_linear(&model, models_on_linear, &maps);
    }
    on_family(user, &found);
    model_free(&model);
    return 0;
}

int eps_models(void (*on_family)(void *user, const struct eps_family *family), void *user, struct eps_error *error)
{
    struct error err = {""};
    int rc = 0;

    for (const struct family *const *family = model_families; !rc && *family; family++)
        rc = models_tell(*family, on_family, user, &err);
    return client_report(error, &err, rc);
}
