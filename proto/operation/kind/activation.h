/* proto/operation/kind/activation.h - y = act(x), element by element. */
#ifndef PROTO_OPERATION_KIND_ACTIVATION_H
#define PROTO_OPERATION_KIND_ACTIVATION_H

struct program;

enum model_activation {
    MODEL_GELU_NEW, /* the form with tanh */
    MODEL_GELU,     /* with the error function */
    MODEL_RELU,
    MODEL_SILU,
    MODEL_TANH,
    MODEL_SIGMOID,
    MODEL_RELU2,     /* relu(x)^2. So et al., arXiv:2109.08668 */
    MODEL_GELU_QUICK /* x sigmoid(1.702 x). Hendrycks & Gimpel, arXiv:1606.08415 */
};
enum { MODEL_ACTIVATIONS = MODEL_GELU_QUICK + 1 };

struct program_activation_options {
    enum model_activation function;
};

/* No other operation may read x. A linear map before or behind it computes it in the same pass. */
int program_activation(struct program *p, int x, enum model_activation function);

#endif
