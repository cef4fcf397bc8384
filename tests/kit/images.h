/* tests/kit/images.h - images and labels as numpy saves them, in the working directory. Everything asserts. */
#ifndef TESTS_KIT_IMAGES_H
#define TESTS_KIT_IMAGES_H

#include <stdint.h>

/* Version 1.0 of numpy's format: bytes (n, side, side, 3), or (n) where side is 0. */
void images_put_npy(const char *name, const uint8_t *bytes, unsigned n, unsigned side);

/* n images of side x side in colour, and their labels: five classes in turn. Another seed is other images. */
void images_put(const char *images, const char *labels, unsigned n, unsigned side, unsigned seed);

#endif
