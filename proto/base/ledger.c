/* Bytes are counted where memory is taken and given back. Giving back more than was taken is a mistake of ours, and
 * asserted. The names are part of the JSON that eps mem and eps plan promise: they do not change. */
#include "proto/base/ledger.h"

#include <assert.h>

const char *ledger_name(enum ledger_category category)
{
    static const char *const names[LEDGER_CATEGORIES] = {
        [LEDGER_WEIGHTS] = "weights",
        [LEDGER_REPLAY] = "replay",
        [LEDGER_MASTER] = "master",
        [LEDGER_FIRST_MOMENT] = "first_moment",
        [LEDGER_SECOND_MOMENT] = "second_moment",
        [LEDGER_INBOX] = "inbox",
        [LEDGER_ACCUMULATORS] = "accumulators",
        [LEDGER_TIED] = "tied",
        [LEDGER_SUM] = "gradient_sum",
        [LEDGER_CHECKSUMS] = "checksums",
        [LEDGER_NORMS] = "norms",
        [LEDGER_DATA] = "data",
        [LEDGER_CONTRIBUTION] = "contribution",
        [LEDGER_STASH] = "stash",
        [LEDGER_KEPT] = "kept",
        [LEDGER_GRADIENT] = "gradient",
        [LEDGER_STATISTICS] = "statistics",
        [LEDGER_CACHE] = "cache",
        [LEDGER_WORKSPACE] = "workspace",
        [LEDGER_LIBRARY] = "library",
        [LEDGER_OTHER] = "other",
    };
    return (unsigned)category < LEDGER_CATEGORIES ? names[category] : NULL;
}

static void row_add(struct ledger_row *row, uint64_t bytes)
{
    row->current += bytes;
    if (row->peak < row->current)
        row->peak = row->current;
}

void ledger_add(struct ledger *ledger, enum ledger_category category, uint64_t bytes)
{
    row_add(&ledger->rows[category], bytes);
    row_add(&ledger->total, bytes);
}

void ledger_sub(struct ledger *ledger, enum ledger_category category, uint64_t bytes)
{
    assert(ledger->rows[category].current >= bytes);
    ledger->rows[category].current -= bytes;
    ledger->total.current -= bytes;
}

void ledger_forget_peaks(struct ledger *ledger)
{
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        ledger->rows[c].peak = ledger->rows[c].current;
    ledger->total.peak = ledger->total.current;
}
