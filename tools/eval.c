#include "client/eps.h"
#include "tools/commands.h"
#include "tools/arguments.h"
#include "tools/screen/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* masked: the tokens are those that were masked, and the perplexity is called what it is then. */
static void print_result(double loss, uint64_t tokens, bool masked, bool json)
{
    if (!json && masked) {
        printf("masked loss %.6f nats per masked token over %" PRIu64 " of them (pseudo-perplexity %.4g)\n", loss,
               tokens, exp(loss));
        return;
    }
    if (!json) {
        printf("loss %.6f nats per token over %" PRIu64 " tokens (perplexity %.4g)\n", loss, tokens, exp(loss));
        return;
    }
    json_t *value = json_real(loss); /* NULL if it is not finite */
    json_t *perplexity = json_real(exp(loss));
    json_t *object = json_pack("{s:o, s:I, s:o}", "loss", value ? value : json_null(), "tokens", (json_int_t)tokens,
                               masked ? "pseudo_perplexity" : "perplexity", perplexity ? perplexity : json_null());
    answer_print(object);
}

struct eval {
    struct progress progress;
    struct stopping stopping;
    bool masked;
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

static void on_note(void *user, const char *sentence)
{
    struct eval *e = user;

    progress_clear(&e->progress);
    fprintf(stderr, "eps eval: %s\n", sentence);
}

static void on_start(void *user, const struct eps_eval_options *options)
{
    struct eval *e = user;
    e->masked = !isnan(options->mask_fraction);
}

static int run(const struct command *command, const struct eps_eval_options *options, bool json)
{
    static const struct eps_eval_events events = {on_evaluating, should_stop, on_note, on_start};
    struct eps_error error;
    struct eval e;
    uint64_t tokens;
    double loss;

    stopping_init(&e.stopping);
    progress_init(&e.progress, stderr);
    int rc = eps_eval(&loss, &tokens, options, &events, &e, &error);
    progress_clear(&e.progress);
    if (!rc) {
        print_result(loss, tokens, e.masked, json);
        return 0;
    }
    int status = arguments_fail(command, rc, error.text);
    return rc == -EINTR ? stopping_status(&e.stopping, status) : status;
}

int command_eval(int argc, char **argv)
{
    struct eps_eval_options options = {.mask_fraction = NAN};
    struct argument_texts data = {0};
    unsigned separator = 0;
    bool json = false;
    const struct argument arguments[] = {
        {"Model and data", .kind = ARGUMENT_HEADING},
        {"--model", "DIR", ARGUMENT_TEXT, &options.model,
         "a directory with config.json and *.safetensors, a run's directory (its latest checkpoint) or a step-N; "
         "default: the current model of your only live run"},
        {"--data", "FILE...", ARGUMENT_TEXTS, &data,
         "text, .jsonl, or token ids as .bin or .npy, as in eps train --help"},
        {"--separator", "none|eos", ARGUMENT_CHOICE, &separator,
         "what separates texts; default eos, if the tokenizer has an end-of-text token"},
        {"--batch", "N", ARGUMENT_COUNT, &options.batch, "sequences per batch; default: about 16 Ki tokens"},
        {"--seq", "N", ARGUMENT_COUNT, &options.seq,
         "tokens per sequence; default: the model's positions, at most 1024"},
        {"--stride", "N", ARGUMENT_COUNT, &options.stride,
         "tokens from one sequence's begin to the next one's; default: --seq. Fewer predict each token from more "
         "tokens "
         "before it, and take longer"},
        {"--eval-tokens", "N", ARGUMENT_LONG, &options.eval_tokens,
         "measure N tokens, spread over the data; default: all"},
        {"--mask-fraction", "X", ARGUMENT_REAL, &options.mask_fraction,
         "of a model that predicts masked tokens: the fraction of tokens to mask; default 0.15"},
        {"--seed", "N", ARGUMENT_NUMBER, &options.seed, "seed for the masks; default 0"},
        ARGUMENTS_MACHINE(&options),
        {"Output", .kind = ARGUMENT_HEADING},
        {"--json", NULL, ARGUMENT_FLAG, &json,
         "print an object with loss, tokens and perplexity (masked tokens: pseudo_perplexity)"},
    };
    const struct command command = {
        "eps eval",
        "Prints the mean loss (nats per token) and the perplexity of a model over files. For a "
        "model that predicts masked tokens, tokens are masked as in training.",
        arguments, sizeof arguments / sizeof *arguments};
    int status = arguments_parse(&command, argc, argv);

    if (status < 0) {
        options.data = data.items, options.n_data = data.n;
        options.separator = (enum eps_separator)separator;
        status = run(&command, &options, json);
    }
    free(data.items);
    return status;
}
