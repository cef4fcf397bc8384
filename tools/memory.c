#include "tools/memory.h"

static void print_row(FILE *out, const char *name, uint64_t current, uint64_t peak)
{
    char a[24], b[24];
    fprintf(out, "  %-16s %12s %12s\n", name, eps_format_bytes(a, current), eps_format_bytes(b, peak));
}

void memory_print(FILE *out, const struct eps_memory *side)
{
    char name[64], budget[24];

    if (side->worker == 0)
        snprintf(name, sizeof name, "host");
    else
        snprintf(name, sizeof name, "worker %u: %.24s, of %s", side->worker, side->device,
                 eps_format_bytes(budget, side->budget));
    fprintf(out, "%-30s %s         peak\n", name, "now");
    for (size_t i = 0; i < side->n_rows; i++)
        print_row(out, side->rows[i].category, side->rows[i].current, side->rows[i].peak);
    print_row(out, "total", side->current, side->peak);
}
