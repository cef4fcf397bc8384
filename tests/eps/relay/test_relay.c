/* The relay against its executable specification, which wrote the traces: events, and under each its actions.
 *
 *   config parts=2 slices=1 slots=2 accumulators=1 optimizer=adama commit=eager deterministic=0 replay=1
 *   attached 0
 *   open 0 0,1,0 - 0,0       step, units by visit, frozen units, owners by part; then, if the visits differ in slices,
 *     share 0 0 0:0 1:0      those, a column that the specification lacks
 *
 * Blanks in a reason are written as '_'. Readers may have names. */
#include "eps/relay/relay.h"
#include "tests/kit/test.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

/* ---- lines ------------------------------------------------------------------------------------------------------- */

enum { MAX_WORDS = 12, LINE_BYTES = 4096, LIST = 64, READERS = 8, NAME_BYTES = 16 };

struct trace {
    struct relay *relay; /* NULL before the first config line */
    struct relay_config config;
    uint32_t n_slices;
    char readers[READERS][NAME_BYTES]; /* those that are not numbers; each is its place here */
    uint32_t visits[LIST], slices[LIST], frozen[LIST], owners[LIST];
};

/* A line: its word, then numbers, each named by a letter: worker, unit, visit, part, sliCe, attempt, slot (k), reader,
 * step (t). More may follow. */
struct form {
    const char *word, *letters;
};

static const struct form event_forms[] = {
    [RELAY_ATTACHED] = {"attached", "w"}, [RELAY_LOST] = {"lost", "w"},
    [RELAY_OPEN] = {"open", "t"},         [RELAY_PULL] = {"pull", "wtu"},
    [RELAY_LOSS] = {"loss", "wtpa"},      [RELAY_CONTRIBUTION] = {"contribution", "wtvpcak"},
    [RELAY_FOLDED] = {"folded", "uc"},    [RELAY_UPDATED] = {"updated", "u"},
    [RELAY_SAVE] = {"save", "r"},         [RELAY_RELEASED] = {"released", "ru"},
};

static const struct form action_forms[] = {
    [RELAY_SHARE] = {"share", "wt"},   [RELAY_ANSWER] = {"answer", "wut"}, [RELAY_REFUSE] = {"refuse", ""},
    [RELAY_FOLD] = {"fold", "uvpcwk"}, [RELAY_UPDATE] = {"update", "u"},   [RELAY_FREE] = {"free", "wkvpc"},
    [RELAY_GRANT] = {"grant", "wvpc"}, [RELAY_COVERED] = {"covered", "t"}, [RELAY_SKIPPED] = {"skipped", "t"},
    [RELAY_DONE] = {"done", "t"},      [RELAY_TORN] = {"torn", "t"},       [RELAY_CAPTURE] = {"capture", "rut"},
    [RELAY_SAVED] = {"saved", "rt"},   [RELAY_ABANDON] = {"abandon", "r"},
};

/* By letter. */
struct numbers {
    int64_t of['w' + 1];
};

static bool is_number(const char *word)
{
    return isdigit((unsigned char)word[word[0] == '-']) != 0;
}

static uint32_t list(uint32_t *out, const char *word)
{
    uint32_t n = 0;
    char *end = NULL;
    for (; is_number(word) && n < LIST; word = end + 1) {
        out[n++] = (uint32_t)strtoul(word, &end, 10);
        if (*end != ',')
            break;
    }
    return n;
}

static uint32_t reader_number(struct trace *trace, const char *word)
{
    uint32_t i = 0;
    if (is_number(word))
        return (uint32_t)strtoul(word, NULL, 10);
    while (i < READERS - 1 && trace->readers[i][0] && strcmp(trace->readers[i], word) != 0)
        i++;
    snprintf(trace->readers[i], NAME_BYTES, "%s", word);
    return i;
}

static void trace_free(struct trace *trace)
{
    relay_close(trace->relay);
    *trace = (struct trace){0};
}

static int open_relay(struct trace *trace, char **words, unsigned n_words)
{
    struct relay_config *c = &trace->config;
    char optimizer[8] = "", commit[8] = "";
    int deterministic = 0, replay = 0, n = 0;
    trace_free(trace);
    for (unsigned i = 1; i < n_words; i++)
        n += sscanf(words[i], "parts=%u", &c->n_parts) + sscanf(words[i], "slices=%u", &trace->n_slices) +
             sscanf(words[i], "slots=%u", &c->n_slots) + sscanf(words[i], "accumulators=%u", &c->n_accumulators) +
             sscanf(words[i], "optimizer=%7s", optimizer) + sscanf(words[i], "commit=%7s", commit) +
             sscanf(words[i], "deterministic=%d", &deterministic) + sscanf(words[i], "replay=%d", &replay);
    c->adamw = strcmp(optimizer, "adamw") == 0;
    c->fenced = strcmp(commit, "fenced") == 0;
    c->deterministic = deterministic;
    c->replay = replay;
    return n == (int)n_words - 1 ? relay_open(&trace->relay, c) : -EINVAL;
}

static int parse_open(struct trace *trace, char **words, unsigned n_words, struct relay_event *e)
{
    if (n_words < 5)
        return -EINVAL;
    e->visits = trace->visits, e->n_visits = list(trace->visits, words[2]);
    e->frozen = trace->frozen, e->n_frozen = list(trace->frozen, words[3]);
    e->owners = trace->owners, e->n_owners = list(trace->owners, words[4]);
    e->n_slices = trace->slices;
    for (uint32_t v = 0; v < e->n_visits; v++)
        trace->slices[v] = trace->n_slices;
    return n_words > 5 && list(trace->slices, words[5]) != e->n_visits ? -EINVAL : 0;
}

static int parse(struct trace *trace, char **words, unsigned n_words, struct relay_event *e)
{
    struct numbers x = {{0}};
    int kind = 0;
    while (kind < COUNT(event_forms) && strcmp(words[0], event_forms[kind].word) != 0)
        kind++;
    if (kind == COUNT(event_forms) || n_words <= strlen(event_forms[kind].letters))
        return -EINVAL;
    for (const char *letter = event_forms[kind].letters; *letter; letter++) {
        const char *word = words[1 + (letter - event_forms[kind].letters)];
        x.of[(int)*letter] = *letter == 'r' ? reader_number(trace, word) : strtoll(word, NULL, 10);
    }
    *e = (struct relay_event){.kind = (enum relay_event_kind)kind,
                              .worker = (uint32_t)x.of['w'],
                              .unit = (uint32_t)x.of['u'],
                              .slot = (uint32_t)x.of['k'],
                              .reader = (uint32_t)x.of['r'],
                              .step = (uint64_t)x.of['t'],
                              .name = {.step = (uint64_t)x.of['t'],
                                       .visit = (uint32_t)x.of['v'],
                                       .part = (uint32_t)x.of['p'],
                                       .slice = (uint32_t)x.of['c'],
                                       .attempt = (uint32_t)x.of['a']},
                              .ok = strcmp(words[n_words - 1], "ok") == 0};
    return e->kind == RELAY_OPEN ? parse_open(trace, words, n_words, e) : 0;
}

static void print_refusal(FILE *out, const struct relay_action *a, const char *reader)
{
    if (a->to_client || a->to_reader)
        fprintf(out, " %s ", a->to_client ? "client" : reader);
    else
        fprintf(out, " %u ", a->worker);
    for (const char *c = a->why; *c; c++)
        fputc(*c == ' ' ? '_' : *c, out);
}

static void print_action(FILE *out, const struct trace *trace, const struct relay_action *a)
{
    const struct numbers x = {.of = {['w'] = a->worker,
                                     ['u'] = a->unit,
                                     ['k'] = a->slot,
                                     ['t'] = (int64_t)a->step,
                                     ['v'] = a->name.visit,
                                     ['p'] = a->name.part,
                                     ['c'] = a->name.slice}};
    char reader[NAME_BYTES];
    const bool is_named = a->reader < READERS && trace->readers[a->reader][0];
    snprintf(reader, sizeof reader, "%u", a->reader);
    fprintf(out, "  %s", action_forms[a->kind].word);
    for (const char *letter = action_forms[a->kind].letters; *letter; letter++)
        if (*letter == 'r')
            fprintf(out, " %s", is_named ? trace->readers[a->reader] : reader);
        else
            fprintf(out, " %lld", (long long)x.of[(int)*letter]);
    for (uint32_t i = 0; a->kind == RELAY_SHARE && i < a->n_parts; i++)
        fprintf(out, " %u:%u", a->parts[i].part, a->parts[i].attempt);
    if (a->kind == RELAY_ANSWER)
        fputs(a->before ? " before" : " now", out);
    if (a->kind == RELAY_FOLD)
        fputs(a->first ? " first" : " next", out);
    if (a->kind == RELAY_REFUSE)
        print_refusal(out, a, is_named ? trace->readers[a->reader] : reader);
    fputc('\n', out);
}

/* Feeds one line that is not indented; a config line begins anew. Writes the actions, each a line, to out. Returns 0,
 * -EINVAL for a line that is neither, or what the relay returned. */
static int trace_feed(struct trace *trace, const char *line, FILE *out)
{
    char text[LINE_BYTES], *words[MAX_WORDS], *rest = NULL;
    unsigned n_words = 0;
    struct relay_event e;
    const struct relay_action *list = NULL;
    ck_assert_uint_lt(strlen(line), sizeof text);
    strcpy(text, line);
    for (char *w = strtok_r(text, " \n", &rest); w && n_words < MAX_WORDS; w = strtok_r(NULL, " \n", &rest))
        words[n_words++] = w;
    if (n_words && !strcmp(words[0], "config"))
        return open_relay(trace, words, n_words);
    const int rc = n_words && trace->relay ? parse(trace, words, n_words, &e) : -EINVAL;
    if (rc)
        return rc;
    const int n = relay_feed(trace->relay, &e, &list);
    for (int i = 0; i < n; i++)
        print_action(out, trace, &list[i]);
    return n < 0 ? n : 0;
}

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

/* Refuses each request in turn until the line goes through. Returns how often it did not. */
static unsigned feed_through_refusals(struct trace *trace, const char *line, FILE *out)
{
    unsigned n = 0;
    int rc = -ENOMEM;
    while (rc == -ENOMEM) {
        allocator.refused = ++n;
        rc = trace_feed(trace, line, out);
        allocator.refused = 0;
        ck_assert(rc != -ENOMEM || ftell(out) == 0);
    }
    ck_assert_int_eq(rc, 0);
    return n - 1;
}

/* ---- traces ------------------------------------------------------------------------------------------------------ */

static const char *const traces[] = {"walks-0", "walks-1", "walks-2",    "walks-3", "walks-4", "walks-5", "chaos-0",
                                     "chaos-1", "chaos-2", "inbox-full", "woken",   "save",    "skipped", "frozen"};

/* The actions of the relay at every event of a file must be those that stand under it, though every request for
 * memory be refused once (n_refusals; or NULL). Returns how many traces the file holds. */
static int replay(const char *name, unsigned *n_refusals)
{
    struct trace trace = {0};
    char *line = NULL, *said = NULL;
    size_t cap = 0, said_bytes = 0, at = 0;
    int n_line = 0, n_traces = 0;
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
        n_traces += !strncmp(line, "config ", 7);
        rewind(out);
        if (n_refusals)
            *n_refusals += feed_through_refusals(&trace, line, out);
        else
            ck_assert_msg(!trace_feed(&trace, line, out), "%s:%d: not an event", name, n_line);
        fflush(out);
        at = 0;
    }
    ck_assert_uint_eq(at, said_bytes);
    fclose(in);
    fclose(out);
    free(said);
    free(line);
    trace_free(&trace);
    return n_traces;
}

/* tests/eps/relay/generate.py wrote walks and chaos, 40 traces a file. The others: an inbox that is full, and its
 * head-of-line worker dies; a stopped worker that wakes after its unit was updated; a save in the middle; a step that is
 * skipped while the thread reads; a frozen unit, answered at either version. */
TEST_EACH(actions_are_those_of_the_specification, COUNT(traces))
{
    ck_assert_int_eq(replay(traces[_i], NULL), _i < 9 ? 40 : 1);
}

TEST_IF(an_event_that_finds_no_memory_changes_nothing, !SANITIZED)
{
    unsigned n_refusals = 0;
    replay("walks-0", &n_refusals);
    replay("chaos-0", &n_refusals);
    ck_assert_uint_gt(n_refusals, 500); /* every trace opens, attaches and begins steps */
}

static void feed_line(struct trace *trace, FILE *out, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void feed_line(struct trace *trace, FILE *out, const char *format, ...)
{
    char line[100];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    ck_assert_msg(trace_feed(trace, line, out) == 0, "%s", line);
}

/* Steps alike, of two workers and a reader: unit 0 is tied, visited below and above unit 1, and has two slices. */
TEST_IF(nothing_is_allocated_after_the_second_step, !SANITIZED)
{
    struct trace trace = {0};
    FILE *out = fopen("/dev/null", "w");
    unsigned n_before = 0;

    feed_line(&trace, out, "config parts=2 slots=1 accumulators=1 optimizer=adamw deterministic=1 replay=1");
    feed_line(&trace, out, "attached 0"), feed_line(&trace, out, "attached 1");
    for (unsigned t = 0; t < 20; t++) {
        if (t == 2)
            n_before = allocator.n_calls;
        feed_line(&trace, out, "open %u 0,1,0 - 0,1 2,1,2", t);
        for (unsigned worker = 0; worker < 2; worker++) {
            feed_line(&trace, out, "pull %u %u 0", worker, t), feed_line(&trace, out, "pull %u %u 1", worker, t + 1);
            feed_line(&trace, out, "loss %u %u %u 0 ok", worker, t, worker);
        }
        feed_line(&trace, out, "save disk");
        feed_line(&trace, out, "released disk 0"), feed_line(&trace, out, "released disk 1");
        for (unsigned visit = 3; visit-- > 0;)
            for (unsigned i = 0; i < (visit == 1 ? 2 : 4); i++) {
                const unsigned part = visit == 1 ? i : i / 2, slice = visit == 1 ? 0 : i % 2;
                for (int twice = 0; twice < 2; twice++)
                    feed_line(&trace, out, "contribution %u %u %u %u %u 0 1", part, t, visit, part, slice);
                feed_line(&trace, out, "folded %u %u ok", visit == 1, slice);
                if (visit < 2 && i == (visit == 1 ? 1 : 3))
                    feed_line(&trace, out, "updated %u", visit);
            }
        ck_assert_uint_eq(relay_version(trace.relay, 0) + relay_version(trace.relay, 1), 2 * (t + 1));
    }
    ck_assert_uint_eq(allocator.n_calls, n_before);
    fclose(out);
    trace_free(&trace);
}

/* ---- what no trace has ------------------------------------------------------------------------------------------- */

static int feed(struct relay *relay, struct relay_event event, const struct relay_action **list)
{
    const int n = relay_feed(relay, &event, list);
    ck_assert_int_ge(n, 0);
    return n;
}

static const uint32_t zero_and_one[] = {0, 1}, ones[] = {1, 1};

static struct relay_event open_of(const uint32_t *owners, uint32_t n_owners)
{
    return (struct relay_event){.kind = RELAY_OPEN,
                                .visits = zero_and_one,
                                .n_slices = ones,
                                .n_visits = 2,
                                .owners = owners,
                                .n_owners = n_owners};
}

/* One field at a time is far beyond everything; then the step goes on as if nothing had been said. */
TEST(numbers_that_index_nothing_are_refused)
{
    static const uint32_t far[] = {2, 5, 64, 1u << 20, UINT32_MAX - 1, UINT32_MAX};
    const struct relay_config config = {.n_parts = 1, .n_slots = 1, .n_accumulators = 1};
    const struct relay_event good = {.kind = RELAY_CONTRIBUTION, .name.visit = 1, .slot = 1};
    const struct relay_action *list;
    struct relay *relay;

    ck_assert_int_eq(relay_open(&relay, &config), 0);
    feed(relay, (struct relay_event){.kind = RELAY_ATTACHED}, &list);
    feed(relay, open_of(zero_and_one, 1), &list);
    feed(relay, (struct relay_event){.kind = RELAY_LOSS, .ok = true}, &list);
    for (int i = 0; i < COUNT(far); i++)
        for (int field = 0; field < 10; field++) {
            struct relay_event e = good, pull = {.kind = RELAY_PULL}, loss = {.kind = RELAY_LOSS, .ok = true},
                               released = {.kind = RELAY_RELEASED};
            uint32_t *const fields[] = {&e.name.visit,  &e.name.part,    &e.name.slice,   &e.name.attempt,
                                        &e.slot,        &pull.unit,      &loss.name.part, &loss.name.attempt,
                                        &released.unit, &released.reader};
            *fields[field] = far[i];
            const int n = feed(relay, field < 5 ? e : field == 5 ? pull : field < 8 ? loss : released, &list);
            ck_assert_msg(field < 8 ? n == 1 && list->kind == RELAY_REFUSE : n == 0, "field %d of %u", field, far[i]);
        }
    ck_assert_int_eq(feed(relay, good, &list), 1);
    ck_assert_int_eq(list->kind, RELAY_FOLD);
    relay_close(relay);
}

TEST(more_readers_than_64_are_refused)
{
    struct trace trace = {0};
    char said[4096] = "";
    FILE *out = fmemopen(said, sizeof said, "w");
    feed_line(&trace, out, "config parts=1 slots=1"), feed_line(&trace, out, "attached 0");
    feed_line(&trace, out, "open 0 0 - 0 1");
    for (int i = 0; i < 65; i++)
        feed_line(&trace, out, "save %d", i);
    feed_line(&trace, out, "released 63 0");
    fclose(out);
    ck_assert_ptr_nonnull(strstr(said, "  capture 63 0 0\n  refuse 64 too_many_readers\n  saved 63 0\n"));
    trace_free(&trace);
}

/* One unit, one part, one slice; steps begin at 0 or where a run is resumed. */
TEST_EACH(the_cut_is_known_before_a_reader_comes, 2)
{
    const struct relay_config config = {.first_step = _i ? 70 : 0, .n_parts = 1, .n_slots = 1, .n_accumulators = 1};
    const uint32_t unit = 0, one = 1, owner = 0;
    const uint64_t t = config.first_step;
    const struct relay_event events[] = {
        {.kind = RELAY_ATTACHED},
        {.kind = RELAY_SAVE, .reader = 1}, /* refused: no unit is known */
        {.kind = RELAY_OPEN,
         .step = t,
         .visits = &unit,
         .n_slices = &one,
         .n_visits = 1,
         .owners = &owner,
         .n_owners = 1},
        {.kind = RELAY_LOSS, .name.step = t, .ok = true},
        {.kind = RELAY_CONTRIBUTION, .name.step = t, .slot = 1},
        {.kind = RELAY_FOLDED, .ok = true},
        {.kind = RELAY_UPDATED},
        {.kind = RELAY_SAVE, .reader = 2},
    };
    const uint64_t cuts[] = {UINT64_MAX, UINT64_MAX, t, t, t + 1, t + 1, t + 1, t + 1};
    const struct relay_action *actions = NULL;
    struct relay *relay;
    int n = 0;

    ck_assert_int_eq(relay_open(&relay, &config), 0);
    ck_assert_uint_eq(relay_cut(relay), UINT64_MAX);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
        n = relay_feed(relay, &events[i], &actions);
        ck_assert_int_ge(n, 0);
        ck_assert_msg(relay_cut(relay) == cuts[i], "after event %zu: %ju", i, (uintmax_t)relay_cut(relay));
        ck_assert(i != 1 || (n == 1 && actions[0].kind == RELAY_REFUSE && actions[0].to_reader));
    }
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(actions[0].kind, RELAY_CAPTURE);
    ck_assert_uint_eq(actions[0].step, t + 1);
    relay_close(relay);
}

TEST(a_step_of_more_names_than_can_be_numbered_is_not_opened)
{
    static const uint32_t owners[1 << 16]; /* all are worker 0's */
    const struct relay_config config = {.n_parts = 1 << 16, .n_slots = 1, .n_accumulators = 1};
    const uint32_t n_slices[] = {1 << 16, 1};
    struct relay_event open = open_of(owners, 1 << 16);
    const struct relay_action *list = NULL;
    struct relay *relay = NULL;
    open.n_slices = n_slices;
    ck_assert_int_eq(relay_open(&relay, &config), 0);
    feed(relay, (struct relay_event){.kind = RELAY_ATTACHED}, &list);
    ck_assert_int_eq(relay_feed(relay, &open, &list), -ENOMEM);
    open.n_slices = ones;
    ck_assert_int_eq(feed(relay, open, &list), 1);
    ck_assert_int_eq(list[0].kind, RELAY_SHARE);
    relay_close(relay);
}

/* ---- what observers see: two units of one slice, two parts, folded in order ---------------------------------------- */

static const uint32_t sevens[] = {7, 7};

static void feed_one(struct relay *relay, struct relay_event event)
{
    const struct relay_action *list;

    event.worker = event.worker ? event.worker : 7;
    feed(relay, event, &list);
}

static struct relay *open_viewed(void)
{
    const struct relay_config config = {.n_parts = 2, .n_slots = 2, .n_accumulators = 1, .deterministic = true};
    struct relay *relay;

    ck_assert_int_eq(relay_open(&relay, &config), 0);
    feed_one(relay, (struct relay_event){.kind = RELAY_ATTACHED});
    return relay;
}

static void check_views(struct relay *relay, enum relay_at lower, enum relay_at upper, uint64_t upper_version)
{
    struct relay_view views[2], one;

    relay_look(relay, 0, 2, views);
    relay_look(relay, 1, 1, &one); /* a page that begins later says the same */
    ck_assert(views[0].at == lower && views[0].version == 0);
    ck_assert(views[1].at == upper && views[1].version == upper_version);
    ck_assert(one.at == upper && one.version == upper_version);
}

static struct relay_event contribution(uint32_t visit, uint32_t part, uint32_t slot)
{
    return (struct relay_event){.kind = RELAY_CONTRIBUTION, .name = {.visit = visit, .part = part}, .slot = slot};
}

TEST(a_unit_is_at_rest_in_an_inbox_folded_and_updated)
{
    struct relay *relay = open_viewed();
    struct relay_view beyond[2] = {{9, RELAY_AT_FOLD}, {9, RELAY_AT_FOLD}};

    check_views(relay, RELAY_AT_REST, RELAY_AT_REST, 0); /* no step yet: no units either */
    feed_one(relay, open_of(sevens, 2));
    for (uint32_t part = 0; part < 2; part++)
        feed_one(relay, (struct relay_event){.kind = RELAY_LOSS, .name.part = part, .ok = true});
    check_views(relay, RELAY_AT_REST, RELAY_AT_REST, 0);
    feed_one(relay, contribution(1, 1, 1)); /* its turn is after part 0 */
    check_views(relay, RELAY_AT_REST, RELAY_AT_INBOX, 0);
    feed_one(relay, contribution(1, 0, 2));
    check_views(relay, RELAY_AT_REST, RELAY_AT_FOLD, 0);
    for (uint32_t i = 0; i < 2; i++)
        feed_one(relay, (struct relay_event){.kind = RELAY_FOLDED, .unit = 1, .ok = true});
    check_views(relay, RELAY_AT_REST, RELAY_AT_UPDATE, 0);
    feed_one(relay, (struct relay_event){.kind = RELAY_UPDATED, .unit = 1});
    check_views(relay, RELAY_AT_REST, RELAY_AT_REST, 1);
    relay_look(relay, 4000, 2, beyond);
    for (int i = 0; i < 2; i++)
        ck_assert(beyond[i].at == RELAY_AT_REST && beyond[i].version == 0);
    relay_close(relay);
}

/* In fold order: the upper unit first, part by part. */
TEST(a_step_waits_for_the_worker_of_the_next_loss_or_contribution)
{
    static const uint32_t two[] = {7, 8};
    struct relay *relay = open_viewed();

    ck_assert_uint_eq(relay_owes(relay), UINT32_MAX); /* no step */
    feed_one(relay, (struct relay_event){.kind = RELAY_ATTACHED, .worker = 8});
    feed_one(relay, open_of(two, 2));
    ck_assert_uint_eq(relay_owes(relay), 7);
    feed_one(relay, (struct relay_event){.kind = RELAY_LOSS, .name.part = 0, .ok = true});
    ck_assert_uint_eq(relay_owes(relay), 8);
    feed_one(relay, (struct relay_event){.kind = RELAY_LOSS, .worker = 8, .name.part = 1, .ok = true});
    ck_assert_uint_eq(relay_owes(relay), 7);
    feed_one(relay, contribution(0, 0, 1)); /* not its turn: it stands there, and the other one is still to come */
    ck_assert_uint_eq(relay_owes(relay), 7);
    feed_one(relay, contribution(1, 0, 2));
    ck_assert_uint_eq(relay_owes(relay), UINT32_MAX); /* with the optimizer thread */
    feed_one(relay, (struct relay_event){.kind = RELAY_FOLDED, .unit = 1, .ok = true});
    ck_assert_uint_eq(relay_owes(relay), 8);
    relay_close(relay);
}

/* test_relay --trace FILE...: echoes each event and puts its actions under it, like the specification's own --trace. */
static int print_trace(int argc, char **argv)
{
    struct trace trace = {0};
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    for (int i = 2; i < argc && !rc; i++) {
        FILE *in = fopen(argv[i], "r");
        if (!in) {
            perror(argv[i]);
            return 1;
        }
        while (!rc && getline(&line, &cap, in) > 0) {
            if (line[0] == ' ' || line[0] == '#' || line[0] == '\n')
                continue;
            fputs(line, stdout);
            rc = trace_feed(&trace, line, stdout);
        }
        fclose(in);
    }
    free(line);
    trace_free(&trace);
    return rc ? 1 : 0;
}

SUITE_COMMAND(print_trace)
