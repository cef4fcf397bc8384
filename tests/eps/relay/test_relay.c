/* The relay against traces: events, and under each its actions (tests/kit/inprocess/relay_trace.h). A few stand beside
 * this file; compare.py has the executable specification, relay.py, write thousands. */
#include "tests/kit/inprocess/relay_trace.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, own)

static FILE *open_trace(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, TESTS_DIR "/eps/relay/%s.trace", name);
    FILE *in = fopen(path, "r");
    ck_assert_msg(in, "%s: %s", path, strerror(errno));
    return in;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* What the relay asks the allocator for, and which request it is to refuse, counted from 1; 0: none. The relay calls
 * these two functions alone, the streams of these tests others. */
static struct {
    unsigned n_calls, refused;
} allocator;

#if !SANITIZED /* the sanitizers bring an allocator of their own */
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *calloc(size_t n, size_t size)
{
    allocator.n_calls++;
    return allocator.refused && !--allocator.refused ? NULL : __libc_calloc(n, size);
}

void *reallocarray(void *p, size_t n, size_t size)
{
    size_t bytes = 0;
    allocator.n_calls++;
    if (__builtin_mul_overflow(n, size, &bytes) || (allocator.refused && !--allocator.refused))
        return NULL;
    return __libc_realloc(p, bytes);
}
#endif

/* Refuses each request in turn until the line goes through, and counts them. As relay_trace_feed; -EPROTO if an event
 * that found no memory has caused an action. */
static int feed_through_refusals(struct relay_trace *trace, const char *line, FILE *out, unsigned *n_refusals)
{
    int rc = -ENOMEM;
    for (unsigned n = 1; rc == -ENOMEM; n++) {
        allocator.refused = n;
        rc = relay_trace_feed(trace, line, out);
        allocator.refused = 0;
        if (rc == -ENOMEM && ftell(out) != 0)
            return -EPROTO;
        *n_refusals += rc == -ENOMEM;
    }
    return rc;
}

/* ---- traces ------------------------------------------------------------------------------------------------------ */

/* An inbox that is full, and its head-of-line worker dies; a stopped worker that wakes after its unit was updated; a
 * save in the middle; a step that is skipped while the thread reads; a frozen unit, and pulls that come late; row
 * groups of a tied unit, whose worker dies; audits that agree, that name an auditor, and that end with one. */
static const char *const traces[] = {"inbox-full", "woken",  "save",  "skipped", "frozen",
                                     "groups",     "folded", "audit", "damaged"};

/* The actions of the relay at every event of a file must be those that stand under it, though every request for
 * memory be refused once (n_refusals; or NULL). */
static void replay(const char *name, unsigned *n_refusals)
{
    struct relay_trace trace = {0};
    char *line = NULL, *said = NULL;
    size_t cap = 0, said_bytes = 0, at = 0;
    int n_line = 0;
    FILE *in = open_trace(name), *out = open_memstream(&said, &said_bytes);
    while (getline(&line, &cap, in) > 0) {
        n_line++;
        if (line[0] == ' ') {
            size_t n = strlen(line);
            ck_assert_msg(at + n <= said_bytes && !memcmp(said + at, line, n), "%s:%d: not %.40s", name, n_line,
                          said + at);
            at += n;
            continue;
        }
        ck_assert_msg(at == said_bytes, "%s:%d: before it, something more: %s", name, n_line, said + at);
        if (line[0] == '\n' || line[0] == '#')
            continue;
        rewind(out);
        const int rc =
            n_refusals ? feed_through_refusals(&trace, line, out, n_refusals) : relay_trace_feed(&trace, line, out);
        ck_assert_msg(rc == 0, "%s:%d: %s", name, n_line, strerror(-rc));
        fflush(out);
        at = 0;
    }
    ck_assert_uint_eq(at, said_bytes);
    fclose(in);
    fclose(out);
    free(said);
    free(line);
    relay_trace_free(&trace);
}

TEST_EACH(actions_are_those_of_the_specification, COUNT(traces))
{
    replay(traces[_i], NULL);
}

TEST_IF(an_event_that_finds_no_memory_changes_nothing, !SANITIZED)
{
    unsigned n_refusals = 0;
    for (int i = 0; i < COUNT(traces); i++)
        replay(traces[i], &n_refusals);
    ck_assert_uint_gt(n_refusals, 10 * COUNT(traces)); /* every trace opens, attaches and begins steps */
}

/* Steps alike, of two workers and a reader: unit 0 is tied, visited below and above unit 1, and has two slices. */
TEST_IF(nothing_is_allocated_after_the_second_step, !SANITIZED)
{
    struct relay_trace trace = {0};
    unsigned n_before = 0;

    relay_trace_say(&trace, "config parts=2 slots=1 accumulators=1 optimizer=adamw deterministic=1 replay=1");
    relay_trace_say(&trace, "attached 0"), relay_trace_say(&trace, "attached 1");
    for (unsigned t = 0; t < 20; t++) {
        if (t == 2)
            n_before = allocator.n_calls;
        relay_trace_say(&trace, "open %u 0,1,0 - 0,1 2,1,2", t);
        for (unsigned worker = 0; worker < 2; worker++) {
            relay_trace_say(&trace, "pull %u %u 0", worker, t), relay_trace_say(&trace, "pull %u %u 1", worker, t + 1);
            relay_trace_say(&trace, "loss %u %u %u 0 ok", worker, t, worker);
        }
        relay_trace_say(&trace, "save disk");
        relay_trace_say(&trace, "released disk 0"), relay_trace_say(&trace, "released disk 1");
        for (unsigned visit = 3; visit-- > 0;)
            for (unsigned i = 0; i < (visit == 1 ? 2 : 4); i++) {
                const unsigned part = visit == 1 ? i : i / 2, slice = visit == 1 ? 0 : i % 2;
                for (int twice = 0; twice < 2; twice++)
                    relay_trace_say(&trace, "contribution %u %u %u %u %u 0 1", part, t, visit, part, slice);
                relay_trace_say(&trace, "folded %u %u ok", visit == 1, slice);
                if (visit < 2 && i == (visit == 1 ? 1 : 3))
                    relay_trace_say(&trace, "updated %u", visit);
            }
        ck_assert_uint_eq(relay_version(trace.relay, 0) + relay_version(trace.relay, 1), 2 * (t + 1));
    }
    ck_assert_uint_eq(allocator.n_calls, n_before);
    relay_trace_free(&trace);
}

/* ---- what no trace has ------------------------------------------------------------------------------------------- */

/* One field at a time is far beyond everything; then the step goes on as if nothing had been said. */
TEST(numbers_that_index_nothing_are_refused)
{
    static const char *const refused[] = {"contribution 0 0 %u 0 0 0 1",
                                          "contribution 0 0 1 %u 0 0 1",
                                          "contribution 0 0 1 0 %u 0 1",
                                          "contribution 0 0 1 0 0 %u 1",
                                          "contribution 0 0 1 0 0 0 %u",
                                          "pull 0 0 %u",
                                          "loss 0 0 %u 0 ok",
                                          "loss 0 0 0 %u ok"},
                             *const ignored[] = {"released 0 %u", "released %u 0"};
    static const unsigned far[] = {2, 5, 64, 1u << 20, UINT32_MAX - 1, UINT32_MAX};
    struct relay_trace trace = {0};
    char line[100];

    relay_trace_say(&trace, "config parts=1 slices=1 slots=1 accumulators=1"), relay_trace_say(&trace, "attached 0");
    relay_trace_say(&trace, "open 0 0,1 - 0"), relay_trace_say(&trace, "loss 0 0 0 0 ok");
    for (int i = 0; i < COUNT(far) * (COUNT(refused) + COUNT(ignored)); i++) {
        const int which = i / COUNT(far);
        const char *format = which < COUNT(refused) ? refused[which] : ignored[which - COUNT(refused)];
        snprintf(line, sizeof line, format, far[i % COUNT(far)]);
        const char *said = relay_trace_say(&trace, "%s", line);
        ck_assert_msg(which < COUNT(refused) ? !strncmp(said, "  refuse 0 ", 11) && strchr(said, '\n')[1] == '\0'
                                             : !*said,
                      "%s: %s", line, said);
    }
    ck_assert_str_eq(relay_trace_say(&trace, "contribution 0 0 1 0 0 0 1"), "  fold 1 1 0 0 0 1 first\n");
    relay_trace_free(&trace);
}

TEST(more_readers_than_64_are_refused)
{
    struct relay_trace trace = {0};

    relay_trace_say(&trace, "config parts=1 slots=1"), relay_trace_say(&trace, "attached 0");
    relay_trace_say(&trace, "open 0 0 - 0 1");
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(strncmp(relay_trace_say(&trace, "save %d", i), "  capture ", 10), 0);
    ck_assert_str_eq(relay_trace_say(&trace, "save 64"), "  refuse 64 too_many_readers\n");
    ck_assert_str_eq(relay_trace_say(&trace, "released 63 0"), "  saved 63 0\n");
    relay_trace_free(&trace);
}

/* One unit, one part, one slice; steps begin at 0 or where a run is resumed. */
TEST_EACH(the_cut_is_known_before_a_reader_comes, 2)
{
    static const struct {
        const char *line;
        int cut; /* after it, from the first step on; -1: none */
    } lines[] = {
        {"attached 0", -1},     {"save 1", -1}, /* refused: no unit is known */
        {"open %u 0 - 0 1", 0}, {"loss 0 %u 0 0 ok", 0}, {"contribution 0 %u 0 0 0 0 1", 1},
        {"folded 0 0 ok", 1},   {"updated 0", 1},        {"save 2", 1},
    };
    const unsigned first = _i ? 70 : 0;
    struct relay_trace trace = {0};
    const char *said = "";
    char line[100];

    relay_trace_say(&trace, "config parts=1 slots=1 accumulators=1 first=%u", first);
    ck_assert_uint_eq(relay_cut(trace.relay), UINT64_MAX);
    for (int i = 0; i < COUNT(lines); i++) {
        snprintf(line, sizeof line, lines[i].line, first);
        said = relay_trace_say(&trace, "%s", line);
        const uint64_t cut = lines[i].cut < 0 ? UINT64_MAX : first + (uint64_t)lines[i].cut;
        ck_assert_msg(relay_cut(trace.relay) == cut, "after %s: %ju", line, (uintmax_t)relay_cut(trace.relay));
        ck_assert(i != 1 || !strncmp(said, "  refuse 1 ", 11));
    }
    snprintf(line, sizeof line, "  capture 2 0 %u\n", first + 1);
    ck_assert_str_eq(said, line);
    relay_trace_free(&trace);
}

TEST(a_step_of_more_names_than_can_be_numbered_is_not_opened)
{
    static const uint32_t owners[1 << 16], visits[] = {0, 1}; /* all are worker 0's */
    const struct relay_config config = {.n_parts = 1 << 16, .n_slots = 1, .n_accumulators = 1};
    const uint32_t many[] = {1 << 16, 1}, few[] = {1, 1};
    struct relay_event open = {
        .kind = RELAY_OPEN, .visits = visits, .n_slices = many, .n_visits = 2, .owners = owners, .n_owners = 1 << 16};
    const struct relay_action *list = NULL;
    struct relay *relay = NULL;

    ck_assert_int_eq(relay_open(&relay, &config), 0);
    ck_assert_int_ge(relay_feed(relay, &(struct relay_event){.kind = RELAY_ATTACHED, .room = UINT32_MAX}, &list), 0);
    ck_assert_int_eq(relay_feed(relay, &open, &list), -ENOMEM);
    open.n_slices = few;
    ck_assert_int_eq(relay_feed(relay, &open, &list), 1);
    ck_assert_int_eq(list[0].kind, RELAY_SHARE);
    relay_close(relay);
}

/* What observers see: two units of one slice, two parts, folded in order, each part by part. The step waits, the upper
 * unit first, for the worker of the next loss or contribution. */
static const struct {
    const char *line;
    enum relay_at lower, upper;
    uint64_t upper_version;
    uint32_t owes; /* 0: nobody, or the optimizer thread */
} viewed[] = {
    {"attached 8", RELAY_AT_REST, RELAY_AT_REST, 0, 0}, /* no step yet: no units either */
    {"open 0 0,1 - 7,8", RELAY_AT_REST, RELAY_AT_REST, 0, 7},
    {"loss 7 0 0 0 ok", RELAY_AT_REST, RELAY_AT_REST, 0, 8},
    {"loss 8 0 1 0 ok", RELAY_AT_REST, RELAY_AT_REST, 0, 7},
    {"contribution 8 0 1 1 0 0 1", RELAY_AT_REST, RELAY_AT_INBOX, 0, 7}, /* its turn is after part 0 */
    {"contribution 7 0 0 0 0 0 1", RELAY_AT_FOLD, RELAY_AT_INBOX, 0,
     7}, /* the lower unit's first: another is to come */
    {"contribution 7 0 1 0 0 0 2", RELAY_AT_FOLD, RELAY_AT_FOLD, 0, 0},
    {"folded 1 0 ok", RELAY_AT_FOLD, RELAY_AT_FOLD, 0, 0},
    {"folded 1 0 ok", RELAY_AT_FOLD, RELAY_AT_UPDATE, 0, 0},
    {"updated 1", RELAY_AT_FOLD, RELAY_AT_REST, 1, 0},
    {"folded 0 0 ok", RELAY_AT_REST, RELAY_AT_REST, 1, 8},
};

TEST(a_unit_is_at_rest_in_an_inbox_folded_and_updated_and_who_owes_is_known)
{
    struct relay_view views[2], one, beyond[2] = {{9, RELAY_AT_FOLD}, {9, RELAY_AT_FOLD}};
    struct relay_trace trace = {0};

    relay_trace_say(&trace, "config parts=2 slices=1 slots=2 accumulators=1 deterministic=1"),
        relay_trace_say(&trace, "attached 7");
    for (int i = 0; i < COUNT(viewed); i++) {
        relay_trace_say(&trace, "%s", viewed[i].line);
        relay_observe(trace.relay, 0, 2, views);
        relay_observe(trace.relay, 1, 1, &one); /* a page that begins later says the same */
        ck_assert_msg(views[0].at == viewed[i].lower && views[0].version == 0, "%s: %d", viewed[i].line, views[0].at);
        ck_assert_msg(views[1].at == viewed[i].upper && views[1].version == viewed[i].upper_version, "%s: %d",
                      viewed[i].line, views[1].at);
        ck_assert(one.at == views[1].at && one.version == views[1].version);
        ck_assert_uint_eq(relay_owes(trace.relay), viewed[i].owes ? viewed[i].owes : UINT32_MAX);
    }
    relay_observe(trace.relay, 4000, 2, beyond);
    for (int i = 0; i < 2; i++)
        ck_assert(beyond[i].at == RELAY_AT_REST && beyond[i].version == 0);
    relay_trace_free(&trace);
}

/* A line of a trace, and the worker that owes after it; 0: none. */
struct owed {
    const char *line;
    uint32_t owes;
};

static void check_owed(const struct owed *lines, int n)
{
    struct relay_trace trace = {0};

    for (int i = 0; i < n; i++) {
        relay_trace_say(&trace, "%s", lines[i].line);
        ck_assert_msg(relay_owes(trace.relay) == (lines[i].owes ? lines[i].owes : UINT32_MAX), "after %s",
                      lines[i].line);
    }
    relay_trace_free(&trace);
}

/* Two row groups, in order: the step waits for worker 7, whose part comes first, and not for the loss of the other
 * part. */
static const struct owed grouped[] = {
    {"config parts=2 slices=1 slots=1 optimizer=adamw commit=fenced deterministic=1 groups=1", 0},
    {"attached 7", 0},
    {"attached 8", 0},
    {"open 0 0,1 - 7,8", 7},
    {"loss 7 0 0 0 ok", 7},
    {"contribution 7 0 1 0 0 0 1", 0},
    {"folded 1 0 ok", 7},
    {"contribution 7 0 0 0 0 0 1", 0},
    {"folded 0 0 ok", 8},
    {"loss 8 0 1 0 ok", 8},
};

TEST(in_row_groups_the_owner_of_the_lowest_part_that_is_not_folded_owes)
{
    check_owed(grouped, COUNT(grouped));
}

/* The step after the one whose update is under way. */
static const struct owed waited[] = {
    {"config parts=1 slices=1 slots=2 accumulators=1 replay=1", 0},
    {"attached 7", 0},
    {"open 0 0 - 7", 7},
    {"loss 7 0 0 0 ok", 7},
    {"contribution 7 0 0 0 0 0 1", 0},
    {"folded 0 0 ok", 0},
    {"open 1 0 - 7", 7},
    {"pull 7 1 0", 0}, /* the weights are not there yet */
    {"updated 0", 7},
    {"pull 7 2 0", 7}, /* these cannot be there before the worker has done its part */
};

TEST(who_waits_for_weights_of_the_step_owes_nothing)
{
    check_owed(waited, COUNT(waited));
}

/* Two parts of two names each. Worker 7 sends one name of its part and is gone; 8 has sent all, and nothing of it is
 * folded, as 7's come first. */
static const char *const lost[] = {
    "config parts=2 slices=1 slots=2 accumulators=1 deterministic=1 replay=%d",
    "attached 7",
    "attached 8",
    "open 0 0,1 - 7,8",
    "loss 7 0 0 0 ok",
    "loss 8 0 1 0 ok",
    "contribution 8 0 1 1 0 0 1",
    "contribution 8 0 0 1 0 0 2",
};

static void check_parts(const struct relay *relay, uint32_t worker, uint32_t load, uint32_t n_missing, uint32_t first)
{
    struct relay_part parts[2];

    ck_assert_uint_eq(relay_load(relay, worker), load);
    ck_assert_uint_eq(relay_missing(relay, worker, parts), n_missing);
    if (n_missing)
        ck_assert_uint_eq(parts[0].part, first);
}

TEST_EACH(what_a_lost_worker_owes_is_known_before_the_relay_is_told, 2)
{
    struct relay_trace trace = {0};

    for (int i = 0; i < COUNT(lost); i++)
        relay_trace_say(&trace, lost[i], _i);
    check_parts(trace.relay, 7, 1, 1, 0);
    check_parts(trace.relay, 8, 1, 0, 0);
    ck_assert(relay_can_lose(trace.relay, 7)); /* it has given nothing yet */
    relay_trace_say(&trace, "contribution 7 0 1 0 0 0 1");
    check_parts(trace.relay, 7, 1, 1, 0);
    ck_assert(relay_can_lose(trace.relay, 7) == _i); /* its fold is under way */
    ck_assert(relay_can_lose(trace.relay, 8));
    ck_assert(relay_is_current(trace.relay, 7, 0, 0) && !relay_is_current(trace.relay, 7, 0, 1));
    ck_assert(!relay_is_current(trace.relay, 7, 1, 0));
    if (_i) { /* its part goes to the one that stays, though 7 has as few */
        relay_expect_loss(trace.relay, 8);
        relay_trace_say(&trace, "attached 9");
        relay_trace_say(&trace, "lost 7");
        ck_assert_holds(trace.said, "share 9 0 0:1");
        check_parts(trace.relay, 9, 1, 1, 0);
    }
    relay_trace_free(&trace);
}

/* One part of two names. While the thread has worker 7's upper one, 7 is lost, and 8 sends the lower one. The part is
 * finished unless 7's numbers are not finite, so 8 still has to send it. */
TEST_EACH(what_is_folded_of_a_lost_worker_is_not_what_its_successor_has_sent, 2)
{
    struct relay_trace trace = {0};

    relay_trace_say(&trace, "config parts=1 slices=1 slots=2 accumulators=1 replay=1");
    relay_trace_say(&trace, "attached 7");
    relay_trace_say(&trace, "attached 8");
    relay_trace_say(&trace, "open 0 0,1 - 7");
    relay_trace_say(&trace, "loss 7 0 0 0 ok");
    relay_trace_say(&trace, "contribution 7 0 1 0 0 0 1");
    ck_assert_holds(trace.said, "fold");
    relay_trace_say(&trace, "lost 7");
    ck_assert_holds(trace.said, "share 8 0 0:1");
    relay_trace_say(&trace, "loss 8 0 0 1 ok");
    relay_trace_say(&trace, "contribution 8 0 0 0 0 1 1");
    ck_assert_holds(trace.said, "fold");
    check_parts(trace.relay, 8, 0, 1, 0);
    if (_i)
        relay_trace_say(&trace, "contribution 8 0 1 0 0 1 2");
    check_parts(trace.relay, 8, 0, _i ? 0 : 1, 0);
    relay_trace_say(&trace, "folded 1 0 bad");
    check_parts(trace.relay, 8, _i ? 0 : 1, _i ? 0 : 1, 0);
    relay_trace_free(&trace);
}

/* Both parts are worker 7's. It has sent part 0 whole: the upper unit's contribution is with the thread, the lower
 * one's waits for an accumulator. With one accumulator, that is the upper unit's until part 1 comes, too, which is 7's
 * as long as the relay has not heard of its loss. */
TEST_EACH(no_worker_can_be_lost_whose_part_waits_for_accumulators_that_wait_for_another_of_its_parts, 2)
{
    struct relay_trace trace = {0};

    relay_trace_say(&trace, "config parts=2 slices=1 slots=2 accumulators=%d optimizer=adamw replay=0", 1 + _i);
    relay_trace_say(&trace, "attached 7");
    relay_trace_say(&trace, "open 0 0,1 - 7,7");
    relay_trace_say(&trace, "loss 7 0 0 0 ok");
    relay_trace_say(&trace, "loss 7 0 1 0 ok");
    ck_assert(relay_can_lose(trace.relay, 7));
    relay_trace_say(&trace, "contribution 7 0 1 0 0 0 1");
    ck_assert(!relay_can_lose(trace.relay, 7)); /* part 0 is begun, and not sent whole */
    relay_trace_say(&trace, "contribution 7 0 0 0 0 0 2");
    check_parts(trace.relay, 7, 2 - (uint32_t)_i, 1, 1);
    ck_assert(relay_can_lose(trace.relay, 7) == _i);
    relay_trace_free(&trace);
}

/* Parts 0 and 1 are worker 7's. It has sent part 0 whole and nothing of part 1: both are redone, so that the one is not
 * begun while the other keeps the loss from the relay. */
TEST(a_part_sent_whole_is_redone_with_the_others_of_its_worker)
{
    struct relay_trace trace = {0};

    relay_trace_say(&trace, "config parts=3 slices=1 slots=2 accumulators=1 optimizer=adamw replay=0");
    relay_trace_say(&trace, "attached 7");
    relay_trace_say(&trace, "attached 8");
    relay_trace_say(&trace, "open 0 0,1 - 7,7,8");
    relay_trace_say(&trace, "loss 7 0 0 0 ok");
    relay_trace_say(&trace, "loss 7 0 1 0 ok");
    relay_trace_say(&trace, "contribution 7 0 1 0 0 0 1");
    relay_trace_say(&trace, "contribution 7 0 0 0 0 0 2");
    ck_assert(relay_can_lose(trace.relay, 7));
    relay_expect_loss(trace.relay, 7);
    relay_trace_say(&trace, "loss 8 0 2 0 ok");
    ck_assert_ptr_null(strstr(trace.said, "fold"));
    relay_trace_say(&trace, "lost 7");
    ck_assert_holds(trace.said, "share 8 0 0:1 1:1");
    relay_trace_free(&trace);
}

/* One part of two names. Without replay, what was begun cannot be redone. */
TEST_EACH(a_damaged_slice_tears_the_model_only_where_its_part_cannot_be_redone, 2)
{
    struct relay_trace trace = {0};

    relay_trace_say(&trace, "config parts=1 slices=1 slots=2 accumulators=1 replay=0");
    relay_trace_say(&trace, "attached 7");
    relay_trace_say(&trace, "open 0 0,1 - 7");
    relay_trace_say(&trace, "loss 7 0 0 0 ok");
    relay_trace_say(&trace, "contribution 7 0 1 0 0 0 1");
    if (_i) {
        relay_trace_say(&trace, "folded 1 0 ok");
        relay_trace_say(&trace, "contribution 7 0 0 0 0 0 1");
    }
    relay_trace_say(&trace, "folded %d 0 damaged", !_i);
    ck_assert_holds(trace.said, _i ? "torn 0" : "redo 7\n  share 7 0 0:1");
    relay_trace_free(&trace);
}

/* test_relay --trace FILE: echoes each event and puts its actions under it, like the specification's own --trace.
 * --refuse: the same, and each request for memory is refused once before it is granted. */
static int print_trace(int argc, char **argv)
{
    struct relay_trace trace = {0};
    char *line = NULL, *said = NULL;
    size_t cap = 0, said_bytes = 0;
    const bool refuse = argc == 3 && !strcmp(argv[1], "--refuse");
    FILE *in = argc == 3 && (refuse || !strcmp(argv[1], "--trace")) ? fopen(argv[2], "r") : NULL;
    unsigned n_refusals = 0;
    int rc = 0;
    if (!in) {
        fprintf(stderr, "usage: %s --trace|--refuse FILE\n", argv[0]);
        return 2;
    }
    FILE *out = open_memstream(&said, &said_bytes);
    while (!rc && getline(&line, &cap, in) > 0) {
        if (line[0] == ' ' || line[0] == '#' || line[0] == '\n')
            continue;
        rewind(out);
        rc = refuse ? feed_through_refusals(&trace, line, out, &n_refusals) : relay_trace_feed(&trace, line, out);
        fflush(out);
        printf("%s%.*s", line, (int)ftell(out), said);
    }
    fclose(in);
    fclose(out);
    free(line);
    free(said);
    relay_trace_free(&trace);
    return rc ? 1 : 0;
}

SUITE_COMMAND(print_trace)
