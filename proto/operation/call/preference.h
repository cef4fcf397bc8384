/* proto/operation/call/preference.h - the loss of pairs of texts, of which one was chosen, on the device and on the
 * host.
 *
 * Direct preference optimisation: Rafailov et al., arXiv:2305.18290, equation 7. Of each pair of rows the first is the
 * chosen text, the second the rejected one. With s the sum of log p over a row's labels, and r the reference model's,
 *
 *     reward = beta * (s - r)
 *     z = reward of the chosen text - reward of the rejected one
 *     L = -(1 - smoothing) * log sigmoid(z) - smoothing * log sigmoid(-z)
 *
 * The smoothed loss is that of Mitchell, "A note on DPO with noisy preferences" (2023), equation 3. */
#ifndef PROTO_OPERATION_CALL_PREFERENCE_H
#define PROTO_OPERATION_CALL_PREFERENCE_H

#include <stddef.h>

#define PREFERENCE_MOST_BETA 1e6
struct preference {
    double beta;      /* > 0 and at most PREFERENCE_MOST_BETA; in a job's goal 0: its rows are no pairs */
    double smoothing; /* 0 to 0.5: how often the wrong text is taken to have been chosen */
};

/* Sums over pairs. Divided by the number of pairs they are what TRL logs as rewards/chosen, rewards/rejected,
 * rewards/accuracies, logps/chosen and logps/rejected. */
struct preference_rewards {
    double chosen, rejected;
    double right; /* pairs whose chosen text has the larger reward, of s rounded to fp32 as r is: not of equal ones */
    double chosen_log_p, rejected_log_p;
};

/* Adds a pair's numbers to the sums; log_p: s, references: r, of the chosen text and of the rejected one. Returns L;
 * not finite if one of log_p is not. */
double preference_judge(struct preference_rewards *sums, const struct preference *preference, const double log_p[2],
                        const float references[2]);

/* Writes s of each row, and for each token the factor that its cross entropy has in the gradient of the sum of all L,
 * times `scale`: what cross_entropy_gradient takes as `scales`. All is computed in double. */
struct device_preference {
    size_t n_pairs, n_tokens;
    struct preference preference;
    const double *losses;    /* (2*n_pairs, n_tokens): -log p of each label, 0 where there is none */
    const float *references; /* (2*n_pairs): r */
    float scale;
    double *log_p; /* (2*n_pairs): s */
    float *scales; /* (2*n_pairs, n_tokens): -beta * dL/dz * scale for chosen texts, its negative for rejected ones */
};

#endif
