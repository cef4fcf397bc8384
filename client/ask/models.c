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
};

static int models_on_linear(void *data, const struct model_linear *linear)
{
    struct models_maps *maps = data;
    char name[PROGRAM_NAME_BYTES];
    size_t i = 0;

    if (linear->role != LINEAR_PLAIN || linear->layer->kind != MODEL_BLOCK || maps->n == EPS_FAMILY_MAPS)
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)linear->n_stem, linear->stem);
    const char *const dot = strrchr(name, '.'), *const last = dot ? dot + 1 : name;
    while (i < maps->n && strcmp(maps->list[i], last) != 0)
        i++;
    if (i < maps->n)
        return 0;
    snprintf(maps->names[i], sizeof maps->names[i], "%s", last);
    maps->list[maps->n++] = maps->names[i];
    return 0;
}

/* Leaves out names that experts and routers have as well, where PEFT gives these adapters, too: they are refused. */
static int models_leave_expert(void *data, const struct model_linear *linear)
{
    struct models_maps *maps = data;
    size_t kept = 0;

    if (linear->role == LINEAR_PLAIN)
        return 0;
    for (size_t i = 0; i < maps->n; i++) {
        const size_t n = strlen(maps->list[i]);
        const bool is_its = n < linear->n_stem && linear->stem[linear->n_stem - n - 1] == '.' &&
                            strncmp(linear->stem + linear->n_stem - n, maps->list[i], n) == 0;
        if (!is_its)
            maps->list[kept++] = maps->list[i];
    }
    maps->list[maps->n = kept] = NULL;
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
    struct models_maps maps = {.n = 0};
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
        if (family->adapts_experts)
            model_each_linear(&model, models_leave_expert, &maps);
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
