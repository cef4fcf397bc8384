#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/model/file/safetensors.h"
#include "proto/plan/memory/division.h"
#include "proto/plan/memory/room.h"

#include <errno.h>
#include <string.h>

/* GPT-2 124M: 50257 tokens, 1024 positions, 12 blocks of 768; a tied head. 124439808 parameters (Radford et al. 2019,
 * as Hugging Face counts them). */
static const struct model_config gpt2 =
    GPT2_CONFIG(12, 12, 768, 3072, 1024, 50257, .tied = true, GPT2_ON(scale_attention));
static struct model model;

static void set_up(void)
{
    struct error err = {""};

    ck_assert_msg(model_init(&model, &gpt2, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(model.n_parameters, 124439808);
}

static void tear_down(void)
{
    model_free(&model);
}

SUITE_FIXTURE(set_up, tear_down)

static struct plan_host_setting training(void)
{
    return (struct plan_host_setting){.goal = {.purpose = PLAN_TRAIN, .n_parts = 1, .batch = 8, .seq = 1024},
                                      .n_workers = 1};
}

static struct plan_host host_of(const struct plan_host_setting *setting)
{
    struct plan_host host;

    plan_host(&host, &model, setting);
    return host;
}

/* Of weights, what completes them, moments and gradient: what grows with the model. */
static double bytes_per_parameter(const struct plan_host_setting *setting)
{
    static const enum ledger_category categories[] = {LEDGER_WEIGHTS, LEDGER_MASTER, LEDGER_FIRST_MOMENT,
                                                      LEDGER_SECOND_MOMENT, LEDGER_SUM};
    const struct plan_host host = host_of(setting);
    uint64_t bytes = 0;

    for (int i = 0; i < COUNT(categories); i++)
        bytes += host.bytes[categories[i]];
    return (double)bytes / (double)model.n_parameters;
}

/* The tolerance is what units take to end on cache lines: at most 31 elements of each. */
TEST(a_parameter_takes_what_its_mode_says)
{
    static const struct {
        enum plan_purpose purpose;
        enum number_type precision, moments;
        bool fenced;
        double bytes;
    } modes[] = {
        {PLAN_TRAIN, NUMBER_FP32, NUMBER_FP32, false, 12},   {PLAN_TRAIN, NUMBER_BF16, NUMBER_FP32, false, 12},
        {PLAN_TRAIN, NUMBER_BF16, NUMBER_BF16, false, 8},    {PLAN_TRAIN, NUMBER_FP32, NUMBER_BF16, false, 8},
        {PLAN_TRAIN, NUMBER_FP32, NUMBER_FP32, true, 16},    {PLAN_TRAIN, NUMBER_BF16, NUMBER_BF16, true, 12},
        {PLAN_EVALUATE, NUMBER_FP32, NUMBER_FP32, false, 4}, {PLAN_EVALUATE, NUMBER_BF16, NUMBER_FP32, false, 2},
        {PLAN_GENERATE, NUMBER_FP32, NUMBER_FP32, false, 4}, {PLAN_GENERATE, NUMBER_BF16, NUMBER_FP32, false, 2},
    };

    for (int i = 0; i < COUNT(modes); i++) {
        struct plan_host_setting s = training();
        s.goal.purpose = modes[i].purpose, s.goal.precision = modes[i].precision, s.goal.moments = modes[i].moments;
        s.goal.fenced = modes[i].fenced;
        const double most = 31.0 * model.n_units / (double)model.n_parameters * 16;
        ck_assert_double_ge(bytes_per_parameter(&s), modes[i].bytes);
        ck_assert_double_le(bytes_per_parameter(&s), modes[i].bytes + most);
    }
}

/* By hand: the largest unit is a block, 12 * 768^2 + 13 * 768 = 7087872 elements, so a slot holds a whole slice of 4 Mi
 * elements, and two slots a unit. */
TEST(the_rest_is_of_the_inbox_the_minibatches_and_the_tied_table)
{
    struct plan_host_setting s = training();
    struct plan_host host = host_of(&s);

    ck_assert_uint_eq(host.n_slots, 2);
    ck_assert_uint_eq(host.slot_bytes, 16 << 20);
    ck_assert_uint_eq(host.bytes[LEDGER_INBOX], 3 * (16 << 20));
    ck_assert_uint_eq(host.bytes[LEDGER_DATA], 2 * 2 * 4 * 8 * 1024); /* two minibatches of ids and labels */
    ck_assert_uint_ge(host.bytes[LEDGER_TIED], 50257 * 768 * 4);
    ck_assert_uint_le(host.bytes[LEDGER_TIED], 50257 * 768 * 4 + model.n_units * 31 * 4);
    ck_assert_uint_eq(host.bytes[LEDGER_ACCUMULATORS], 0);
    ck_assert_uint_eq(host.bytes[LEDGER_STASH], 0);
    s.goal.grad = NUMBER_BF16;
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_INBOX], 3 * (8 << 20));
    s.goal.grad = NUMBER_FP32, s.n_workers = 3, s.goal.n_parts = 2; /* each worker with a share has an inbox */
    host = host_of(&s);
    ck_assert_uint_eq(host.n_workers, 2);
    ck_assert_uint_eq(host.bytes[LEDGER_INBOX], 2 * 3 * (16 << 20));
    s.goal.purpose = PLAN_EVALUATE;
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_INBOX], 2 * 64);
}

/* By hand: the token table is cut evenly into seven units of two slices, and visited twice; positions are one slice, 12
 * blocks two each, the last norm one: 2 * 14 + 1 + 24 + 1 = 54. A third of these is 18, and the largest unit has
 * two. */
TEST(beside_the_host_slots_are_added_for_a_third_of_the_contributions)
{
    const struct plan_room all = {.available = UINT64_MAX, .cap = UINT64_MAX};
    const uint64_t slot = 16 << 20;
    struct plan_host_setting s = training();
    struct plan_host least, host;

    plan_host(&least, &model, &s);
    host = least;
    plan_host_add_slots(&host, &model, &s, &all);
    ck_assert_uint_eq(host.n_slots, 2);
    ck_assert_uint_eq(host.total, least.total);
    s.beside = true;
    plan_host_add_slots(&host, &model, &s, &all);
    ck_assert_uint_eq(host.n_slots, 20);
    ck_assert_uint_eq(host.inbox_bytes, 21 * slot);
    ck_assert_uint_eq(host.bytes[LEDGER_INBOX], 21 * slot);
    ck_assert_uint_eq(host.total, least.total + 18 * slot);
    s.goal.n_parts = 3, s.n_workers = 2; /* two parts for the first: 36 */
    plan_host(&host, &model, &s);
    plan_host_add_slots(&host, &model, &s, &all);
    ck_assert_uint_eq(host.n_slots, 38);
    ck_assert_uint_eq(host.bytes[LEDGER_INBOX], 2 * 39 * slot);
    s.goal.purpose = PLAN_EVALUATE;
    plan_host(&host, &model, &s);
    plan_host_add_slots(&host, &model, &s, &all);
    ck_assert_uint_eq(host.bytes[LEDGER_INBOX], 2 * 64);
}

/* By hand: as above, two inboxes get 36 more slots each. A slot has 16 bytes of checksums, the reserved one too. */
TEST(added_slots_of_checked_memory_have_sums)
{
    const struct plan_room all = {.available = UINT64_MAX, .cap = UINT64_MAX};
    struct plan_host_setting s = training();
    struct plan_host least, host;

    s.goal.n_parts = 3, s.n_workers = 2, s.beside = true, s.goal.checks_memory = true;
    plan_host(&least, &model, &s);
    ck_assert_uint_eq(least.inbox_sums, 3 * 16);
    host = least;
    plan_host_add_slots(&host, &model, &s, &all);
    ck_assert_uint_eq(host.n_slots, 38);
    ck_assert_uint_eq(host.inbox_sums, 39 * 16);
    ck_assert_uint_eq(host.bytes[LEDGER_CHECKSUMS], least.bytes[LEDGER_CHECKSUMS] + 2 * 36 * 16);
    ck_assert_uint_eq(host.total, least.total + 2 * 36 * ((16 << 20) + 16));
    const struct plan_room nine = {.available = UINT64_MAX, .cap = least.total + 2 * 2 * 10 * ((16 << 20) + 16) - 1};
    host = least;
    plan_host_add_slots(&host, &model, &s, &nine);
    ck_assert_uint_eq(host.n_slots, 2 + 9);
}

/* By hand: of eight parts of all hosts, two are this one's, one for each of its workers: a third of 54, and two. */
TEST(slots_are_added_for_the_parts_of_this_host)
{
    const struct plan_room all = {.available = UINT64_MAX, .cap = UINT64_MAX};
    struct plan_host_setting s = training();
    struct error err = {""};
    struct plan_host host;

    s.goal.n_parts = 8, s.own_parts = 2, s.n_workers = 2, s.beside = true;
    ck_assert_int_eq(plan_divide(&s.own_first, &s.n_own, &model, 4, 1, &err), 0);
    plan_host(&host, &model, &s);
    plan_host_add_slots(&host, &model, &s, &all);
    ck_assert_uint_eq(host.n_slots, 20);
    s.n_workers = 3; /* a third one has no part, and no inbox */
    ck_assert_uint_eq(host_of(&s).n_workers, 2);
}

/* Half of what is left of the cap, or of what is free: a byte less than for ten slots is nine. */
TEST(added_slots_leave_half_of_the_room)
{
    const uint64_t slot = 16 << 20;
    struct plan_host_setting s = training();
    struct plan_host least, host;

    s.beside = true;
    plan_host(&least, &model, &s);
    for (uint64_t less = 0; less < 2; less++) {
        const uint64_t left = 2 * 10 * slot - less, slack = plan_host_slack(least.total + 12345, 1);
        const struct plan_room rooms[] = {
            {.available = UINT64_MAX, .cap = least.total + left},
            {.available = least.total + 12345 + slack + left, .cap = UINT64_MAX, .arenas = 12345},
        };
        for (int i = 0; i < 2; i++) {
            host = least;
            ck_assert(plan_host_fits(&host, &rooms[i]));
            plan_host_add_slots(&host, &model, &s, &rooms[i]);
            ck_assert_uint_eq(host.n_slots, 2 + 10 - less);
            ck_assert(plan_host_fits(&host, &rooms[i]));
        }
    }
    const struct plan_room none = {.available = UINT64_MAX, .cap = least.total};
    host = least;
    plan_host_add_slots(&host, &model, &s, &none);
    ck_assert_uint_eq(host.n_slots, 2);
}

TEST(parts_of_adamw_have_two_accumulators_and_a_held_gradient_serves_them_all)
{
    struct plan_host_setting s = training();

    s.goal.adamw = true; /* of one part: nothing to sum */
    struct plan_host host = host_of(&s);
    ck_assert_uint_eq(host.n_accumulators + host.bytes[LEDGER_ACCUMULATORS], 0);
    s.goal.n_parts = 2;
    host = host_of(&s);
    ck_assert_uint_eq(host.n_accumulators, 2);
    ck_assert_uint_eq(host.bytes[LEDGER_ACCUMULATORS], 2 * 7087872 * 4); /* a multiple of 64 bytes as it is */
    s.goal.fenced = true;
    host = host_of(&s);
    ck_assert_uint_eq(host.bytes[LEDGER_SUM], model.segment_n * 4);
    ck_assert_uint_eq(host.bytes[LEDGER_ACCUMULATORS] + host.n_accumulators, 0);
}

/* The table's gradient once more: of the embedding, where the sum has that of the head. By hand: seven units of 7,180
 * or 7,179 rows, each a multiple of 32 elements as it is. */
TEST(fenced_a_tied_table_has_two_sums_if_there_are_several_parts)
{
    struct plan_host_setting s = training();

    s.goal.adamw = s.goal.fenced = true;
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_TIED], 0);
    s.goal.n_parts = 2;
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_TIED], 50257 * 768 * 4);
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_SUM], model.segment_n * 4);
    s.goal.sums = NUMBER_BF16;
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_TIED], 50257 * 768 * 2);
    s.goal.sgd = true, s.goal.momentum = 0.9; /* any optimizer */
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_TIED], 50257 * 768 * 2);
}

/* What is folded into the moments is not summed, but for a tied table: each visit by itself, whatever the commit. */
TEST(folded_no_gradient_is_held)
{
    struct plan_host_setting s = training();

    s.goal.n_parts = 2;
    const struct plan_host eager = host_of(&s);
    s.goal.folded = true;
    const struct plan_host folded = host_of(&s);
    ck_assert_uint_eq(folded.bytes[LEDGER_SUM] + folded.bytes[LEDGER_ACCUMULATORS], 0);
    ck_assert_uint_eq(folded.bytes[LEDGER_TIED], 2 * 50257 * 768 * 4);
    ck_assert_uint_eq(folded.total, eager.total);
    s.goal.n_parts = 1;
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_TIED], 50257 * 768 * 4);
}

/* 8 bytes a parameter, 6, 4; sums where a step needs them by themselves; what one table of GPT-2 takes if it is
 * summed. */
TEST(sgd_takes_what_its_momentum_takes)
{
    struct plan_host_setting s = training();
    const double sigma = 1e-4;

    s.goal.sgd = true, s.goal.momentum = 0.9;
    ck_assert_double_eq_tol(bytes_per_parameter(&s), 8, sigma);
    s.goal.n_parts = 4;
    struct plan_host host = host_of(&s);
    ck_assert_uint_eq(host.bytes[LEDGER_SECOND_MOMENT] + host.bytes[LEDGER_ACCUMULATORS], 0);
    ck_assert_uint_eq(host.bytes[LEDGER_TIED], 2 * 50257 * 768 * 4); /* each visit's */
    s.goal.moments = NUMBER_BF16, s.goal.precision = NUMBER_BF16;
    ck_assert_double_eq_tol(bytes_per_parameter(&s), 6, sigma);
    s.goal.nesterov = true;
    host = host_of(&s);
    ck_assert_uint_eq(host.bytes[LEDGER_ACCUMULATORS], 2 * 7087872 * 4);
    ck_assert_uint_ge(host.bytes[LEDGER_TIED], 50257 * 768 * 4);
    s.goal.nesterov = false, s.goal.momentum = 0;
    ck_assert_double_eq_tol(bytes_per_parameter(&s), 4, sigma);
    host = host_of(&s);
    ck_assert_uint_eq(host.bytes[LEDGER_ACCUMULATORS], 2 * 7087872 * 4);
    ck_assert_uint_ge(host.bytes[LEDGER_TIED], 50257 * 768 * 4);
    s.goal.fenced = true;
    ck_assert_double_eq_tol(bytes_per_parameter(&s), 8, sigma);
    host = host_of(&s);
    ck_assert_uint_eq(host.bytes[LEDGER_ACCUMULATORS], 0);
}

TEST(a_stash_and_a_side_text_stand_in_it_and_all_is_in_the_total)
{
    struct plan_host_setting s = training();
    const struct plan_host without = host_of(&s);
    uint64_t sum = 0;

    s.host_stash_bytes = 12345678, s.side_bytes = 100;
    struct plan_host with = host_of(&s);
    ck_assert_uint_eq(with.bytes[LEDGER_STASH], 12345678);
    ck_assert_uint_eq(with.total - without.total, 12345678); /* the text is small */
    s.side_bytes = 50000, s.config_bytes = 5000, s.files_bytes = 700000;
    with = host_of(&s);
    ck_assert_uint_eq(with.bytes[LEDGER_OTHER], without.bytes[LEDGER_OTHER] + 755000);
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        sum += with.bytes[c];
    ck_assert_uint_eq(with.total, sum);
}

/* Headers are read into memory of their own size, beside the entries that they can hold, of 50 bytes each at least; a
 * pointer of each tensor, two numbers of each tensor and piece, two flags of each tensor. */
TEST(headers_of_files_stand_in_it)
{
    struct plan_host_setting s = training();
    const struct plan_host without = host_of(&s);
    const uint64_t n = model.n_tensors, n_pieces = model.n_pieces;

    ck_assert_uint_eq(n, 148);
    s.n_files = 3, s.header_bytes = 14001;
    const uint64_t entries = 280 * sizeof(struct safetensors_entry);
    const uint64_t lists = 3 * sizeof(struct safetensors) + 8 * n + (4 * (n + 1) + 7) / 8 * 8 +
                           (4 * (n_pieces + 1) + 7) / 8 * 8 + (2 * n + 7) / 8 * 8;
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_OTHER],
                      without.bytes[LEDGER_OTHER] + (14001 + entries + 7) / 8 * 8 + lists);
    s.n_files = 0; /* fresh weights */
    ck_assert_uint_eq(host_of(&s).total, without.total);
}

/* Of the two files of a checkpoint, by hand, of a model whose units are pieces of n_runs runs of 4 MiB at most: headers
 * of at most 200 bytes a tensor and 64 more, an offset of 8 bytes for each tensor and one more, a count of 8 bytes of
 * its updates; 24 bytes for each run of weights, and of both moments, and for headers and counts, which are short. */
static uint64_t files_bytes(uint64_t n_tensors, uint64_t n_runs)
{
    const uint64_t n_moments = 2 * n_tensors + 1;

    return 64 + 200 * n_tensors + 64 + 200 * n_moments + 8 * (n_tensors + 1 + n_moments + 1 + n_tensors) +
           24 * (n_runs + 1 + 2 * n_runs + 2);
}

/* Of a model of 4096 blocks the tables of units are large enough to be counted: of each a pointer, a count, a square
 * and a count of folds, and a byte for each of 16 saves; of each visit a count of slices; of each piece a count. */
TEST(tables_count_from_4_kib_on)
{
    struct model_config deep = gpt2;
    struct plan_host_setting s = training();
    struct plan_host host;
    struct model many;

    /* GPT-2: 2 tensors of embeddings, 12 of each block (of 7087872 parameters: 6 full runs), 2 of the last norm. */
    uint64_t n_runs = 0;
    for (uint32_t u = 0; u < model.n_units; u++)
        n_runs += model.units[u].n_pieces + 4 * model.units[u].n / (4 << 20);
    const uint64_t files = files_bytes(2 + 12 * 12 + 2, n_runs);
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_OTHER], files);
    s.goal.moments = NUMBER_BF16; /* what is not fp32 is made so, for files, a run at a time */
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_OTHER], files + (4 << 20));
    s.goal.moments = NUMBER_FP32, s.goal.precision = NUMBER_BF16;
    ck_assert_uint_eq(host_of(&s).bytes[LEDGER_OTHER], files + (4 << 20));
    s.goal.precision = NUMBER_FP32;
    deep.n_layers = 4096;
    ck_assert_int_eq(model_init(&many, &deep, NULL), 0);
    plan_host(&host, &many, &s);
    ck_assert_uint_eq(host.bytes[LEDGER_OTHER], (uint64_t)many.n_units * (16 + 12 + 16) + many.n_visits * 4 +
                                                    many.n_pieces * 8 +
                                                    files_bytes(2 + 12 * 4096 + 2, n_runs + 4084 * (12 + 6)) +
                                                    24 * (2 + 4)); /* headers of 9.4 and 18.8 MiB */
    const uint64_t before = host.bytes[LEDGER_OTHER];
    s.goal.drop_layers = 0.5;
    plan_host(&host, &many, &s);
    ck_assert_uint_eq(host.bytes[LEDGER_OTHER] - before, (4096 + 1) * 4); /* units that a step drops */
    model_free(&many);
}

/* What each host of a divided model has, by hand from the units: consecutive ones, each in one host, one that is
 * trained in each; none has more than an equal share and a unit. */
TEST_RANGE(units_are_divided_among_hosts_in_order, 1, 22)
{
    const uint32_t n_hosts = (uint32_t)_i, n_units = model.n_units;
    const double share = (double)model.n_trained / n_hosts;
    uint32_t next = 0, first, n;
    struct error err = {""};

    for (uint32_t h = 0; h < n_hosts; h++) {
        uint64_t trained = 0;
        ck_assert_msg(plan_divide(&first, &n, &model, n_hosts, h, &err) == 0, "%s", err.text);
        ck_assert_uint_eq(first, next);
        next = first + n;
        ck_assert_uint_le(next, n_units);
        for (uint32_t u = first; u < next; u++)
            trained += model.units[u].n_trained;
        ck_assert_uint_gt(trained, 0);
        ck_assert_double_le((double)trained, share + (double)model.largest_trained + 31.0 * n_units);
    }
    ck_assert_uint_eq(next, n_units);
}

/* 7 units of tokens, positions, 12 blocks and the last norm: 21. With all but three frozen, two of which follow one
 * another: 3. */
TEST(more_hosts_than_trained_units_are_refused)
{
    uint32_t first, n, next = 0;
    struct error err = {""};

    ck_assert_int_eq(plan_divide(&first, &n, &model, 22, 0, &err), -EINVAL);
    ck_assert_holds(err.text, "21 trained units", "22 hosts", "21 or fewer");
    ck_assert_int_eq(model_freeze(&model, "wte.*,h.0.*,h.1.*,h.2.*,h.5.*,h.6.*,h.7.*,h.8.*,h.9.*,h.10.*,h.11.*,ln_f.*",
                                  (struct model_base){0}, &err),
                     0);
    ck_assert_int_eq(plan_divide(&first, &n, &model, 4, 0, &err), -EINVAL);
    for (uint32_t h = 0; h < 3; h++) {
        uint32_t n_trained = 0;
        ck_assert_int_eq(plan_divide(&first, &n, &model, 3, h, &err), 0);
        ck_assert_uint_eq(first, next);
        next += n;
        for (uint32_t u = first; u < next; u++)
            n_trained += model.units[u].n_trained > 0;
        ck_assert_uint_eq(n_trained, 1);
    }
    ck_assert_uint_eq(next, model.n_units);
}

/* By hand, in elements: own units, tables that are looked up, and the slots of the ring. */
static uint64_t weights_of(const struct plan_host_setting *s, bool replay)
{
    const uint32_t n_tables = model.layers[0].n_visits;
    uint64_t n = 0, largest = 0;
    uint32_t n_foreign = 0;

    for (uint32_t u = 0; u < model.n_units; u++) {
        const bool kept = (u >= s->own_first && u < s->own_first + s->n_own) || u < n_tables;
        const uint64_t rounded = (model.units[u].n + 31) / 32 * 32;
        n += kept ? rounded : 0;
        n_foreign += !kept;
        largest = !kept && rounded > largest ? rounded : largest;
    }
    return replay ? n : n + (n_foreign < 2 * s->own_parts + 1 ? n_foreign : 2 * s->own_parts + 1) * largest;
}

/* Hosts' low halves, moments and tied sums add up to one host's; minibatches are whole on each. One host's parts alone
 * need no accumulators; those of all do. */
TEST_EACH(a_host_of_several_takes_its_units_and_a_ring_for_others, 3)
{
    enum { HOSTS = 3 };
    static const enum ledger_category divided[] = {LEDGER_MASTER, LEDGER_FIRST_MOMENT, LEDGER_SECOND_MOMENT,
                                                   LEDGER_TIED};
    uint64_t sums[LEDGER_CATEGORIES] = {0};
    struct plan_host_setting s = training();
    struct error err = {""};

    s.goal.precision = NUMBER_BF16, s.goal.adamw = true, s.replay = true;
    const struct plan_host one = host_of(&s);
    ck_assert_uint_eq(one.n_accumulators, 0);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ck_assert_int_eq(plan_divide(&s.own_first, &s.n_own, &model, HOSTS, h, &err), 0);
        s.hosts_bytes = 1000;
        s.own_parts = 1 + 3 * (uint32_t)_i; /* more slots than units in the end */
        const struct plan_host host = host_of(&s);
        uint64_t total = 0, largest = 0;
        for (int i = 0; i < COUNT(divided); i++)
            sums[divided[i]] += host.bytes[divided[i]];
        ck_assert_uint_eq(host.bytes[LEDGER_WEIGHTS], 2 * weights_of(&s, false));
        ck_assert_uint_eq(host.bytes[LEDGER_REPLAY], 2 * weights_of(&s, true));
        ck_assert_uint_eq(host.bytes[LEDGER_DATA], one.bytes[LEDGER_DATA]);
        for (uint32_t u = s.own_first; u < s.own_first + s.n_own; u++)
            largest = largest < model.units[u].n_trained ? model.units[u].n_trained : largest;
        ck_assert_uint_eq(host.n_accumulators, 2);
        ck_assert_uint_eq(host.bytes[LEDGER_ACCUMULATORS], 2 * 4 * ((largest + 31) / 32 * 32));
        ck_assert_uint_eq(host.bytes[LEDGER_INBOX], one.bytes[LEDGER_INBOX] + 1000);
        ck_assert_uint_eq(host.inbox_bytes, one.inbox_bytes);
        for (int c = 0; c < LEDGER_CATEGORIES; c++)
            total += host.bytes[c];
        ck_assert_uint_eq(host.total, total);
    }
    for (int i = 0; i < COUNT(divided); i++)
        ck_assert_uint_eq(sums[divided[i]], one.bytes[divided[i]]);
}
