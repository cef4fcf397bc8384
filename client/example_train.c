/* Trains a model through libeps, in forty lines.
 *
 *     cc example_train.c -o example_train $(pkg-config --cflags --libs eps)
 *     ./example_train config.json book.txt runs/book 100 */
#include <eps.h>
#include <stdio.h>
#include <stdlib.h>

static void on_step(void *user, const struct eps_step *step)
{
    FILE *out = user;
    fprintf(out, "step %llu of %llu: loss %.4f\n", (unsigned long long)step->step, (unsigned long long)step->n_steps,
            step->loss);
}

int main(int argc, char **argv)
{
    const struct eps_train_events events = {.on_step = on_step};
    struct eps_train_options options = eps_train_defaults();
    struct eps_error error;

    if (argc != 5) {
        fprintf(stderr, "usage: %s MODEL DATA OUT STEPS\n", argv[0]);
        return 2;
    }
    options.model = argv[1]; /* config.json, a directory with weights, or a preset's name */
    options.data = (const char *const[]){argv[2]};
    options.n_data = 1;
    options.out = argv[3];
    options.steps = strtoull(argv[4], NULL, 10);

    /* A daemon and a worker start with this call and end with it. */
    if (eps_train(&options, &events, stdout, &error)) {
        fprintf(stderr, "%s: %s\n", argv[0], error.text);
        return 1;
    }
    printf("the model is in %s/latest\n", options.out);
    return 0;
}
