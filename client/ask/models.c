/* What a family learns from follows from its table alone, so this list has a new family as soon as it has a file. Of a
 * family with a classifier, rows with labels are learned by that head; all others go with every model of the family. */
#include "client/eps.h"
#include "proto/model/family.h"

static unsigned models_learn(const struct family *family)
{
    const unsigned of_classifier = family->classifier ? EPS_OF_LABELS : 0;

    if (family->sees_images)
        return EPS_OF_IMAGES;
    if (family->has_source)
        return EPS_OF_TARGETS | (family->is_own ? 0 : EPS_OF_SPANS);
    if (family->masked)
        return EPS_OF_MASKED | of_classifier;
    return EPS_OF_TEXT | EPS_OF_CONVERSATIONS | EPS_OF_PREFERENCES | of_classifier;
}

void eps_models(void (*on_family)(void *user, const struct eps_family *family), void *user)
{
    for (const struct family *const *family = model_families; *family; family++) {
        const struct family_classifier *classifier = (*family)->classifier;
        const struct eps_family found = {.model_type = (*family)->model_type,
                                         .architecture = (*family)->architectures ? (*family)->architectures[0]
                                                                                  : classifier->architecture,
                                         .classifier = classifier ? classifier->architecture : NULL,
                                         .teaches = models_learn(*family),
                                         .is_own = (*family)->is_own};
        on_family(user, &found);
    }
}
