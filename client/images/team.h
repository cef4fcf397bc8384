/* client/images/team.h - items of work on several threads, which begin and end with the call.
 *
 * Threads take the items in their order, so what an item makes must depend on the item alone. */
#ifndef CLIENT_IMAGES_TEAM_H
#define CLIENT_IMAGES_TEAM_H

#include "proto/base/error.h"
#include "proto/base/watch.h"

#include <stddef.h>

enum { CLIENT_TEAM_MOST = 32 }; /* threads */

/* One item, on thread `thread` (from 0; 0 is the caller's). -errno with a sentence ends the work. */
typedef int client_team_work(void *user, unsigned thread, size_t item, struct error *err);

/* Does items 0 .. n-1 on n_threads threads, at most CLIENT_TEAM_MOST, of which the caller's is one; fewer if the system
 * refuses them. Blocks until all have ended. The watch (may be NULL) is asked on the caller's thread. Returns the error
 * of the first item that failed, whichever thread met it; or the watch's. */
int client_team_run(unsigned n_threads, size_t n, client_team_work *work, void *user, const struct client_watch *watch,
                    struct error *err);

#endif
