/* proto/operation/kind/xielu.h - y = xielu(x; positive, negative): proto/operation/call/xielu.h. */
#ifndef PROTO_OPERATION_KIND_XIELU_H
#define PROTO_OPERATION_KIND_XIELU_H

struct program;

struct program_xielu_options {
    float beta, bound; /* struct device_xielu */
};

/* stem: of the two numbers' names, "mlp.act_fn" for "mlp.act_fn.alpha_p" and "mlp.act_fn.alpha_n". No other operation
 * may read x. */
int program_xielu(struct program *p, int x, const char *stem, const struct program_xielu_options *xielu);

#endif
