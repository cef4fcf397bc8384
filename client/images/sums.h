/* client/images/sums.h - the mean of each channel over rows, and its deviation, from exact sums.
 *
 * Sums of whole numbers are the same in any order, on any number of threads. A pixel counts as a value from 0 to 255;
 * means and deviations are those of value / 255, as papers give them. */
#ifndef CLIENT_IMAGES_SUMS_H
#define CLIENT_IMAGES_SUMS_H

#include "client/images/image.h"

#include <stddef.h>
#include <stdint.h>

struct client_channel_sums {
    uint64_t n;                                                           /* pixels */
    uint64_t sums[CLIENT_IMAGE_CHANNELS], squares[CLIENT_IMAGE_CHANNELS]; /* of values: 2^48 pixels fit */
};

/* Adds a row of n pixels (client/images/view.h). Of grey ones only channel 0 counts. */
void client_channel_sums_add(struct client_channel_sums *sums, const uint32_t *row, size_t n);
void client_channel_sums_join(struct client_channel_sums *sums, const struct client_channel_sums *more);

/* Both 0 if there are no pixels. The deviation is that of all pixels: the root of the mean square minus the mean's. */
double client_channel_mean(const struct client_channel_sums *sums, unsigned channel);
double client_channel_deviation(const struct client_channel_sums *sums, unsigned channel);

#endif
