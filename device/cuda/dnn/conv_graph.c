/* A convolution of images and its gradients, as graphs. Shapes are the library's, (images, channels, height, width);
 * strides are those of our layouts, in which the channels of a pixel lie side by side. */
#include "device/cuda/dnn/graph.h"

static struct dnn_array images(int64_t id, enum dnn_type type, size_t n, size_t channels, size_t height, size_t width)
{
    const int64_t c = (int64_t)channels, h = (int64_t)height, w = (int64_t)width;

    return (
        struct dnn_array){.id = id, .type = type, .shape = {(int64_t)n, c, h, w}, .strides = {h * w * c, 1, w * c, c}};
}

bool dnn_graph_conv(struct dnn_graph *g, const struct dnn_api *api, void *handle, const struct device_conv2d *op,
                    size_t n_rows, enum conv2d_kind kind, bool adds)
{
    static const enum dnn_descriptor operations[CONV2D_KINDS] = {DNN_OPERATION_CONVOLUTION,
                                                                 DNN_OPERATION_CONVOLUTION_INPUT,
                                                                 DNN_OPERATION_CONVOLUTION_WEIGHTS};
    static const enum dnn_conv_tensor results[CONV2D_KINDS] = {DNN_CONV_Y, DNN_CONV_X, DNN_CONV_WEIGHT};
    struct dnn_array arrays[] = {images(DNN_CONV_X, DNN_BF16, n_rows, op->n_in, op->height, op->width),
                                 images(DNN_CONV_WEIGHT, kind == CONV2D_WEIGHTS ? DNN_FP32 : DNN_BF16, op->n_out,
                                        op->n_in / op->n_groups, op->window.height, op->window.width),
                                 images(DNN_CONV_Y, DNN_BF16, n_rows, op->n_out, device_conv2d_height(op),
                                        device_conv2d_width(op))};
    struct dnn_array *const result = &arrays[results[kind] - DNN_CONV_X], as_asked = *result;
    void *tensors[3];

    *g = (struct dnn_graph){.api = api};
    adds |= kind == CONV2D_WEIGHTS;
    if (adds)
        result->id = DNN_ANONYMOUS, result->type = DNN_FP32, result->is_virtual = true;
    for (int i = 0; i < 3; i++)
        tensors[i] = dnn_add_array(g, &arrays[i]);
    dnn_add_convolution(g, operations[kind], &op->window, tensors[0], tensors[1], tensors[2]);
    if (adds) {
        struct dnn_array before = as_asked;
        before.id = DNN_CONV_ADDED;
        dnn_add_pointwise(g, &(struct dnn_pointwise_operation){.mode = DNN_ADD,
                                                               .x = tensors[results[kind] - DNN_CONV_X],
                                                               .b = dnn_add_array(g, &before),
                                                               .y = dnn_add_array(g, &as_asked)});
    }
    return dnn_graph_finish(g, handle);
}
