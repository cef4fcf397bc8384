/* eps/optimizer.h - AdamA on the host, contribution by contribution.
 *
 * The optimizer *is* AdamA; with one part it is AdamW, bit for bit. A contribution is folded into both moments as it
 * arrives and its slot is free again, so no gradient is ever stored; with one part, decay, fold and update are one
 * pass over 28 bytes a parameter, which is all that the memory bus has to carry.
 *
 * Sources: AdamA - Zhang et al., arXiv:2305.19982.  AdamW - Loshchilov & Hutter, arXiv:1711.05101, Algorithm 2.
 *
 * Arithmetic, the same bits on every instruction path and for every split of the range (-ffp-contract=off):
 *   first fold    m = fma(c1, g, fma(-c1, m, m))   v = fma(c2 * g, g, fma(-c2, v, v))
 *   next folds    m = fma(c1, g, m)                v = fma(c2 * g, g, v)
 *   update        w = w * shrink - step_size * m / (sqrt(v) * root_scale + epsilon)
 * Folds are fp32 with c1 = 1-b1 and c2 = 1-b2: written so, a moment decays by a beta exact to 2^-24 of 1 - beta,
 * where b2 itself, rounded to fp32, would in the long run put 1e-5 on v. The update is fp64 in registers, rounded
 * once, since a weight of zero shows every rounding of its update; step_size = lr / (1 - b1^t), root_scale = 1 /
 * sqrt(1 - b2^t), shrink = 1 - lr * decay (1 where nothing decays). A v past fp32's range stays at its largest value.
 */
#ifndef EPS_OPTIMIZER_H
#define EPS_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct eps_hyper {
    double lr, beta1, beta2, epsilon, weight_decay;
};

/* The instruction paths, least first. EPS_ISA_BEST is what this machine has. */
enum eps_isa { EPS_ISA_V2, EPS_ISA_V3, EPS_ISA_V4, EPS_ISA_BEST };

/* Selects the path of all calls below; -ENOTSUP if the machine has not got it. Called once in main, and by tests;
 * until then it is EPS_ISA_V2, which every machine has. */
int eps_optimizer_select(enum eps_isa isa);

/* All arrays: (n) fp32; g is borrowed and may lie in shared memory, written by a worker that is not trusted. Each
 * call uses every OpenMP thread of the caller and cannot fail. t: updates done, this one included (1 at the first).
 * decays: whether weight_decay applies here. */

/* True if every element is finite. */
bool eps_optimizer_is_finite(const float *g, size_t n);
/* first: the first fold of the step, which decays. */
void eps_optimizer_fold(float *m, float *v, const float *g, size_t n, const struct eps_hyper *hp, bool first);
void eps_optimizer_update(float *w, const float *m, const float *v, size_t n, const struct eps_hyper *hp, uint64_t t,
                          bool decays);
/* First fold and update in one pass: the same bits as one after the other. */
void eps_optimizer_step(float *w, float *m, float *v, const float *g, size_t n, const struct eps_hyper *hp, uint64_t t,
                        bool decays);
/* sum = g or sum += g: accumulators and tied units. */
void eps_optimizer_sum(float *sum, const float *g, size_t n, bool first);

#endif
