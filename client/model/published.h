/* client/model/published.h - published models, by the numbers of their config.json: planned before they are
 * downloaded. */
#ifndef CLIENT_MODEL_PUBLISHED_H
#define CLIENT_MODEL_PUBLISHED_H

#include "client/eps.h"

/* The model of this name in eps_published, unless there is a file or directory of the name; else NULL. */
const struct eps_published *client_published_find(const char *name);

#endif
