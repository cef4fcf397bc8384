/* proto/operation/calls.h - every operation of a device that computes: its name, and the struct that it takes.
 *
 * The one list of them. The table of a backend (device.h), calls as data (call.h) and the backends' rows are made from
 * it. An operation is its struct, what it means and what it does (call/X.h, call/X.c), its kernels in each backend, and
 * its row here.
 *
 * Every array of a struct is the device's unless its comment says otherwise, and borrowed until the operation is done.
 * The struct itself is read before the call returns. */
#ifndef PROTO_OPERATION_CALLS_H
#define PROTO_OPERATION_CALLS_H

#include "proto/operation/call/attention.h"
#include "proto/operation/call/batch_norm.h"
#include "proto/operation/call/compress.h"
#include "proto/operation/call/conv2d.h"
#include "proto/operation/call/cross_entropy.h"
#include "proto/operation/call/decode.h"
#include "proto/operation/call/dropout.h"
#include "proto/operation/call/dynamic_conv.h"
#include "proto/operation/call/embed.h"
#include "proto/operation/call/experts.h"
#include "proto/operation/call/gated_delta.h"
#include "proto/operation/call/glu.h"
#include "proto/operation/call/head_gate.h"
#include "proto/operation/call/matmul.h"
#include "proto/operation/call/norm.h"
#include "proto/operation/call/pixels.h"
#include "proto/operation/call/pool.h"
#include "proto/operation/call/preference.h"
#include "proto/operation/call/regroup.h"
#include "proto/operation/call/rope.h"
#include "proto/operation/call/sample.h"
#include "proto/operation/call/short_conv.h"
#include "proto/operation/call/sparse.h"
#include "proto/operation/call/split.h"
#include "proto/operation/call/squared_error.h"
#include "proto/operation/call/vector.h"
#include "proto/operation/call/xielu.h"

#define DEVICE_CALLS(X)                                                                                                \
    X(zero, device_zero)                                                                                               \
    X(round_half, device_round_half)                                                                                   \
    X(decode, device_decode)                                                                                           \
    X(scatter, device_sparse)                                                                                          \
    X(gather, device_sparse)                                                                                           \
    X(activate, device_activate)                                                                                       \
    X(activate_backward, device_activate)                                                                              \
    X(add, device_add)                                                                                                 \
    X(reduce_rows, device_reduce_rows)                                                                                 \
    X(row_norms, device_row_norms)                                                                                     \
    X(weigh_scores, device_weigh_scores)                                                                               \
    X(choose_rows, device_choose_rows)                                                                                 \
    X(gather_rows, device_gather_rows)                                                                                 \
    X(compress, device_compress)                                                                                       \
    X(expand, device_expand)                                                                                           \
    X(round_values, device_round_values)                                                                               \
    X(matmul, device_matmul)                                                                                           \
    X(norm, device_norm)                                                                                               \
    X(norm_backward, device_norm)                                                                                      \
    X(row_moments, device_row_moments)                                                                                 \
    X(row_moments_backward, device_row_moments)                                                                        \
    X(join_moments, device_join_moments)                                                                               \
    X(join_moments_backward, device_join_moments)                                                                      \
    X(batch_norm, device_batch_norm)                                                                                   \
    X(running_statistics, device_running)                                                                              \
    X(running_gradient, device_running)                                                                                \
    X(batch_norm_backward, device_batch_norm)                                                                          \
    X(rope, device_rope)                                                                                               \
    X(sinusoid, device_sinusoid)                                                                                       \
    X(regroup, device_regroup)                                                                                         \
    X(split, device_split)                                                                                             \
    X(join, device_split)                                                                                              \
    X(glu, device_glu)                                                                                                 \
    X(glu_backward, device_glu)                                                                                        \
    X(head_gate, device_head_gate)                                                                                     \
    X(head_gate_backward, device_head_gate)                                                                            \
    X(xielu, device_xielu)                                                                                             \
    X(xielu_backward, device_xielu)                                                                                    \
    X(attention, device_attention)                                                                                     \
    X(attention_backward, device_attention)                                                                            \
    X(attention_cached, device_attention_cached)                                                                       \
    X(dynamic_conv, device_dynamic_conv)                                                                               \
    X(dynamic_conv_backward, device_dynamic_conv)                                                                      \
    X(short_conv, device_short_conv)                                                                                   \
    X(short_conv_backward, device_short_conv)                                                                          \
    X(short_conv_cached, device_short_conv)                                                                            \
    X(gated_delta, device_gated_delta)                                                                                 \
    X(gated_delta_backward, device_gated_delta)                                                                        \
    X(gated_delta_cached, device_gated_delta)                                                                          \
    X(route, device_route)                                                                                             \
    X(route_backward, device_route)                                                                                    \
    X(experts, device_experts)                                                                                         \
    X(experts_backward, device_experts)                                                                                \
    X(conv2d, device_conv2d)                                                                                           \
    X(conv2d_input_gradient, device_conv2d)                                                                            \
    X(conv2d_weight_gradient, device_conv2d)                                                                           \
    X(max_pool, device_pool)                                                                                           \
    X(max_pool_backward, device_pool)                                                                                  \
    X(average_pool, device_pool)                                                                                       \
    X(average_pool_backward, device_pool)                                                                              \
    X(sum_blocks, device_sum_blocks)                                                                                   \
    X(dropout_add, device_dropout_add)                                                                                 \
    X(embed, device_embed)                                                                                             \
    X(embed_backward, device_embed)                                                                                    \
    X(pixels, device_pixels)                                                                                           \
    X(position, device_position)                                                                                       \
    X(position_backward, device_position)                                                                              \
    X(soft_cap, device_soft_cap)                                                                                       \
    X(log_sum_exp, device_cross_entropy)                                                                               \
    X(loss, device_loss)                                                                                               \
    X(cross_entropy_gradient, device_cross_entropy)                                                                    \
    X(preference, device_preference)                                                                                   \
    X(squared_error, device_squared_error)                                                                             \
    X(squared_error_gradient, device_squared_error)

#endif
