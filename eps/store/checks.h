/* eps/store/checks.h - whether the store's memory is as it was written (--check-memory).
 *
 * Each block of weights, moments and sums has a sum (proto/base/block_sum.h, proto/plan/memory/checksums.h). A pass of
 * the optimizer checks the blocks that it reads and renews the sums of those that it writes (eps/store/optimizer.h).
 * Whoever else writes weights or moments, a load or rewire.c, renews the sums of what it wrote. What no pass reads for
 * long, frozen weights, second buffers, units that steps leave out, is checked by the scrub, on the optimizer thread
 * while it has nothing else to do, CHECKS_SCRUB_BYTES every CHECKS_SCRUB_MS. A capture checks a unit once it is written
 * to the files.
 *
 * Not checked: norms, tables of counts, copies of other hosts' units, and the ring.
 *
 * A block whose sum is another is noted in checks.damage, the least one if there are several. It stays noted: what the
 * memory held is lost. */
#ifndef EPS_STORE_CHECKS_H
#define EPS_STORE_CHECKS_H

#include "eps/store/store.h"

enum { CHECKS_SCRUB_BYTES = 4 << 20, CHECKS_SCRUB_MS = 16 }; /* 256 MiB a second at most */

/* Takes the sums, all zero, as the memory is. Does nothing if the store checks no memory. -ENOMEM. */
int checks_init(struct store *store);
void checks_free(struct store *store);

/* Bytes of the ledger. */
uint64_t checks_bytes(const struct store *store);

/* Sums of a run of an own unit's parameters, from element `at` of the piece on, which begins a block; none of sums of
 * contributions. Zeroed if the store checks no memory. */
struct optimizer_blocks checks_of(const struct store *store, uint32_t unit, uint32_t piece, uint64_t at);

/* Likewise of where its contributions are summed; lower: of a tied unit's two sums. NULL if the store checks no
 * memory. */
struct block_sum *checks_of_sum(const struct store *store, uint32_t unit, uint32_t piece, uint64_t at, bool lower);

/* Makes the sums of all that the store owns anew, or of one unit. The caller's team. */
void checks_renew(struct store *store);
void checks_renew_unit(struct store *store, uint32_t unit);

/* Checks the weights and moments of an own unit as they are now, with what steps leave alone. The caller's thread
 * alone; nobody may change the unit meanwhile. 0, or -EIO: noted. */
int checks_verify(const struct store *store, uint32_t unit);
/* All own units, by the caller's team. */
int checks_verify_all(const struct store *store);
/* The present weights of all own units, by the caller's team, while none is updated. */
int checks_verify_weights(const struct store *store);
/* The sums in which the unit's contributions are held. */
int checks_verify_held(const struct store *store, uint32_t unit);

/* Goes on with the scrub, at most CHECKS_SCRUB_BYTES and a block. The optimizer thread, between tasks. True: damage was
 * noted now. */
bool checks_scrub(struct store *store);

/* Any thread. */
bool checks_found(const struct store *store);
/* What is damaged: "the first moments of h.3.mlp.c_fc.weight". Once something was found. */
void checks_text(char *out, size_t cap, const struct store *store);

#endif
