/* tests/fuzz/fuzz_metrics.c - metrics.jsonl of a run: it is read, in rising steps, and cut back to a step. */
#include "client/record/metrics.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <unistd.h>

enum { STEP = 3 };

static void on_step(void *user, const struct eps_step *step)
{
    uint64_t *last = user;

    fuzz_demand(step->step > *last && step->n_memory <= 2);
    *last = step->step;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct client_metrics metrics;
    struct eps_error error;
    struct error err = {""};
    uint64_t last = 0, n_bad;

    fuzz_write("metrics.jsonl", bytes, n);
    fuzz_demand(eps_metrics_read(fuzz_directory(), on_step, &last, &n_bad, &error) == 0);
    const int directory = open(fuzz_directory(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fuzz_demand(client_metrics_reopen(&metrics, directory, STEP, NULL, NULL, &err) == 0);
    client_metrics_close(&metrics);
    close(directory);
    last = 0;
    fuzz_demand(eps_metrics_read(fuzz_directory(), on_step, &last, &n_bad, &error) == 0 && last <= STEP);
    return 0;
}
