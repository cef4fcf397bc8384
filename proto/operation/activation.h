/* proto/operation/activation.h - y = act(x), element by element. */
#ifndef PROTO_OPERATION_ACTIVATION_H
#define PROTO_OPERATION_ACTIVATION_H

struct program;

enum model_activation {
    MODEL_GELU_NEW,
    MODEL_GELU,
    MODEL_RELU,
    MODEL_SILU,
    MODEL_TANH,
    MODEL_SIGMOID
}; /* GELU: tanh form; erf form */

struct program_activation_options {
    enum model_activation function;
};

/* No other operation may read x. A linear map before or behind it computes it in the same pass. */
int program_activation(struct program *p, int x, enum model_activation function);

#endif
