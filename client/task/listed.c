/* Samples are numbered as they are in the data, and rows are known by that number throughout: groups that are dropped,
 * cut or held out leave the numbers of all others as they were. So what a run draws by a number, and remembers by an
 * entry, does not depend on --seq. */
#include "client/task/listed.h"

#include "client/text/tokenizer.h"
#include "proto/model/family.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static const struct client_listed *listed_of(const struct client_source *source)
{
    return (const struct client_listed *)source;
}

static void listed_init(struct client_source *source)
{
    struct client_listed *l = (struct client_listed *)source;

    l->corpus[CLIENT_TRAIN].fd = l->corpus[CLIENT_HELD_OUT].fd = -1;
}

int client_listed_open(struct client_source *source, const struct client_listed_ops *ops, struct error *err)
{
    struct client_listed *l = (struct client_listed *)source;
    const struct model_config *config = source->setup.config;
    const uint32_t vocabulary = config->vocabulary, others = config->source_vocabulary;

    l->ops = ops;
    return ops->reader ? client_tokenizer_require(&l->tokenizer, source->setup.side, config->family->model_type,
                                                  vocabulary > others ? vocabulary : others, ops->reader, err)
                       : 0;
}

/* The tokenizer is large, and closed after the last part that it reads. */
void client_listed_has_read(struct client_source *source, enum client_part part)
{
    struct client_listed *l = (struct client_listed *)source;
    struct client_data *data = client_source_data(source, part);

    l->n[part] = l->corpus[part].n;
    data->n = l->corpus[part].n_tokens;
    data->hash = l->corpus[part].hash;
    if (part == CLIENT_HELD_OUT || source->setup.eval_data->n_files == 0) {
        client_tokenizer_close(l->tokenizer);
        l->tokenizer = NULL;
    }
}

enum client_part client_listed_data(const struct client_source *source, enum client_part part)
{
    return part == CLIENT_HELD_OUT && listed_of(source)->n[CLIENT_HELD_OUT] > 0 ? CLIENT_HELD_OUT : CLIENT_TRAIN;
}

uint32_t client_listed_longest(const struct client_source *source)
{
    const struct client_listed *l = listed_of(source);
    uint32_t longest = 0;

    for (enum client_part data = CLIENT_TRAIN; data <= CLIENT_HELD_OUT; data++)
        for (size_t k = 0; k < l->n[data]; k++) {
            const uint32_t n = l->ops->length(source, data, k);
            longest = n > longest ? n : longest;
        }
    return longest;
}

static uint32_t listed_count(const struct client_source *source, enum client_part data, size_t k)
{
    const struct client_listed_ops *ops = listed_of(source)->ops;

    if (ops->count)
        return ops->count(source, data, k);
    const uint32_t n = ops->length(source, data, k);
    return n < source->seq ? n : source->seq;
}

/* As count, of a group's longest sample. */
static uint32_t count_longest(const struct client_source *source, enum client_part data, size_t group)
{
    const uint32_t n = listed_of(source)->lengths[data][group];

    if (listed_of(source)->ops->count)
        return listed_count(source, data, group);
    return n < source->seq ? n : source->seq;
}

/* ---- Which rows there are ---- */

static int measure_groups(struct client_listed *l, enum client_part data, struct error *err)
{
    const size_t n = l->n[data] / l->ops->group;
    uint32_t *lengths = calloc(n + 1, sizeof *lengths);

    l->lengths[data] = lengths;
    if (!lengths)
        return error_memory(err);
    for (size_t k = 0; k < l->n[data]; k++) {
        const uint32_t length = l->ops->length(&l->source, data, k);
        uint32_t *longest = &lengths[k / l->ops->group];
        *longest = length > *longest ? length : *longest;
    }
    return 0;
}

/* A group is kept if all of its samples are, and cut if one of them is. */
static int listed_find_fate(enum eps_fate *out, const struct client_listed *l, enum client_part data, size_t group,
                            enum eps_long long_rows, struct error *err)
{
    const struct client_listed_ops *ops = l->ops;
    int rc = 0;

    *out = EPS_KEPT;
    for (size_t k = group * ops->group; ops->find_fate && !rc && k < (group + 1) * ops->group; k++) {
        const enum eps_fate fate = ops->find_fate(&l->source, data, k, long_rows);
        *out = fate > *out ? fate : *out;
        if (long_rows == EPS_LONG_REFUSE)
            rc = ops->refuse(&l->source, data, k, err);
    }
    return rc;
}

/* Lists the groups that are kept, in their order. */
static int listed_keep(struct client_listed *l, enum client_part data, enum eps_long long_rows, struct error *err)
{
    const struct client_data *files = client_source_data(&l->source, data);
    const bool counts = data == CLIENT_TRAIN || l->n[CLIENT_TRAIN] == 0;
    const size_t n = l->n[data] / l->ops->group;
    struct client_subset *out = &l->subsets[data];
    int rc = measure_groups(l, data, err);

    if (!rc)
        rc = client_subset_init(out, l->lengths[data], n, err);
    for (size_t i = 0; !rc && i < n; i++) {
        enum eps_fate fate;
        rc = listed_find_fate(&fate, l, data, i, long_rows, err);
        l->fates[fate] += counts;
        if (fate == EPS_KEPT || fate == EPS_CUT)
            out->list[out->n++] = (uint32_t)i;
    }
    if (!rc && n > 0 && out->n == 0)
        rc = error_set(err, -EINVAL, "%s%s: %s --seq %" PRIu32 ": give a larger --seq", files->files[0].path,
                       files->n_files > 1 ? " and more" : "", l->ops->none, l->seq);
    return rc;
}

/* The sample that says where a group of data is from; NULL: nothing does. */
static const struct client_example *example_of(const struct client_listed *l, uint32_t group)
{
    const struct client_corpus *corpus = &l->corpus[CLIENT_TRAIN];

    return corpus->list ? &corpus->list[(size_t)group * l->ops->group] : NULL;
}

/* What came of one line stays on one side: else an evaluation would see what was trained on. */
static bool of_one_line(const struct client_listed *l, uint32_t a, uint32_t b)
{
    const struct client_example *x = example_of(l, a), *y = example_of(l, b);

    return x && x->file == y->file && x->line == y->line;
}

/* Moves a tenth of what is trained on to what is held out. */
static int hold_out(struct client_listed *l, uint64_t seed, struct error *err)
{
    struct client_subset *train = &l->subsets[CLIENT_TRAIN], *held_out = &l->subsets[CLIENT_HELD_OUT];
    const uint32_t n = train->n;
    uint32_t *line = calloc(n + (size_t)1, sizeof *line), n_lines = 0;
    bool *held = calloc(n + (size_t)1, sizeof *held);
    int rc = line && held ? client_subset_init(held_out, train->lengths, n, err) : error_memory(err);

    for (uint32_t i = 0; !rc && i < n; i++) {
        n_lines += i == 0 || !of_one_line(l, train->list[i - 1], train->list[i]);
        line[i] = n_lines - 1;
    }
    if (!rc && n_lines < 2)
        rc = error_set(err, -EINVAL,
                       "--data: one %s is too few to train on and to hold out another: give more, or --eval-data",
                       l->ops->what);
    if (!rc)
        client_subset_draw(held, n_lines, seed);
    train->n = 0;
    for (uint32_t i = 0; !rc && i < n; i++) {
        struct client_subset *to = held[line[i]] ? held_out : train;
        to->list[to->n++] = train->list[i];
    }
    free(line);
    free(held);
    return rc;
}

/* The rows to train on are in the data's order, so each file's follow each other. */
static int make_shares(struct client_listed *l, struct error *err)
{
    const struct client_subset *train = &l->subsets[CLIENT_TRAIN];
    const struct client_data *data = l->source.setup.data;
    uint32_t i = 0;

    if (!data || !l->corpus[CLIENT_TRAIN].list)
        return 0;
    l->shares = calloc(data->n_files + 1, sizeof *l->shares);
    if (!l->shares)
        return error_memory(err);
    for (size_t file = 0; file < data->n_files; file++) {
        struct client_share share = {.first = i, .weight = data->files[file].weight};
        while (i < train->n && example_of(l, train->list[i])->file == file)
            i++;
        share.n = i - share.first;
        l->shares[l->n_shares++] = share;
    }
    return 0;
}

int client_listed_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    struct client_listed *l = (struct client_listed *)source;
    int rc = l->n[CLIENT_TRAIN] > 0 ? listed_keep(l, CLIENT_TRAIN, rules->long_rows, err) : 0;

    if (!rc)
        rc = l->n[CLIENT_HELD_OUT] > 0 ? listed_keep(l, CLIENT_HELD_OUT, rules->long_rows, err)
                                       : hold_out(l, rules->seed, err);
    return rc ? rc : make_shares(l, err);
}

void client_listed_measure(struct client_source_facts *out, const struct client_source *source)
{
    const struct client_listed *l = listed_of(source);
    uint64_t n = l->n_shares > 0 ? 0 : l->subsets[CLIENT_TRAIN].n;

    for (size_t i = 0; i < l->n_shares; i++)
        n += client_share_rows(&l->shares[i]);
    n *= l->ops->group;
    *out = (struct client_source_facts){.whole = true,
                                        .flows = l->ops->flows,
                                        .n_rows = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX,
                                        .n_held_out = l->ops->group * l->subsets[CLIENT_HELD_OUT].n,
                                        .longest = client_listed_longest(source),
                                        .least = 1};
}

/* ---- The order ---- */

/* Of the groups held out, which have n_tokens, as many are evaluated as --eval-tokens says. */
static void limit(struct client_listed *l, uint64_t n_tokens, uint64_t eval_tokens)
{
    const uint32_t n = l->subsets[CLIENT_HELD_OUT].n;

    l->n_held_out = n;
    if (eval_tokens > 0 && n_tokens > eval_tokens)
        l->n_held_out = (uint32_t)((double)n * (double)eval_tokens / (double)n_tokens);
    l->n_held_out += l->n_held_out == 0;
}

/* Rows that are held out are sorted by length here, once all that are kept are known. */
static int listed_divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    struct client_listed *l = (struct client_listed *)source;
    const struct client_subset *train = &l->subsets[CLIENT_TRAIN];
    struct client_subset *held_out = &l->subsets[CLIENT_HELD_OUT];
    const enum client_part data = client_listed_data(source, CLIENT_HELD_OUT);
    const uint32_t group = l->ops->group;
    uint64_t n_tokens = 0;
    int rc = client_subset_by_length(held_out, err);

    assert(!l->ops->find_fate || d->seq == l->seq);
    for (uint32_t i = 0; i < held_out->n; i++)
        n_tokens += group * (uint64_t)count_longest(source, data, held_out->list[i]);
    limit(l, n_tokens, d->eval_tokens);
    if (!rc && d->batch > 0 && train->n > 0)
        rc = client_batches_init(&l->batches,
                                 &(struct client_batches_options){.subset = train,
                                                                  .shares = l->shares,
                                                                  .n_shares = l->n_shares,
                                                                  .batch = d->batch / group,
                                                                  .part = d->part / group,
                                                                  .seq = d->seq,
                                                                  .order = d->order,
                                                                  .seed = d->seed,
                                                                  .flows = l->ops->flows},
                                 err);
    if (!rc && !l->ops->flows)
        client_batches_measure(source->row_tokens, &l->batches, group);
    return rc;
}

static uint64_t listed_n_rows(const struct client_source *source, enum client_part part)
{
    const struct client_listed *l = listed_of(source);

    return l->ops->group * (uint64_t)(part == CLIENT_HELD_OUT ? l->n_held_out : l->subsets[part].n);
}

static uint64_t listed_n_entries(const struct client_source *source)
{
    const struct client_corpus *corpus = &listed_of(source)->corpus[CLIENT_TRAIN];

    return corpus->n_tokens + corpus->n * (uint64_t)listed_of(source)->n_added;
}

/* Counts all samples of a group as long as the longest. */
static uint64_t listed_tokens(struct client_source *source, uint64_t step, uint64_t n_before)
{
    struct client_listed *l = (struct client_listed *)source;

    (void)n_before;
    return l->ops->group * client_batches_tokens(&l->batches, step);
}

static uint32_t listed_pick(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    struct client_listed *l = (struct client_listed *)source;
    const uint32_t group = l->ops->group, n = group * client_batches_pick(out, &l->batches, step);

    for (uint32_t i = n; i-- > 0;) /* each sample behind the group that it is of */
        out[i] = (struct client_sample){out[i / group].id * group + i % group, n_before + i};
    return n;
}

/* Groups that are evaluated are spread evenly over all, which are sorted by length: so an evaluation pads little. */
static struct client_sample listed_pick_held_out(const struct client_source *source, uint64_t k)
{
    const struct client_listed *l = listed_of(source);
    const struct client_subset *subset = &l->subsets[CLIENT_HELD_OUT];
    const uint32_t group = l->ops->group;

    return (struct client_sample){.id = (uint64_t)subset->list[k / group * subset->n / l->n_held_out] * group +
                                        k % group};
}

static uint64_t listed_progress(const struct client_source *source, uint64_t n)
{
    const enum client_part data = client_listed_data(source, CLIENT_HELD_OUT);
    uint64_t n_tokens = 0;

    if (!listed_of(source)->ops->by_tokens)
        return n / listed_of(source)->ops->group;
    for (uint64_t k = 0; k < n; k++)
        n_tokens += listed_count(source, data, listed_pick_held_out(source, k).id);
    return n_tokens;
}

static uint32_t listed_length(const struct client_source *source, enum client_part part,
                              const struct client_sample *samples, uint32_t n)
{
    const struct client_listed_ops *ops = listed_of(source)->ops;
    const enum client_part data = client_listed_data(source, part);
    uint32_t longest = 1;

    if (ops->room)
        return client_batches_length(ops->room(source, data, samples, n), source->seq);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t own = listed_count(source, data, samples[i].id);
        longest = own > longest ? own : longest;
    }
    return client_batches_length(longest, source->seq);
}

static void listed_close_order(struct client_source *source)
{
    struct client_listed *l = (struct client_listed *)source;

    client_tokenizer_close(l->tokenizer);
    client_batches_free(&l->batches);
    for (enum client_part part = CLIENT_TRAIN; part <= CLIENT_HELD_OUT; part++) {
        client_subset_free(&l->subsets[part]);
        client_corpus_free(&l->corpus[part]);
        free(l->lengths[part]);
    }
    free(l->shares);
    free(l->work);
}

const struct client_order client_listed_order = {
    .init = listed_init,
    .fixes_batch = true,
    .divide = listed_divide,
    .n_rows = listed_n_rows,
    .n_entries = listed_n_entries,
    .tokens = listed_tokens,
    .pick = listed_pick,
    .pick_held_out = listed_pick_held_out,
    .progress = listed_progress,
    .length = listed_length,
    .close = listed_close_order,
};

int client_listed_make_work(struct client_source *source, size_t n, struct error *err)
{
    uint32_t *work = calloc(n + 1, sizeof *work);

    ((struct client_listed *)source)->work = work;
    return work ? 0 : error_memory(err);
}

uint32_t *client_listed_targets(const struct client_source *source,
                                uint32_t (*label)(const struct client_source *source, enum client_part data, size_t k),
                                struct error *err)
{
    const uint64_t n = listed_n_rows(source, CLIENT_HELD_OUT);
    uint32_t *targets = calloc(n + 1, sizeof *targets);

    if (!targets)
        error_memory(err);
    for (uint64_t i = 0; targets && i < n; i++)
        targets[i] = label(source, client_listed_data(source, CLIENT_HELD_OUT), listed_pick_held_out(source, i).id);
    return targets;
}
