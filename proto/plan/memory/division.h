/* proto/plan/memory/division.h - the division of a job's units among hosts, and each host's segment of weights.
 *
 * A host owns consecutive units: it folds and updates these, and others fetch their weights from it. A job on one host
 * owns all units. */
#ifndef PROTO_PLAN_MEMORY_DIVISION_H
#define PROTO_PLAN_MEMORY_DIVISION_H

#include "proto/base/error.h"
#include "proto/model/model.h"

#include <stdbool.h>
#include <stdint.h>

/* A host's own units, first .. end-1, and its segment of relayed weights. The segment has three ranges, counted in
 * bytes; each unit's values are rounded up by model_rounded, and its coded pieces follow them:
 *   own      buffer 0 of its own units (weights_bytes), and of other hosts' tables that are looked up (tables_bytes)
 *   replay   with replay, buffer 1 of these units (replay_bytes) and tables (tables_replay_bytes): their trained
 *            weights alone, as the others are the same in each version
 *   ring     slots of slot_bytes each, for any other unit of another host
 * If one host owns all units, weights_bytes are those of the model's segment, and replay_bytes those of its replay. */
struct plan_own {
    uint32_t first, end;
    enum number_type precision; /* the job's */
    uint64_t weights_bytes, tables_bytes, replay_bytes, tables_replay_bytes;
    uint64_t replay_before; /* bytes of the model's replay that units before `first` have */
    uint32_t n_foreign;     /* units that pass through the ring */
    uint64_t slot_bytes;    /* the largest of these units; 0: there is none */
    uint64_t trained_offset,
        trained_n; /* trained elements of the own units, in the model's: offset and number; as model_rounded */
    uint32_t first_norm_map, n_norm_maps; /* maps of the own units whose norms are remembered, among the model's */
    uint64_t tied_n;            /* trained elements of the own tied units, as model_rounded: the first of these */
    uint64_t accumulator_bytes; /* one accumulator, which fits any own unit */
};
/* n_own 0: all units. The units exist (asserted). */
void plan_own(struct plan_own *out, const struct model *model, enum number_type precision, uint32_t own_first,
              uint32_t n_own);
/* True if the host has its own copy of the unit's weights: it owns the unit, or workers look rows of it up. */
bool plan_keeps(const struct plan_own *own, const struct model *model, uint32_t unit);
/* Offset in the host's segment, in bytes, of a unit that it keeps (plan_keeps). buffer: 0; with replay, 0 or 1 for a
 * trained unit, whose frozen weights are in buffer 0 alone. */
uint64_t plan_weights_at(const struct plan_own *own, const struct model *model, uint32_t unit, uint32_t buffer);
/* Bytes of the host's segment: plan_weights_bytes counts buffers 0 and the ring of n_ring slots, plan_replay_bytes
 * buffers 1. The ring comes last. */
uint64_t plan_weights_bytes(const struct plan_own *own, uint32_t n_ring);
uint64_t plan_replay_bytes(const struct plan_own *own);
/* Number of slots of the ring: two for each worker, which may have two units lent and so waits for no other worker, and
 * one for the unit that is being fetched. n_parts: this host's parts, at least as many as its workers. */
uint32_t plan_ring_slots(const struct plan_own *own, uint32_t n_parts);
/* Divides the units among n_hosts, in order, by their trained elements; each host gets at least one that is trained.
 * Host 0 has the first unit. All hosts compute the same division. -EINVAL with a sentence: fewer units are trained. */
int plan_divide(uint32_t *own_first, uint32_t *n_own, const struct model *model, uint32_t n_hosts, uint32_t host,
                struct error *err);

#endif
