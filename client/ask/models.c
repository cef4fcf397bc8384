/* What a family learns from is asked of each task by the family's table alone, so this list has a new family as soon as
 * it has a file, and a new task as well. Of a family with a classifier, rows with labels are learned by that head; all
 * others go with every model of the family. */
#include "client/eps.h"
#include "client/task/source.h"
#include "proto/model/family.h"

void eps_models(void (*on_family)(void *user, const struct eps_family *family), void *user)
{
    for (const struct family *const *family = model_families; *family; family++) {
        const struct family_classifier *classifier = (*family)->classifier;
        const struct eps_family found = {.model_type = (*family)->model_type,
                                         .architecture = (*family)->architectures ? (*family)->architectures[0]
                                                                                  : classifier->architecture,
                                         .classifier = classifier ? classifier->architecture : NULL,
                                         .teaches = client_source_learned(*family),
                                         .is_own = (*family)->is_own};
        on_family(user, &found);
    }
}
