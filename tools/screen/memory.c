#include "tools/screen/memory.h"

#include <inttypes.h>

static void print_row(FILE *out, const char *name, const struct eps_memory_row *row, bool planned)
{
    const uint64_t most = row->peak > row->planned ? row->peak : row->planned;
    char a[24], b[24], c[24];

    fprintf(out, "  %-16s %12s %12s", name, eps_format_bytes_like(a, row->current, most),
            eps_format_bytes_like(b, row->peak, most));
    if (planned)
        fprintf(out, " %12s", eps_format_bytes_like(c, row->planned, most));
    fputc('\n', out);
}

static void print_difference(FILE *out, const struct eps_memory *side)
{
    const bool more = side->current > side->planned;

    if (side->current == side->planned)
        fprintf(out, "  as planned, to the byte\n");
    else
        fprintf(out, "  %" PRIu64 " B %s than planned\n",
                more ? side->current - side->planned : side->planned - side->current, more ? "more" : "less");
}

static void print_pages(FILE *out, const struct eps_pages *pages)
{
    const uint64_t all = pages->resident;
    char text[24];

    fprintf(out, "  resident %s", eps_format_bytes(text, all));
    fprintf(out, ", locked %s", eps_format_bytes_like(text, pages->locked, all));
    fprintf(out, ", in huge pages %s", eps_format_bytes_like(text, pages->huge, all));
    for (size_t i = 0; i < pages->n_nodes && pages->n_nodes > 1; i++)
        fprintf(out, "%s node %zu %s", i ? "," : ";", i, eps_format_bytes_like(text, pages->nodes[i], all));
    fputc('\n', out);
}

void memory_print(FILE *out, const struct eps_memory *side)
{
    const struct eps_memory_row total = {"total", side->current, side->peak, side->planned};
    const bool planned = side->planned > 0;
    char name[64], budget[24];

    if (side->worker == 0)
        snprintf(name, sizeof name, "host");
    else
        snprintf(name, sizeof name, "worker %u: %.24s, of %s", side->worker, side->device,
                 eps_format_bytes(budget, side->budget));
    fprintf(out, "%-30s %s         peak%s\n", name, "now", planned ? "      planned" : "");
    for (size_t i = 0; i < side->n_rows; i++)
        print_row(out, side->rows[i].category, &side->rows[i], planned);
    print_row(out, total.category, &total, planned);
    if (planned)
        print_difference(out, side);
    if (side->pages.known)
        print_pages(out, &side->pages);
}
