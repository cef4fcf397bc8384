/* eps/store/rewire.h - sparse weights change places: dynamic sparse reparameterization (Mostafa & Wang,
 * arXiv:1902.05967, algorithm 1; proto/model/sparse.h).
 *
 * At the end of a step, from time to time: of each sparse piece, elements of a magnitude below a threshold H, the same
 * for all, are pruned, but for the largest one if all are below it. As many as that, K of them, grow elsewhere: a
 * piece's share is in proportion to the elements that remain in it, rounded; what a piece has no room for is shared out
 * again, and what rounding leaves over goes to pieces drawn at random. A piece's new elements are drawn uniformly among
 * the places that had none before, so not among those just pruned. They begin at 0, with moments of 0: their
 * optimizer's state is reset. Last, H is doubled if K is below 0.9 of the share that is to move (struct sparse), and
 * halved if it is above 1.1 of it.
 *
 * H of fresh weights begins at 0.001, as theirs does. Of a given model's weights the largest stay, so that there is
 * none below some magnitude, and most are below twice that: no threshold that doubles finds a twentieth of them. Theirs
 * begins, when places first change, where as many weights are below it as are to move. The authors have no such case.
 *
 * The authors' code (IntelAI/dynamic-reparameterization) leaves momentum as it is, which takes dense state: momentum,
 * and the masked weights that it keeps moving, of every place that has no element, 8 bytes each. A place cannot grow
 * when it is pruned, so at least one interval later. By then, in that code's schedule (SGD with momentum 0.9, weight
 * decay 5e-4; 100 steps at rate 0.1, longer ones at lower rates), 0.9^100 of its momentum is left, and decay of the
 * masked weight has added -0.4 % of it: at most 1/250 of what it was. So there is no such option.
 *
 * The number of elements stays the same, unless all other places are taken. What happens is a function of the weights,
 * the seed and the step. */
#ifndef EPS_STORE_REWIRE_H
#define EPS_STORE_REWIRE_H

#include "eps/store/store.h"

#include <stdbool.h>
#include <stdint.h>

#define REWIRE_THRESHOLD 1e-3f /* the first H of fresh weights */

struct rewired {
    uint64_t n, pruned, grown; /* elements of all sparse pieces before; K; and those that grew */
    float threshold;           /* H that was applied */
};

/* True if places are to change in this version of the weights, after so many steps, and have not yet. */
bool rewire_is_due(const struct store *store, uint64_t version);

/* Leaves the places of a version in which they were due as they are. */
void rewire_leave(struct store *store, uint64_t version);

/* No other thread may use the store's weights meanwhile. */
struct rewired store_rewire(struct store *store, uint64_t version);

/* H as it is now: the first one times 2^doublings; 0: it is not chosen yet. */
float rewire_threshold(const struct store *store);

#endif
