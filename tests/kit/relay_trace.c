#include "tests/kit/relay_trace.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 12, LINE_BYTES = 4096 };

struct line {
    char text[LINE_BYTES];
    char *words[MAX_WORDS];
    unsigned n_words;
};

static const char *const event_words[] = {"attached",     "lost",   "open",    "pull", "loss",
                                          "contribution", "folded", "updated", "save", "released"};

static int split(struct line *line, const char *text)
{
    char *rest = NULL;
    if (strlen(text) >= sizeof line->text)
        return -EINVAL;
    strcpy(line->text, text);
    line->n_words = 0;
    for (char *w = strtok_r(line->text, " \n", &rest); w; w = strtok_r(NULL, " \n", &rest)) {
        if (line->n_words == MAX_WORDS)
            return -EINVAL;
        line->words[line->n_words++] = w;
    }
    return line->n_words ? 0 : -EINVAL;
}

static bool is_number(const char *word)
{
    return isdigit((unsigned char)word[word[0] == '-']) != 0;
}

static uint32_t number(const char *word)
{
    return (uint32_t)strtoll(word, NULL, 10);
}

static uint32_t list(uint32_t *out, const char *word)
{
    uint32_t n = 0;
    char *end = NULL;
    for (; is_number(word) && n < TRACE_LIST; word = end + 1) {
        out[n++] = (uint32_t)strtoul(word, &end, 10);
        if (*end != ',')
            break;
    }
    return n;
}

static uint32_t reader_number(struct relay_trace *trace, const char *word)
{
    if (is_number(word))
        return number(word);
    uint32_t i = 0;
    while (i < TRACE_READERS - 1 && trace->readers[i][0] && strcmp(trace->readers[i], word) != 0)
        i++;
    snprintf(trace->readers[i], TRACE_NAME_BYTES, "%s", word);
    return i;
}

static int open_relay(struct relay_trace *trace, const struct line *line)
{
    relay_trace_free(trace);
    for (unsigned i = 1; i < line->n_words; i++) {
        char *value = strchr(line->words[i], '=');
        if (!value)
            return -EINVAL;
        *value++ = 0;
        const char *key = line->words[i];
        struct relay_config *c = &trace->config;
        if (!strcmp(key, "parts"))
            c->n_parts = number(value);
        else if (!strcmp(key, "slices"))
            trace->n_slices = number(value);
        else if (!strcmp(key, "slots"))
            c->n_slots = number(value);
        else if (!strcmp(key, "accumulators"))
            c->n_accumulators = number(value);
        else if (!strcmp(key, "optimizer"))
            c->adamw = !strcmp(value, "adamw");
        else if (!strcmp(key, "commit"))
            c->fenced = !strcmp(value, "fenced");
        else if (!strcmp(key, "deterministic"))
            c->deterministic = number(value) != 0;
        else if (!strcmp(key, "replay"))
            c->replay = number(value) != 0;
        else
            return -EINVAL;
    }
    return relay_open(&trace->relay, &trace->config);
}

static int parse_open(struct relay_trace *trace, const struct line *line, struct relay_event *e)
{
    if (line->n_words < 5)
        return -EINVAL;
    e->visits = trace->visits;
    e->n_visits = list(trace->visits, line->words[2]);
    e->frozen = trace->frozen;
    e->n_frozen = list(trace->frozen, line->words[3]);
    e->owners = trace->owners;
    e->n_owners = list(trace->owners, line->words[4]);
    e->n_slices = trace->slices;
    for (uint32_t v = 0; v < e->n_visits; v++)
        trace->slices[v] = trace->n_slices;
    if (line->n_words > 5 && list(trace->slices, line->words[5]) != e->n_visits)
        return -EINVAL;
    return 0;
}

static int parse(struct relay_trace *trace, const struct line *line, struct relay_event *e)
{
    /* Words that an event has behind its own: numbers as far as they go. */
    static const unsigned n_words[] = {2, 2, 5, 4, 6, 8, 4, 2, 2, 3};
    unsigned kind = 0;
    while (kind < sizeof n_words / sizeof *n_words && strcmp(line->words[0], event_words[kind]) != 0)
        kind++;
    if (kind == sizeof n_words / sizeof *n_words || line->n_words < n_words[kind])
        return -EINVAL;
    char *const *w = line->words;
    bool ok = !strcmp(w[line->n_words - 1], "ok");
    uint64_t step = line->n_words > 2 ? (uint64_t)strtoll(w[2], NULL, 10) : 0;
    *e = (struct relay_event){.kind = (enum relay_event_kind)kind, .ok = ok};
    switch (e->kind) {
    case RELAY_ATTACHED:
    case RELAY_LOST:
        e->worker = number(w[1]);
        break;
    case RELAY_OPEN:
        e->step = (uint64_t)strtoll(w[1], NULL, 10);
        return parse_open(trace, line, e);
    case RELAY_PULL:
        e->worker = number(w[1]), e->step = step, e->unit = number(w[3]);
        break;
    case RELAY_LOSS:
        e->worker = number(w[1]), e->name.step = step, e->name.part = number(w[3]), e->name.attempt = number(w[4]);
        break;
    case RELAY_CONTRIBUTION:
        e->worker = number(w[1]), e->name.step = step, e->name.visit = number(w[3]), e->name.part = number(w[4]);
        e->name.slice = number(w[5]), e->name.attempt = number(w[6]), e->slot = number(w[7]);
        break;
    case RELAY_FOLDED:
        e->unit = number(w[1]), e->name.slice = number(w[2]);
        break;
    case RELAY_UPDATED:
        e->unit = number(w[1]);
        break;
    case RELAY_SAVE:
        e->reader = reader_number(trace, w[1]);
        break;
    case RELAY_RELEASED:
        e->reader = reader_number(trace, w[1]), e->unit = number(w[2]);
        break;
    }
    return 0;
}

int relay_trace_feed(struct relay_trace *trace, const char *text, FILE *out)
{
    struct line line;
    struct relay_event e;
    const struct relay_action *actions = NULL;
    int rc = split(&line, text);
    if (!rc && !strcmp(line.words[0], "config"))
        return open_relay(trace, &line);
    if (!rc)
        rc = trace->relay ? parse(trace, &line, &e) : -EINVAL;
    if (rc)
        return rc;
    int n = relay_feed(trace->relay, &e, &actions);
    for (int i = 0; i < n; i++)
        relay_trace_action(out, trace, &actions[i]);
    return n < 0 ? n : 0;
}

void relay_trace_free(struct relay_trace *trace)
{
    relay_close(trace->relay);
    *trace = (struct relay_trace){0};
}

void relay_trace_config(FILE *out, const struct relay_config *c, uint32_t n_slices)
{
    fprintf(out,
            "config parts=%u slices=%u slots=%u accumulators=%u optimizer=%s commit=%s deterministic=%d replay=%d\n",
            c->n_parts, n_slices, c->n_slots, c->n_accumulators, c->adamw ? "adamw" : "adama",
            c->fenced ? "fenced" : "eager", c->deterministic, c->replay);
}

static void print_list(FILE *out, const uint32_t *x, uint32_t n)
{
    if (!n)
        fputs(" -", out);
    for (uint32_t i = 0; i < n; i++)
        fprintf(out, "%c%u", i ? ',' : ' ', x[i]);
}

void relay_trace_event(FILE *out, const struct relay_event *e)
{
    long long step = (long long)e->step;
    fputs(event_words[e->kind], out);
    switch (e->kind) {
    case RELAY_ATTACHED:
    case RELAY_LOST:
        fprintf(out, " %u", e->worker);
        break;
    case RELAY_OPEN:
        fprintf(out, " %lld", step);
        print_list(out, e->visits, e->n_visits);
        print_list(out, e->frozen, e->n_frozen);
        print_list(out, e->owners, e->n_owners);
        print_list(out, e->n_slices, e->n_visits);
        break;
    case RELAY_PULL:
        fprintf(out, " %u %lld %u", e->worker, step, e->unit);
        break;
    case RELAY_LOSS:
        fprintf(out, " %u %lld %u %u %s", e->worker, (long long)e->name.step, e->name.part, e->name.attempt,
                e->ok ? "ok" : "bad");
        break;
    case RELAY_CONTRIBUTION:
        fprintf(out, " %u %lld %u %u %u %u %u", e->worker, (long long)e->name.step, e->name.visit, e->name.part,
                e->name.slice, e->name.attempt, e->slot);
        break;
    case RELAY_FOLDED:
        fprintf(out, " %u %u %s", e->unit, e->name.slice, e->ok ? "ok" : "bad");
        break;
    case RELAY_UPDATED:
        fprintf(out, " %u", e->unit);
        break;
    case RELAY_SAVE:
        fprintf(out, " %u", e->reader);
        break;
    case RELAY_RELEASED:
        fprintf(out, " %u %u", e->reader, e->unit);
        break;
    }
    fputc('\n', out);
}

static void print_refusal(FILE *out, const struct relay_action *a, const char *reader)
{
    if (a->to_client)
        fputs("refuse client ", out);
    else if (a->to_reader)
        fprintf(out, "refuse %s ", reader);
    else
        fprintf(out, "refuse %u ", a->worker);
    for (const char *c = a->why; *c; c++)
        fputc(*c == ' ' ? '_' : *c, out);
    fputc('\n', out);
}

void relay_trace_action(FILE *out, const struct relay_trace *trace, const struct relay_action *a)
{
    long long step = (long long)a->step;
    char reader[TRACE_NAME_BYTES];
    bool named = trace && a->reader < TRACE_READERS && trace->readers[a->reader][0];
    snprintf(reader, sizeof reader, "%u", a->reader);
    if (named)
        snprintf(reader, sizeof reader, "%s", trace->readers[a->reader]);
    fputs("  ", out);
    switch (a->kind) {
    case RELAY_SHARE:
        fprintf(out, "share %u %lld", a->worker, step);
        for (uint32_t i = 0; i < a->n_parts; i++)
            fprintf(out, " %u:%u", a->parts[i].part, a->parts[i].attempt);
        fputc('\n', out);
        break;
    case RELAY_ANSWER:
        fprintf(out, "answer %u %u %lld %s\n", a->worker, a->unit, step, a->before ? "before" : "now");
        break;
    case RELAY_REFUSE:
        print_refusal(out, a, reader);
        break;
    case RELAY_FOLD:
        fprintf(out, "fold %u %u %u %u %u %u %s\n", a->unit, a->name.visit, a->name.part, a->name.slice, a->worker,
                a->slot, a->first ? "first" : "next");
        break;
    case RELAY_UPDATE:
        fprintf(out, "update %u\n", a->unit);
        break;
    case RELAY_FREE:
        fprintf(out, "free %u %u %u %u %u\n", a->worker, a->slot, a->name.visit, a->name.part, a->name.slice);
        break;
    case RELAY_GRANT:
        fprintf(out, "grant %u %u %u %u\n", a->worker, a->name.visit, a->name.part, a->name.slice);
        break;
    case RELAY_COVERED:
        fprintf(out, "covered %lld\n", step);
        break;
    case RELAY_SKIPPED:
        fprintf(out, "skipped %lld\n", step);
        break;
    case RELAY_DONE:
        fprintf(out, "done %lld\n", step);
        break;
    case RELAY_TORN:
        fprintf(out, "torn %lld\n", step);
        break;
    case RELAY_CAPTURE:
        fprintf(out, "capture %s %u %lld\n", reader, a->unit, step);
        break;
    case RELAY_SAVED:
        fprintf(out, "saved %s %lld\n", reader, step);
        break;
    case RELAY_ABANDON:
        fprintf(out, "abandon %s\n", reader);
        break;
    }
}
