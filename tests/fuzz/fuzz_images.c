/* tests/fuzz/fuzz_images.c - PNG and JPEG, and the headers of files of raw images: what is taken fits its bytes.
 *
 * The first byte: 0: an image in a file of its own; 1 to 3: images of CIFAR, others, labels. */
#include "client/images/encoded.h"
#include "client/images/raw.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* A size that takes a second to decode is for the limits, not for a fuzzer. */
enum { MOST_PIXELS = 1 << 20 };

static void decode(const uint8_t *bytes, size_t n)
{
    struct client_image image = {0};
    struct error err = {""};

    if (fuzz_took(client_encoded_decode(&image, bytes, n, &err), &err))
        fuzz_demand(image.height > 0 && image.width > 0 && (image.channels == 1 || image.channels == 3) &&
                    client_image_bytes(&image) <= image.cap);
    client_image_free(&image);
}

/* Takes the first record and the last. */
static void take(const struct client_raw *raw, const uint8_t *bytes, size_t n)
{
    struct client_image image = {0};
    const size_t record = client_raw_bytes(raw);

    fuzz_demand(raw->offset <= n && record > 0 && raw->n * record == n - raw->offset);
    fuzz_demand(client_image_set(&image, raw->height, raw->width, raw->channels, NULL) == 0);
    if (raw->n > 0 && record < MOST_PIXELS && client_image_make_room(&image, NULL) == 0) {
        client_raw_take(&image, raw, bytes + raw->offset);
        client_raw_take(&image, raw, bytes + n - record);
    }
    client_image_free(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct client_raw_labels labels;
    struct client_raw raw;
    struct error err = {""};
    const unsigned form = n > 0 ? bytes[0] % 4 : 0;

    if (n == 0)
        return 0;
    bytes++, n--;
    const size_t n_head = n < CLIENT_NPY_HEAD_BYTES ? n : CLIENT_NPY_HEAD_BYTES;
    if (form == 0)
        decode(bytes, n);
    else if (form == 3 && fuzz_took(client_raw_parse_labels(&labels, bytes, n_head, n, &err), &err))
        fuzz_demand(labels.offset <= n && labels.n <= n - labels.offset);
    else if (form < 3 && fuzz_took(client_raw_parse(&raw, bytes, n_head, n, form == 1, &err), &err))
        take(&raw, bytes, n);
    return 0;
}
