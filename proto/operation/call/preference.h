/* proto/operation/call/preference.h - the loss of pairs of texts, of which one is preferred, on the device. */
#ifndef PROTO_OPERATION_CALL_PREFERENCE_H
#define PROTO_OPERATION_CALL_PREFERENCE_H

#include <stddef.h>

/* Direct preference optimisation: Rafailov et al., arXiv:2305.18290, equation 7. Row 2i is the preferred text of pair i,
 * row 2i+1 the rejected one. With s the sum of log p over a row's labels, and r the reference model's,
 *
 *     z = beta * ((s[2i] - r[2i]) - (s[2i+1] - r[2i+1]))
 *     L = -(1 - smoothing) * log sigmoid(z) - smoothing * log sigmoid(-z)
 *
 * The smoothed loss is that of Mitchell, "A note on DPO with noisy preferences" (2023), equation 3. The call writes s, and
 * for each token the factor that its cross entropy has in the gradient of L, times `scale`: what cross_entropy_gradient
 * takes as `scales`. All is computed in double. */
struct device_preference {
    size_t n_pairs, n_tokens;
    const double *losses;    /* (2*n_pairs, n_tokens): -log p of each label, 0 where there is none */
    const float *references; /* (2*n_pairs): r */
    float beta;              /* > 0 */
    float smoothing;         /* 0 to 0.5: how often the preference is taken to be the wrong way round */
    float scale;
    double *sums;  /* (2*n_pairs): s */
    float *scales; /* (2*n_pairs, n_tokens): -beta * dL/dz * scale for the preferred row, its negative for the other */
};

#endif
