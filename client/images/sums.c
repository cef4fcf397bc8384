/* Whole numbers, so threads may add in any order and the means of a run are the same bits on every machine. The
 * variance is a difference of two large numbers, which doubles would lose; 128 bits hold both. */
#include "client/images/sums.h"

#include <math.h>

enum { WHITE = 255 };

void client_channel_sums_add(struct client_channel_sums *s, const uint32_t *row, size_t n)
{
    s->n += n;
    for (size_t i = 0; i < n; i++)
        for (unsigned c = 0; c < CLIENT_IMAGE_CHANNELS; c++) {
            const uint32_t value = row[i] >> (8 * c) & 0xFF;
            s->sums[c] += value;
            s->squares[c] += value * value;
        }
}

void client_channel_sums_join(struct client_channel_sums *s, const struct client_channel_sums *more)
{
    s->n += more->n;
    for (unsigned c = 0; c < CLIENT_IMAGE_CHANNELS; c++)
        s->sums[c] += more->sums[c], s->squares[c] += more->squares[c];
}

double client_channel_mean(const struct client_channel_sums *s, unsigned channel)
{
    return s->n > 0 ? (double)s->sums[channel] / ((double)s->n * WHITE) : 0;
}

/* n times the squares less the square of the sum, exactly: the difference may be small. */
double client_channel_deviation(const struct client_channel_sums *s, unsigned channel)
{
    const unsigned __int128 squares = (unsigned __int128)s->n * s->squares[channel],
                            square = (unsigned __int128)s->sums[channel] * s->sums[channel];

    return s->n > 0 ? sqrt((double)(squares - square)) / ((double)s->n * WHITE) : 0;
}
