/* Searches the width of a model's feed-forward layers through libeps: a small GPT-2 learns for some steps; then three
 * runs go on from its checkpoint, in each of which these layers get another width, for as many steps. They keep its
 * data, its rates and what it has learned, so no model begins from nothing. The one with the lowest held-out loss is
 * the best.
 *
 *     cc example_widths.c -o example_widths $(pkg-config --cflags --libs eps)
 *     ./example_widths book.txt runs/widths 300 */
#include <errno.h>
#include <eps.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* n_inner is the width of the feed-forward layers; a vocabulary of 256 takes the bytes of a text. */
static const char config[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 4, \"n_embd\": 64, \"n_inner\": 64,\n"
    " \"n_positions\": 64, \"vocab_size\": 256, \"attn_pdrop\": 0, \"embd_pdrop\": 0, \"resid_pdrop\": 0}\n";

static void on_evaluated(void *user, uint64_t step, double loss, uint64_t tokens)
{
    double *last = user;
    (void)step, (void)tokens;
    *last = loss;
}

/* Held-out loss of a run, which begins from `model` or, with other widths, from what `resume` has learned. Ends the
 * program if it fails. */
static double train(struct eps_train_options options, const char *const *data, const char *out, uint64_t steps)
{
    const struct eps_train_events events = {.on_evaluated = on_evaluated};
    struct eps_error error;
    double loss = 0;

    options.data = data;
    options.n_data = 1;
    options.out = out;
    options.steps = steps;
    if (eps_train(&options, &events, &loss, &error)) {
        fprintf(stderr, "example_widths: %s\n", error.text);
        exit(1);
    }
    return loss;
}

int main(int argc, char **argv)
{
    static const unsigned widths[] = {16, 128, 512};
    struct eps_train_options options = eps_train_defaults();
    char path[4096], beginning[4096], out[4096], replace[64];
    double least = 0;
    unsigned best = 0;

    if (argc != 4) {
        fprintf(stderr, "usage: %s DATA OUT STEPS\n", argv[0]);
        return 2;
    }
    const uint64_t steps = strtoull(argv[3], NULL, 10);
    const char *const data[] = {argv[1]};
    snprintf(path, sizeof path, "%s/config.json", argv[2]);
    FILE *file = mkdir(argv[2], 0777) && errno != EEXIST ? NULL : fopen(path, "w");
    if (!file || fputs(config, file) < 0 || fclose(file)) {
        perror(argv[2]);
        return 1;
    }
    options.model = path;
    options.batch = 8;
    options.lr = 2e-3;
    options.schedule = EPS_SCHEDULE_CONSTANT; /* what it has in the middle of the search, it has at the end */
    snprintf(beginning, sizeof beginning, "%s/beginning", argv[2]);
    printf("width 64: held-out loss %.4f at step %s\n", train(options, data, beginning, steps), argv[3]);

    options = eps_train_defaults(); /* what is unset stays as it was */
    options.resume = beginning;
    for (unsigned i = 0; i < sizeof widths / sizeof *widths; i++) {
        snprintf(replace, sizeof replace, "0=%u,1=%u", widths[i], widths[i]);
        snprintf(out, sizeof out, "%s/width-%u", argv[2], widths[i]);
        options.replace = replace;
        const double loss = train(options, data, out, 2 * steps);
        printf("width %u: held-out loss %.4f\n", widths[i], loss);
        if (best == 0 || loss < least)
            best = widths[i], least = loss;
    }
    printf("the best width is %u: %s/width-%u/latest\n", best, argv[2], best);
    return 0;
}
