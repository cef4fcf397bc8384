/* One step's gradient against PyTorch in float64, however the minibatch is cut. */
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

SUITE_LABELS(single, on_cuda_release)

/* b has 16 rows, the others 8. The blocks of alternating differ; those of chunked and experts are of several layers,
 * which add to sums and read one value together. Pixels has no tables, nor have the nets, whose rows are images; two of
 * them by means of blocks, two with ghost batches of 2 and 4 rows. Those of crossing have two texts, those of part_norm
 * a norm over the part, those of pictures features of an image, with such a norm; of drop a step leaves out some. Those
 * of widths have feed-forward layers of three widths, those of guests three families. Those of t5 and dynamic_conv have
 * a source, whose length differs from row to row; those of t5 read a value that is made once a part. The minibatches of
 * padding_* have the token of padding, whose row of the embedding the input does not train. The first ones are enough
 * for a device that is simulated: those after them have other sizes of the same operations, or leave blocks out. More
 * of them are enough for a sanitizer. */
static const struct {
    const char *fixture;
    uint32_t n_parts, microbatch;
} cuts[] = {{"a", 1, 8},
            {"padding_qwen2", 1, 3},
            {"alternating", 2, 3},
            {"chunked", 2, 3},
            {"experts", 4, 1},
            {"pixels", 2, 3},
            {"wide_resnet", 1, 3},
            {"pooled_wide", 1, 3},
            {"ghost_wide", 1, 6},
            {"sparse_conv", 2, 3},
            {"crossing", 2, 3},
            {"t5", 2, 3},
            {"dynamic_conv", 2, 3},
            {"part_norm", 1, 3},
            {"pictures", 1, 3},
            {"padding_gemma3", 4, 2},
            {"sparse_wide", 1, 3},
            {"t5_gated", 4, 1},
            {"dynamic_conv_gated", 4, 1},
            {"drop", 2, 3},
            {"widths", 2, 3},
            {"guests", 2, 3},
            {"b", 1, 5},
            {"a", 8, 1},
            {"a", 2, 2},
            {"resnet_basic", 1, 8},
            {"resnet_bottleneck", 1, 2},
            {"means_bottleneck", 1, 3},
            {"ghost_bottleneck", 1, 4},
            {"b", 2, 8},
            {"b", 8, 1}};

TEST_EACH(a_gradient_is_pytorchs, backend_get()->simulated ? 17 : SANITIZED ? 25 : COUNT(cuts))
{
    exact_check_gradient(cuts[_i].fixture, &(struct inprocess_options){.n_parts = cuts[_i].n_parts,
                                                                       .microbatch = cuts[_i].microbatch,
                                                                       .n_threads = 2});
}
