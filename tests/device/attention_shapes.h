/* tests/device/attention_shapes.h - what attention is tested with. */
#ifndef TESTS_DEVICE_ATTENTION_SHAPES_H
#define TESTS_DEVICE_ATTENTION_SHAPES_H

#include "proto/operation/device.h"

/* Sequences of 1, of less than a tile, of exactly one, and ending anywhere in the third; head widths of 1, of no multiple of
 * any vector, and over 64. A CUDA device's tensor cores take heads of 64 and 128, in tiles of 128 queries and 64 keys (32
 * with dropout) forward, of 64 and 64 backward. Heads in groups of 2, of all and of one. length: of the last row, those
 * before it are whole; 0: no lengths. Windows of one key, of two, of less than a tile, of tiles, of one key more and less,
 * and of a whole row less one, with rows that see nothing of the first tile of their block. n_keys: of another array, less
 * and more than queries by tiles, so many that the CPU's forward pass takes more scratch than backward; one query, and one
 * key, in heads of 1, as only there its gradient of 0 is exact. documents: those of each row in turn, of so many tokens,
 * the last one of the rest: of one token, that end with a tile, that begin in the tile after the queries', that cross
 * borders of tiles of 32, 64 and 128, that are shorter and longer than the window. buckets: of a bias, T5's and few. */
static const struct device_buckets one_bucket = {1, false, {0}}, near_and_far = {4, true, {0, 1}},
                                   t5_decoder = {32, false, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                                             11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31,
                                                             35, 40, 46, 52, 59, 67, 77, 87, 99, 113}},
                                   t5_encoder = {32, true, {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91}};

static const struct shape {
    size_t n_rows, n_tokens, n_heads, n_kv_heads, head_width;
    bool full;
    size_t n_keys, length, window;
    float p;
    bool is_prepared; /* a CUDA device computes it through cuDNN, where that is found and can */
    size_t documents[10];
    const struct device_buckets *buckets;
} shapes[] = {
    {1, 1, 1, 1, 1, .p = 0},
    {2, 1, 3, 3, 8, .p = 0.5f},
    {1, 5, 2, 2, 3, .p = 0},
    {2, 17, 1, 1, 40, .p = 0.1f},
    {2, 65, 3, 3, 25, .p = 0},
    {1, 130, 2, 2, 80, .p = 0.2f},
    {1, 256, 1, 1, 64, .p = 0},
    {1, 128, 2, 2, 8, .is_prepared = true},
    {2, 384, 1, 1, 64, .is_prepared = true},
    {2, 3, 2, 2, 64, .p = 0.5f},
    {1, 130, 1, 1, 64, .p = 0},
    {1, 36, 2, 2, 64, .p = 0.3f},
    {1, 68, 1, 1, 128, .p = 0.2f},
    {1, 65, 1, 1, 128, .p = 0},
    {1, 35, 1, 1, 128, .p = 0.2f},
    {1, 3, 1, 1, 257, .p = 0},
    {1, 5, 4, 2, 6, .p = 0},
    {2, 65, 3, 1, 24, .p = 0},
    {1, 130, 4, 2, 64, .p = 0.2f},
    {1, 96, 4, 1, 128, .p = 0},
    {2, 70, 2, 1, 64, .p = 0},
    {1, 67, 2, 1, 128, .p = 0},
    {1, 40, 4, 1, 64, .p = 0},
    {1, 70, 4, 2, 64, .window = 20},
    {1, 66, 2, 1, 128, .documents = {20, 30}},
    {1, 1, 1, 1, 1, .full = true},
    {2, 17, 2, 2, 40, .full = true, .p = 0.1f},
    {1, 64, 2, 2, 64, .full = true},
    {1, 130, 1, 1, 64, .full = true},
    {2, 40, 2, 2, 64, .full = true, .length = 7},
    {2, 66, 1, 1, 64, .full = true, .length = 65, .p = 0.2f},
    {2, 68, 1, 1, 64, .full = true, .length = 65, .p = 0.4f},
    {1, 70, 1, 1, 128, .full = true},
    {2, 35, 1, 1, 128, .full = true, .length = 33, .p = 0.2f},
    {1, 70, 2, 2, 16, .full = true},
    {3, 20, 2, 2, 8, .full = true, .length = 7},
    {2, 130, 4, 2, 20, .full = true, .length = 64},
    {2, 70, 6, 3, 64, .full = true, .length = 1, .p = 0.3f},
    {1, 5, 1, 1, 3, .window = 1},
    {1, 67, 4, 2, 6, .window = 2, .p = 0.2f},
    {2, 70, 2, 2, 12, .window = 3},
    {1, 150, 4, 1, 8, .window = 20, .p = 0.1f},
    {1, 200, 2, 1, 17, .window = 63},
    {2, 130, 2, 2, 8, .window = 64},
    {1, 260, 2, 1, 8, .window = 65},
    {1, 130, 2, 1, 8, .window = 129},
    {1, 192, 1, 1, 64, .window = 33},
    {1, 130, 2, 1, 64, .window = 20, .p = 0.2f},
    {2, 330, 2, 2, 64, .window = 128},
    {1, 100, 1, 1, 128, .window = 31},
    {1, 132, 1, 1, 128, .window = 1},
    {1, 133, 1, 1, 128, .window = 2, .p = 0.2f},
    {1, 300, 4, 2, 128, .window = 65},
    {1, 1, 1, 1, 1, .full = true, .n_keys = 1},
    {2, 1, 3, 3, 8, .full = true, .n_keys = 70, .p = 0.5f},
    {2, 70, 2, 2, 1, .full = true, .n_keys = 1, .p = 0.5f},
    {2, 70, 2, 2, 25, .full = true, .n_keys = 2, .p = 0.1f},
    {1, 5, 4, 2, 6, .full = true, .n_keys = 9},
    {2, 17, 2, 2, 40, .full = true, .n_keys = 12, .p = 0.1f},
    {1, 64, 2, 2, 64, .full = true, .n_keys = 192},
    {2, 130, 1, 1, 64, .full = true, .n_keys = 65, .p = 0.2f},
    {1, 3, 1, 1, 257, .full = true, .n_keys = 66},
    {1, 70, 4, 1, 128, .full = true, .n_keys = 33},
    {2, 9, 2, 2, 80, .full = true, .n_keys = 300},
    {2, 66, 6, 3, 24, .full = true, .n_keys = 131, .p = 0.3f},
    {3, 20, 2, 2, 8, .full = true, .n_keys = 31, .length = 7},
    {2, 130, 4, 2, 20, .full = true, .n_keys = 70, .length = 64},
    {2, 7, 6, 3, 64, .full = true, .n_keys = 150, .length = 1, .p = 0.3f},
    {1, 1, 2, 2, 3, .documents = {1}},
    {2, 5, 2, 2, 3, .documents = {1, 1, 1, 1}},
    {2, 70, 2, 1, 8, .documents = {3, 60, 1}, .p = 0.1f},
    {1, 192, 2, 2, 12, .documents = {64, 64}},
    {2, 330, 2, 2, 8, .documents = {20, 5, 1, 1, 101, 40, 90}},
    {1, 260, 4, 2, 17, .documents = {63, 2, 190}, .p = 0.2f},
    {2, 200, 2, 1, 8, .documents = {30, 10, 120}, .window = 20},
    {1, 260, 2, 2, 8, .documents = {70, 130}, .window = 65, .p = 0.1f},
    {1, 192, 1, 1, 64, .documents = {1, 31, 33, 70}},
    {2, 330, 2, 2, 64, .documents = {128, 100, 3, 40}, .p = 0.2f},
    {1, 390, 4, 2, 64, .documents = {65, 1, 290, 20}},
    {1, 260, 2, 2, 64, .documents = {20, 150}, .window = 33},
    {1, 200, 1, 1, 64, .documents = {64, 90}, .window = 70, .p = 0.2f},
    {2, 200, 2, 2, 128, .documents = {33, 1, 100}},
    {1, 133, 1, 1, 128, .documents = {40, 60}, .p = 0.2f},
    {1, 300, 4, 2, 128, .documents = {32, 200, 30}},
    {1, 200, 2, 2, 128, .documents = {50, 120}, .window = 31},
    {1, 384, 1, 1, 64, .is_prepared = true, .documents = {100, 200}},
    {1, 5, 1, 1, 3, .full = true, .documents = {1, 1, 1, 1}},
    {2, 70, 6, 3, 16, .full = true, .documents = {3, 60, 1}, .p = 0.3f},
    {1, 200, 2, 2, 8, .full = true, .documents = {64, 10, 100}},
    {2, 330, 4, 2, 20, .full = true, .documents = {20, 5, 1, 1, 101, 40, 90}},
    {1, 260, 2, 2, 64, .full = true, .documents = {70, 130, 30}, .p = 0.2f},
    {1, 1, 1, 1, 1, .buckets = &one_bucket},
    {2, 5, 3, 3, 3, .full = true, .buckets = &near_and_far, .length = 4},
    {2, 70, 2, 2, 8, .buckets = &t5_decoder, .p = 0.1f},
    {1, 190, 2, 2, 64, .buckets = &t5_decoder},
    {2, 130, 3, 3, 20, .full = true, .length = 64, .buckets = &t5_encoder, .p = 0.2f},
    {1, 150, 2, 2, 64, .full = true, .buckets = &t5_encoder},
    {1, 140, 2, 2, 12, .documents = {30, 70}, .buckets = &t5_decoder},
    {1, 100, 1, 1, 17, .window = 20, .buckets = &near_and_far},
};

#endif
