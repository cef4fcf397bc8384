/* proto/operation/list.h - all operations of programs: a name, and its options as programs hold them.
 *
 * A new one is a row here and a file of its own. */
#ifndef PROTO_OPERATION_LIST_H
#define PROTO_OPERATION_LIST_H

#include "proto/operation/kind/activation.h"
#include "proto/operation/kind/adapter.h"
#include "proto/operation/kind/add.h"
#include "proto/operation/kind/attention.h"
#include "proto/operation/kind/batch_norm.h"
#include "proto/operation/kind/conv2d.h"
#include "proto/operation/kind/cross_attention.h"
#include "proto/operation/kind/dropout.h"
#include "proto/operation/kind/dynamic_conv.h"
#include "proto/operation/kind/experts.h"
#include "proto/operation/kind/gate.h"
#include "proto/operation/kind/gated_delta.h"
#include "proto/operation/kind/glu.h"
#include "proto/operation/kind/head_norm.h"
#include "proto/operation/kind/linear.h"
#include "proto/operation/kind/norm.h"
#include "proto/operation/parameter.h"
#include "proto/operation/kind/pixels.h"
#include "proto/operation/kind/pool.h"
#include "proto/operation/kind/regroup.h"
#include "proto/operation/kind/rope.h"
#include "proto/operation/kind/short_conv.h"
#include "proto/operation/kind/sinusoid.h"
#include "proto/operation/kind/split.h"
#include "proto/operation/kind/take.h"
#include "proto/operation/kind/xielu.h"

#define OPERATIONS(X)                                                                                                  \
    X(norm, program_norm_options)                                                                                      \
    X(linear, program_linear_maps)                                                                                     \
    X(adapter, program_adapter_options)                                                                                \
    X(head_norm, program_head_norm_options)                                                                            \
    X(regroup, program_regroup_options)                                                                                \
    X(split, program_split_options)                                                                                    \
    X(rope, program_rotation)                                                                                          \
    X(attention, program_attention_options)                                                                            \
    X(activation, program_activation_options)                                                                          \
    X(glu, program_activation_options)                                                                                 \
    X(gate, program_gate_options)                                                                                      \
    X(xielu, program_xielu_options)                                                                                    \
    X(add, program_dropout)                                                                                            \
    X(dropout, program_dropout)                                                                                        \
    X(parameter, program_parameter_options)                                                                            \
    X(pixels, program_pixels_options)                                                                                  \
    X(take, program_take_options)                                                                                      \
    X(cross_attention, program_cross_attention_options)                                                                \
    X(dynamic_conv, program_dynamic_conv_options)                                                                      \
    X(short_conv, program_short_conv_parts)                                                                            \
    X(gated_delta, program_gated_delta_options)                                                                        \
    X(route, program_route_options)                                                                                    \
    X(experts, program_experts_options)                                                                                \
    X(sinusoid, program_sinusoid_options)                                                                              \
    X(row_moments, program_row_moments_options)                                                                        \
    X(join_moments, program_join_moments_options)                                                                      \
    X(batch_norm, program_batch_norm_options)                                                                          \
    X(conv2d, program_conv2d_options)                                                                                  \
    X(max_pool, program_pool_options)                                                                                  \
    X(average_pool, program_pool_options)

#define OPERATION_DECLARE(name, options) extern const struct operation operation_##name;
OPERATIONS(OPERATION_DECLARE)
#undef OPERATION_DECLARE

#endif
