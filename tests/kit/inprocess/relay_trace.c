#include "tests/kit/inprocess/relay_trace.h"

#include "tests/kit/test.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 12, FIRST_NAMED = 1000 };

/* A line: its word, then numbers, each named by a letter: worker, unit, visit, part, sliCe, attempt, slot (k), reader,
 * step (t), room (n), digest (d), other worker (o). More may follow. */
struct form {
    const char *word, *letters;
};

static const struct form event_forms[] = {
    [RELAY_ATTACHED] = {"attached", "w"},
    [RELAY_LOST] = {"lost", "w"},
    [RELAY_ROOM] = {"room", "wn"},
    [RELAY_OPEN] = {"open", "t"},
    [RELAY_PULL] = {"pull", "wtu"},
    [RELAY_LOSS] = {"loss", "wtpa"},
    [RELAY_CONTRIBUTION] = {"contribution", "wtvpcak"},
    [RELAY_DIGEST] = {"digest", "wtvpcd"},
    [RELAY_UNAUDIT] = {"unaudit", "w"},
    [RELAY_FOLDED] = {"folded", "uc"},
    [RELAY_UPDATED] = {"updated", "u"},
    [RELAY_SAVE] = {"save", "r"},
    [RELAY_RELEASED] = {"released", "ru"},
};

static const struct form action_forms[] = {
    [RELAY_SHARE] = {"share", "wt"},    [RELAY_ANSWER] = {"answer", "wut"},
    [RELAY_REFUSE] = {"refuse", ""},    [RELAY_FOLD] = {"fold", "uvpcwk"},
    [RELAY_UPDATE] = {"update", "u"},   [RELAY_FREE] = {"free", "wkvpc"},
    [RELAY_GRANT] = {"grant", "wvpc"},  [RELAY_COVERED] = {"covered", "t"},
    [RELAY_SKIPPED] = {"skipped", "t"}, [RELAY_DONE] = {"done", "t"},
    [RELAY_TORN] = {"torn", "t"},       [RELAY_CAPTURE] = {"capture", "rut"},
    [RELAY_AUDIT] = {"audit", "wtp"},   [RELAY_LIAR] = {"liar", "w"},
    [RELAY_AGAIN] = {"again", "w"},     [RELAY_UNDECIDED] = {"undecided", "wo"},
    [RELAY_REDO] = {"redo", "w"},       [RELAY_SAVED] = {"saved", "rt"},
    [RELAY_ABANDON] = {"abandon", "r"},
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
    for (; is_number(word) && n < RELAY_TRACE_LIST; word = end + 1) {
        out[n++] = (uint32_t)strtoul(word, &end, 10);
        if (*end != ',')
            break;
    }
    return n;
}

/* The specification gives two of its readers names. */
static const char *const named[] = {"disk", "copy"};

static uint32_t reader_number(const char *word)
{
    for (uint32_t i = 0; i < COUNT(named); i++)
        if (!strcmp(word, named[i]))
            return FIRST_NAMED + i;
    return (uint32_t)strtoul(word, NULL, 10);
}

static void print_reader(FILE *out, uint32_t reader)
{
    if (reader >= FIRST_NAMED && reader < FIRST_NAMED + COUNT(named))
        fprintf(out, " %s", named[reader - FIRST_NAMED]);
    else
        fprintf(out, " %u", reader);
}

void relay_trace_free(struct relay_trace *trace)
{
    relay_close(trace->relay);
    if (trace->out)
        fclose(trace->out);
    *trace = (struct relay_trace){0};
}

static int open_relay(struct relay_trace *trace, char **words, unsigned n_words)
{
    struct relay_config *c = &trace->config;
    char optimizer[8] = "", commit[8] = "";
    int deterministic = 0, replay = 0, groups = 0, n = 0;
    uintmax_t first = 0;
    relay_close(trace->relay);
    *trace = (struct relay_trace){.out = trace->out};
    for (unsigned i = 1; i < n_words; i++)
        n += sscanf(words[i], "parts=%u", &c->n_parts) + sscanf(words[i], "slices=%u", &trace->n_slices) +
             sscanf(words[i], "slots=%u", &c->n_slots) + sscanf(words[i], "accumulators=%u", &c->n_accumulators) +
             sscanf(words[i], "optimizer=%7s", optimizer) + sscanf(words[i], "commit=%7s", commit) +
             sscanf(words[i], "deterministic=%d", &deterministic) + sscanf(words[i], "replay=%d", &replay) +
             sscanf(words[i], "groups=%d", &groups) + sscanf(words[i], "first=%ju", &first);
    c->first_step = first;
    c->adamw = strcmp(optimizer, "adamw") == 0;
    c->fenced = strcmp(commit, "fenced") == 0;
    c->folded = strcmp(commit, "folded") == 0;
    c->deterministic = deterministic;
    c->replay = replay;
    c->groups = groups;
    return n == (int)n_words - 1 ? relay_open(&trace->relay, c) : -EINVAL;
}

static int parse_open(struct relay_trace *trace, char **words, unsigned n_words, struct relay_event *e)
{
    if (n_words < 5)
        return -EINVAL;
    e->visits = trace->visits, e->n_visits = list(trace->visits, words[2]);
    e->frozen = trace->frozen, e->n_frozen = list(trace->frozen, words[3]);
    e->owners = trace->owners, e->n_owners = list(trace->owners, words[4]);
    e->n_slices = trace->slices;
    for (uint32_t v = 0; v < e->n_visits; v++)
        trace->slices[v] = trace->n_slices;
    e->audits = n_words > 6;
    if (e->audits && sscanf(words[6], "%u:%u", &e->audited, &e->worker) != 2)
        return -EINVAL;
    return n_words > 5 && is_number(words[5]) && list(trace->slices, words[5]) != e->n_visits ? -EINVAL : 0;
}

static int parse(struct relay_trace *trace, char **words, unsigned n_words, struct relay_event *e)
{
    struct numbers x = {{0}};
    int kind = 0;
    while (kind < COUNT(event_forms) && strcmp(words[0], event_forms[kind].word) != 0)
        kind++;
    if (kind == COUNT(event_forms) || n_words <= strlen(event_forms[kind].letters))
        return -EINVAL;
    for (const char *letter = event_forms[kind].letters; *letter; letter++) {
        const char *word = words[1 + (letter - event_forms[kind].letters)];
        x.of[(int)*letter] = *letter == 'r' ? reader_number(word) : strtoll(word, NULL, 10);
    }
    *e = (struct relay_event){.kind = (enum relay_event_kind)kind,
                              .worker = (uint32_t)x.of['w'],
                              .unit = (uint32_t)x.of['u'],
                              .slot = (uint32_t)x.of['k'],
                              .reader = (uint32_t)x.of['r'],
                              .room = (uint32_t)x.of['n'],
                              .step = (uint64_t)x.of['t'],
                              .name = {.step = (uint64_t)x.of['t'],
                                       .visit = (uint32_t)x.of['v'],
                                       .part = (uint32_t)x.of['p'],
                                       .slice = (uint32_t)x.of['c'],
                                       .attempt = (uint32_t)x.of['a']},
                              .digest = (uint64_t)x.of['d'],
                              .ok = strcmp(words[n_words - 1], "ok") == 0,
                              .damaged = strcmp(words[n_words - 1], "damaged") == 0};
    if (e->kind == RELAY_CONTRIBUTION)
        e->digest = n_words > 8 ? strtoull(words[8], NULL, 10) : 0;
    if (e->kind == RELAY_ATTACHED)
        e->room = n_words > 2 ? (uint32_t)strtoul(words[2], NULL, 10) : UINT32_MAX;
    return e->kind == RELAY_OPEN ? parse_open(trace, words, n_words, e) : 0;
}

static void print_action(FILE *out, const struct relay_action *a)
{
    const struct numbers x = {.of = {['w'] = a->worker,
                                     ['u'] = a->unit,
                                     ['k'] = a->slot,
                                     ['o'] = a->other,
                                     ['t'] = (int64_t)a->step,
                                     ['v'] = a->name.visit,
                                     ['p'] = a->name.part,
                                     ['c'] = a->name.slice}};
    fprintf(out, "  %s", a->is_void ? "void" : action_forms[a->kind].word);
    for (const char *letter = action_forms[a->kind].letters; *letter; letter++)
        if (*letter == 'r')
            print_reader(out, a->reader);
        else
            fprintf(out, " %lld", (long long)x.of[(int)*letter]);
    for (uint32_t i = 0; a->kind == RELAY_SHARE && i < a->n_parts; i++)
        fprintf(out, " %u:%u", a->parts[i].part, a->parts[i].attempt);
    if (a->kind == RELAY_ANSWER && !a->is_void)
        fputs(a->before ? " before" : " now", out);
    if (a->kind == RELAY_FOLD)
        fputs(a->first ? " first" : " next", out);
    if (a->kind == RELAY_REFUSE && a->to_client)
        fputs(" client", out);
    else if (a->kind == RELAY_REFUSE)
        print_reader(out, a->to_reader ? a->reader : a->worker);
    for (const char *c = a->kind == RELAY_REFUSE ? a->why : "", *first = c; *c; c++)
        fprintf(out, "%s%c", c == first ? " " : "", *c == ' ' ? '_' : *c);
    fputc('\n', out);
}

int relay_trace_feed(struct relay_trace *trace, const char *line, FILE *out)
{
    char text[RELAY_TRACE_BYTES], *words[MAX_WORDS], *rest = NULL;
    unsigned n_words = 0;
    struct relay_event e;
    const struct relay_action *list = NULL;
    if (strlen(line) >= sizeof text)
        return -EINVAL;
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
        print_action(out, &list[i]);
    return n < 0 ? n : 0;
}

const char *relay_trace_say(struct relay_trace *trace, const char *format, ...)
{
    char line[100];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (!trace->out)
        trace->out = fmemopen(trace->said, sizeof trace->said - 1, "w");
    FILE *out = trace->out;
    rewind(out);
    ck_assert_msg(relay_trace_feed(trace, line, out) == 0, "%s", line);
    fflush(out);
    trace->said[ftell(out)] = '\0';
    return trace->said;
}
