/* Searches the width of a model's feed-forward layers through libeps: three small GPT-2 models that differ in it alone
 * learn the same data in the same order for some steps each, and the one with the lowest held-out loss is the best.
 * Fresh weights depend on the seed and the tensor alone, so what all three have begins alike.
 *
 *     cc example_widths.c -o example_widths $(pkg-config --cflags --libs eps)
 *     ./example_widths book.txt runs/widths 300 */
#include <errno.h>
#include <eps.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static const unsigned widths[] = {64, 256, 1024};
enum { WIDTHS = sizeof widths / sizeof *widths };

static void on_evaluated(void *user, uint64_t step, double loss, uint64_t tokens)
{
    double *last = user;
    (void)step, (void)tokens;
    *last = loss;
}

/* n_inner is the width of the feed-forward layers; a vocabulary of 256 takes the bytes of a text. */
static int write_config(const char *path, unsigned width)
{
    FILE *out = fopen(path, "w");
    if (!out)
        return -1;
    fprintf(out,
            "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 4, \"n_embd\": 64, \"n_inner\": %u,\n"
            " \"n_positions\": 64, \"vocab_size\": 256, \"attn_pdrop\": 0, \"embd_pdrop\": 0, \"resid_pdrop\": 0}\n",
            width);
    return fclose(out);
}

int main(int argc, char **argv)
{
    const struct eps_train_events events = {.on_evaluated = on_evaluated};
    char config[4096], out[4096];
    double loss, least = 0;
    int best = -1;

    if (argc != 4) {
        fprintf(stderr, "usage: %s DATA OUT STEPS\n", argv[0]);
        return 2;
    }
    if (mkdir(argv[2], 0777) && errno != EEXIST) {
        perror(argv[2]);
        return 1;
    }
    for (int i = 0; i < WIDTHS; i++) {
        struct eps_train_options options = eps_train_defaults();
        struct eps_error error;
        snprintf(config, sizeof config, "%s/width-%u.json", argv[2], widths[i]);
        snprintf(out, sizeof out, "%s/width-%u", argv[2], widths[i]);
        if (write_config(config, widths[i])) {
            perror(config);
            return 1;
        }
        options.model = config;
        options.data = (const char *const[]){argv[1]};
        options.n_data = 1;
        options.out = out;
        options.steps = strtoull(argv[3], NULL, 10);
        options.batch = 8;
        options.lr = 2e-3;
        options.seed = 1; /* of weights and order */
        if (eps_train(&options, &events, &loss, &error)) {
            fprintf(stderr, "%s: %s\n", argv[0], error.text);
            return 1;
        }
        printf("width %u: held-out loss %.4f\n", widths[i], loss);
        if (best < 0 || loss < least)
            best = i, least = loss;
    }
    printf("the best width is %u: %s/width-%u/latest\n", widths[best], argv[2], widths[best]);
    return 0;
}
