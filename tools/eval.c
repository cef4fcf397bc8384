#include "client/eps.h"
#include "tools/answer.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/stopping.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void print_result(double loss, uint64_t tokens, bool json)
{
    if (!json) {
        printf("loss %.6f nats per token over %" PRIu64 " tokens (perplexity %.4g)\n", loss, tokens, exp(loss));
        return;
    }
    json_t *value = json_real(loss); /* NULL if it is not finite */
    json_t *perplexity = json_real(exp(loss));
    json_t *object = json_pack("{s:o, s:I, s:o}", "loss", value ? value : json_null(), "tokens", (json_int_t)tokens,
                               "perplexity", perplexity ? perplexity : json_null());
    answer_print(object);
}

struct eval {
    struct progress progress;
    struct stopping stopping;
};

static void on_evaluating(void *user, uint64_t n_tokens, uint64_t n_all)
{
    struct eval *e = user;
    progress_evaluating(&e->progress, n_tokens, n_all);
}

static int should_stop(void *user)
{
    struct eval *e = user;
    return stopping_look(&e->stopping);
}

static int run(const struct command *command, const struct eps_eval_options *options, bool json)
{
    static const struct eps_eval_events events = {on_evaluating, should_stop};
    struct eps_error error;
    struct eval e;
    uint64_t tokens;
    double loss;

    stopping_init(&e.stopping);
    progress_init(&e.progress, stderr);
    int rc = eps_eval(&loss, &tokens, options, &events, &e, &error);
    progress_clear(&e.progress);
    if (!rc) {
        print_result(loss, tokens, json);
        return 0;
    }
    int status = arguments_fail(command, rc, error.text);
    return rc == -EINTR ? stopping_status(&e.stopping, status) : status;
}

int command_eval(int argc, char **argv)
{
    struct eps_eval_options options = {0};
    struct argument_texts data = {0};
    bool json = false;
    const struct argument arguments[] = {
        {"Model and data", .kind = ARGUMENT_HEADING},
        {"--model", "DIR", ARGUMENT_TEXT, &options.model,
         "config.json and *.safetensors, or what eps train left (DIR, or DIR/step-N);\n"
         "default the model that your only live run is training, as it is now"},
        {"--data", "FILE...", ARGUMENT_TEXTS, &data, "text, or token ids as .bin or .npy; see eps train --help"},
        {"--batch", "N", ARGUMENT_COUNT, &options.batch, "rows at once; default about 16 Ki tokens of them"},
        {"--seq", "N", ARGUMENT_COUNT, &options.seq, "tokens of a row; default the model's positions, at most 1024"},
        {"Machine", .kind = ARGUMENT_HEADING},
        {"--device", "auto|cpu|cuda[:N]", ARGUMENT_TEXT, &options.device,
         "default auto: CUDA if there is one, else the processor"},
        {"--device-mem", "BYTES", ARGUMENT_BYTES, &options.device_mem,
         "a hard cap on the worker's memory, as in 2GiB; default what is free but an eighth,\nof a CUDA device a 32nd"},
        {"--connect", "ADDRESS", ARGUMENT_TEXT, &options.connect,
         "with --model, use this daemon and its workers; without, take the model it\ntrains"},
        {"Output", .kind = ARGUMENT_HEADING},
        {"--json", NULL, ARGUMENT_FLAG, &json, "an object with loss, tokens and perplexity"},
    };
    const struct command command = {"eps eval",
                                    "Mean loss, in nats per token, of a model over files, window by window.", arguments,
                                    sizeof arguments / sizeof *arguments};
    int status = arguments_parse(&command, argc, argv);

    if (status < 0) {
        options.data = data.items, options.n_data = data.n;
        status = run(&command, &options, json);
    }
    free(data.items);
    return status;
}
