/* Nothing is listed: where a window begins is computed, as a stream may have billions of them. Only the last window can
 * be short. Where fewer are evaluated than there are, the last is never among them, as they are more than one window
 * apart on average and the first is window 0: so its length counts only where all are taken. */
#include "client/order/windows.h"

#include "proto/base/random.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/message.h"

#include <assert.h>
#include <string.h>

uint64_t client_windows_n_train(uint64_t n_tokens, uint32_t seq, bool apart)
{
    const uint64_t window = (uint64_t)seq + 1, hundredth = n_tokens / 100;
    const uint64_t held_out = apart ? 0 : hundredth < window ? window : hundredth;

    return n_tokens > held_out ? n_tokens - held_out : 0;
}

struct client_windows client_windows_of(const struct client_data *data, uint64_t first, uint64_t n_tokens, uint32_t seq,
                                        uint32_t ahead)
{
    const uint64_t n = n_tokens > ahead ? (n_tokens - ahead) / seq : 0;

    return (struct client_windows){
        .data = data, .first = first, .seq = seq, .ahead = ahead, .stride = seq, .n = n, .of = n, .last = seq};
}

struct client_windows client_windows_held_out(const struct client_data *data, uint64_t first, uint64_t n_tokens,
                                              uint32_t seq, uint32_t stride, uint64_t most_tokens, uint32_t ahead)
{
    struct client_windows windows = client_windows_of(data, first, n_tokens, seq, ahead);
    const uint64_t most = most_tokens > seq ? 1 + (most_tokens - seq) / stride : 1; /* window 0 predicts seq */

    assert(ahead == 1 || stride == seq);
    if (windows.n == 0)
        return windows;
    const uint64_t beyond = n_tokens - ahead - seq; /* the first window */
    windows.stride = stride;
    windows.n = windows.of = 1 + (beyond + stride - 1) / stride;
    if (beyond % stride > 0)
        windows.last = (uint32_t)(seq - stride + beyond % stride);
    if (most_tokens > 0 && most < windows.n)
        windows.n = most;
    return windows;
}

uint64_t client_windows_number(const struct client_windows *windows, uint64_t k)
{
    return windows->n == windows->of ? k : (uint64_t)((unsigned __int128)k * windows->of / windows->n);
}

static uint32_t window_length(const struct client_windows *windows, uint64_t k)
{
    return client_windows_number(windows, k) + 1 == windows->of ? windows->last : windows->seq;
}

/* Tokens at window k's begin that the window before it predicts. */
static uint32_t window_overlap(const struct client_windows *windows, uint64_t k)
{
    return client_windows_number(windows, k) == 0 ? 0 : windows->seq - windows->stride;
}

uint64_t client_windows_tokens(const struct client_windows *windows, uint64_t first, uint64_t n)
{
    uint64_t tokens = n * windows->stride;

    if (n > 0 && first == 0) /* window 0 overlaps none */
        tokens += windows->seq - windows->stride;
    if (n > 0 && first + n == windows->n) /* only the last window can be shorter */
        tokens -= windows->seq - window_length(windows, windows->n - 1);
    return tokens;
}

uint64_t client_windows_first(const struct client_windows *windows, uint64_t k)
{
    return windows->first + client_windows_number(windows, k) * windows->stride;
}

int client_windows_read_whole(const struct client_windows *windows, uint32_t *ids, uint32_t *known, uint64_t k,
                              struct error *err)
{
    assert(k < windows->n);
    *known = windows->seq - window_length(windows, k);
    return client_data_read(windows->data, ids, client_windows_first(windows, k) - *known, windows->seq, err);
}

int client_windows_read(const struct client_windows *windows, uint32_t *ids, uint32_t *labels, uint64_t k,
                        struct error *err)
{
    const uint64_t first = client_windows_first(windows, k);
    const uint32_t n = window_length(windows, k), overlap = window_overlap(windows, k);

    assert(k < windows->n && windows->ahead == 1);
    int rc = client_data_read(windows->data, ids, first, n, err);
    if (rc)
        return rc;
    memcpy(labels, ids + 1, (n - 1) * sizeof *labels);
    for (uint32_t i = n; i < windows->seq; i++)
        ids[i] = 0, labels[i] = PLAN_NO_LABEL;
    for (uint32_t i = 0; i < overlap; i++)
        labels[i] = PLAN_NO_LABEL;
    return client_data_read(windows->data, labels + n - 1, first + n, 1, err);
}

uint64_t client_windows_pick(const struct client_windows *windows, enum eps_order order, uint64_t seed, uint64_t row)
{
    const uint64_t epoch = row / windows->n, place = row % windows->n;

    assert(windows->n > 0);
    if (order == EPS_SEQUENTIAL)
        return place;
    return random_permute(random_site_key(seed, epoch, 0, RANDOM_ORDER), place, windows->n);
}
