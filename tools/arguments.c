/* One table describes a command, for --help, parsing and hints alike. Functions that parse return -1 to go on, or the
 * exit status; so every failure has printed its sentence where the bad value is known, and callers only pass the status
 * on. Texts are borrowed from argv. Numbers are range-checked here, but what fits together is libeps's to say. */
#include "tools/arguments.h"

#include "client/eps.h"
#include "tools/help.h"
#include "tools/screen/terminal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MISUSE = 2 };

char *arguments_join(const struct argument_texts *texts, int *rc)
{
    size_t n = 0;

    *rc = 0;
    if (texts->n == 0)
        return NULL;
    for (size_t i = 0; i < texts->n; i++)
        n += strlen(texts->items[i]) + 1;
    char *const joined = malloc(n), *at = joined;
    *rc = joined ? 0 : -ENOMEM;
    for (size_t i = 0; joined && i < texts->n; i++)
        at += sprintf(at, "%s%s", i ? "," : "", texts->items[i]);
    return joined;
}

const char *arguments_options(char out[OPTIONS_TEXT], const char *sentence)
{
    snprintf(out, OPTIONS_TEXT, "%s", sentence);
    for (char *at = strchr(out, '`'); at; at = strchr(at + 1, '`')) {
        const size_t n = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz_");
        if (n == 0 || at[n + 1] != '`')
            continue;
        for (size_t i = n; i > 0; i--)
            at[i + 1] = at[i] == '_' ? '-' : at[i];
        at[0] = at[1] = '-';
        at += n + 1;
    }
    return out;
}

int arguments_fail(const struct command *command, int rc, const char *sentence)
{
    const size_t at = strlen(command->name) + 2;
    char text[OPTIONS_TEXT];

    fprintf(stderr, "%s%s:%s ", terminal_style(stderr, TERMINAL_RED), command->name,
            terminal_style(stderr, TERMINAL_PLAIN));
    terminal_wrap(stderr, arguments_options(text, sentence), at, at, terminal_columns(stderr));
    fputc('\n', stderr);
    return rc == -EDOM ? MISUSE : 1;
}

static int __attribute__((format(printf, 2, 3)))
arguments_misuse(const struct command *command, const char *format, ...)
{
    char sentence[600];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return arguments_fail(command, -EDOM, sentence);
}

const struct argument_letter argument_letters[] = {{"-m", "--model"},
                                                   {"-p", "--prompt"},
                                                   {"-n", "--tokens"},
                                                   {"-v", "--verbose"}};

/* Finds the option of this name (n bytes). */
static const struct argument *arguments_look_up(const struct command *command, const char *name, size_t n)
{
    for (size_t i = 0; i < command->n_arguments; i++) {
        const struct argument *a = &command->arguments[i];
        if (a->name[0] == '-' && a->kind != ARGUMENT_USUAL && strlen(a->name) == n && memcmp(a->name, name, n) == 0)
            return a;
    }
    return NULL;
}

const struct argument *arguments_named(const struct command *command, const char *name)
{
    return arguments_look_up(command, name, strlen(name));
}

static int parse_whole(const struct command *command, const struct argument *a, const char *text, uint64_t least,
                       uint64_t most, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && *out >= least && *out <= most)
        return -1;
    if (most == UINT64_MAX)
        return arguments_misuse(command, "%s '%.80s': a whole number of at least %" PRIu64 " is needed%s", a->name,
                                text, least, a->kind == ARGUMENT_AUTO ? ", or auto" : "");
    return arguments_misuse(command, "%s '%.80s': a whole number from %" PRIu64 " to %" PRIu64 "%s is needed", a->name,
                            text, least, most, a->kind == ARGUMENT_AUTO ? ", or auto," : "");
}

static int parse_count(const struct command *command, const struct argument *a, const char *text, uint32_t most)
{
    uint64_t value;
    int status = parse_whole(command, a, text, 1, most, &value);

    if (status < 0)
        *(uint32_t *)a->target = (uint32_t)value;
    return status;
}

/* Parses a number at text; *end is what follows. NaN is refused, as libeps takes it for unset. */
static bool parse_real(const char *text, char **end, double *out)
{
    *out = strtod(text, end);
    return *end > text && *text > ' ' && !isnan(*out);
}

static bool is_number(const char *text)
{
    char *end;
    double number;

    return parse_real(text, &end, &number) && !*end;
}

static int parse_pair(const struct command *command, const struct argument *a, const char *text)
{
    double *out = a->target;
    char *end;

    if (parse_real(text, &end, &out[0]) && *end == ',' && parse_real(end + 1, &end, &out[1]) && !*end)
        return -1;
    return arguments_misuse(command, "%s '%.80s': two numbers with a comma between are needed, as in 0.9,0.999",
                            a->name, text);
}

static int parse_period(const struct command *command, const struct argument *a, const char *text)
{
    double *out = a->target;
    char *end;

    if (parse_real(text, &end, out) && !*end && *out >= 0.1 && *out <= 86400)
        return -1;
    return arguments_misuse(command, "%s '%.80s': seconds from 0.1 to 86400 are needed, or nothing, for 1", a->name,
                            text);
}

/* The words are those of --help. Their number is the value, from 1, as libeps's enums have their default at 0. */
static int parse_choice(const struct command *command, const struct argument *a, const char *text)
{
    const size_t n = strlen(text);
    const char *word = a->value;

    for (unsigned i = 1;; i++) {
        const size_t length = strcspn(word, "|");
        if (n == length && memcmp(word, text, n) == 0) {
            *(unsigned *)a->target = i;
            return -1;
        }
        if (!word[length])
            return arguments_misuse(command, "%s '%.80s': %s is needed", a->name, text, a->value);
        word += length + 1;
    }
}

static int parse_value(const struct command *command, const struct argument *a, const char *text)
{
    struct eps_error error;
    uint64_t number;
    char *end;
    int status;

    switch (a->kind) {
    case ARGUMENT_TEXT:
    case ARGUMENT_MAYBE:
    case ARGUMENT_POSITIONAL:
        *(const char **)a->target = text;
        return *text ? -1 : arguments_misuse(command, "%s is empty", a->name);
    case ARGUMENT_TEXTS:
    case ARGUMENT_WORDS:
    case ARGUMENT_EACH: {
        struct argument_texts *texts = a->target;
        texts->items[texts->n++] = text;
        return *text ? -1 : arguments_misuse(command, "%s is empty", a->name);
    }
    case ARGUMENT_COUNT:
        return parse_count(command, a, text, UINT32_MAX);
    case ARGUMENT_UP:
        return parse_count(command, a, text, EPS_UP_WORKERS);
    case ARGUMENT_AUTO:
        *(uint32_t *)a->target = 0;
        return strcmp(text, "auto") == 0 ? -1 : parse_count(command, a, text, UINT32_MAX);
    case ARGUMENT_LONG:
        return parse_whole(command, a, text, 1, UINT64_MAX, a->target);
    case ARGUMENT_NUMBER:
        return parse_whole(command, a, text, 0, UINT64_MAX - 1, a->target); /* the largest: unset */
    case ARGUMENT_NUMBER_32:
        status = parse_whole(command, a, text, 0, UINT32_MAX - 1, &number);
        if (status < 0)
            *(uint32_t *)a->target = (uint32_t)number;
        return status;
    case ARGUMENT_REAL:
        if (parse_real(text, &end, a->target) && !*end)
            return -1;
        return arguments_misuse(command, "%s '%.80s': a number is needed", a->name, text);
    case ARGUMENT_PAIR:
        return parse_pair(command, a, text);
    case ARGUMENT_BYTES:
        if (eps_parse_bytes(a->target, a->name, text, &error) == 0)
            return -1;
        return arguments_misuse(command, "%s", error.text);
    case ARGUMENT_PERIOD:
        return parse_period(command, a, text);
    case ARGUMENT_CHOICE:
        return parse_choice(command, a, text);
    case ARGUMENT_FLAG:
    case ARGUMENT_HEADING:
    case ARGUMENT_EXAMPLE:
    case ARGUMENT_USUAL:
        break;
    }
    return arguments_misuse(command, "%s takes no value", a->name);
}

/* Finds the argument named by `word`, or by its letter; a name ends at '=' if there is one. */
static const struct argument *arguments_find(const struct command *command, const char *word)
{
    for (size_t i = 0; i < ARGUMENT_LETTERS; i++)
        if (strcmp(word, argument_letters[i].letter) == 0)
            return arguments_named(command, argument_letters[i].name);
    return arguments_look_up(command, word, strcspn(word, "="));
}

/* True if no value of several can be this word: an option begins. */
static bool begins_option(const struct command *command, const char *word)
{
    return strncmp(word, "--", 2) == 0 || (word[0] == '-' && arguments_find(command, word));
}

/* Makes room for n more words. */
static int arguments_reserve(const struct command *command, struct argument_texts *texts, size_t n)
{
    const char **items = realloc(texts->items, (texts->n + n) * sizeof *items);

    if (!items)
        return arguments_fail(command, -ENOMEM, "out of memory");
    texts->items = items;
    return -1;
}

/* Parses the option at argv[*at] and its values, and advances *at past them. The next word is its value, even if it
 * begins with a single "-": a negative number does. */
static int parse_option(const struct command *command, const struct argument *a, int argc, char **argv, int *at)
{
    const char *equals = strchr(argv[*at], '=');
    int status;

    ++*at;
    if (a->kind == ARGUMENT_FLAG) {
        *(bool *)a->target = true;
        return equals ? arguments_misuse(command, "%s takes no value", a->name) : -1;
    }
    if (a->kind == ARGUMENT_PERIOD && !equals && (*at == argc || !is_number(argv[*at]))) {
        *(double *)a->target = 1;
        return -1;
    }
    if (a->kind == ARGUMENT_MAYBE && !equals && (*at == argc || begins_option(command, argv[*at]))) {
        *(const char **)a->target = "-";
        return -1;
    }
    if ((a->kind == ARGUMENT_TEXTS || a->kind == ARGUMENT_EACH) &&
        (status = arguments_reserve(command, a->target, (size_t)argc)) >= 0)
        return status;
    if (equals)
        return parse_value(command, a, equals + 1);
    if (*at == argc || begins_option(command, argv[*at]))
        return arguments_misuse(command, "%s needs a value: %s %s", a->name, a->name, a->value);
    do {
        status = parse_value(command, a, argv[(*at)++]);
    } while (status < 0 && a->kind == ARGUMENT_TEXTS && *at < argc && !begins_option(command, argv[*at]));
    return status;
}

/* Positional arguments are taken in the order of the table; WORDS takes all that are left. */
static int parse_word(const struct command *command, const char *word, size_t *next)
{
    for (; *next < command->n_arguments; ++*next) {
        const struct argument *a = &command->arguments[*next];
        const int status = a->kind == ARGUMENT_WORDS ? arguments_reserve(command, a->target, 1) : -1;
        if (a->kind == ARGUMENT_WORDS)
            return status < 0 ? parse_value(command, a, word) : status;
        if (a->kind == ARGUMENT_POSITIONAL) {
            ++*next;
            return parse_value(command, a, word);
        }
    }
    return arguments_misuse(command, "'%.80s' is not expected: see %s --help", word, command->name);
}

static int unknown(const struct command *command, const char *option)
{
    char sentence[600];

    hint_option(sentence, sizeof sentence, command, option);
    return arguments_fail(command, -EDOM, sentence);
}

int arguments_parse(const struct command *command, int argc, char **argv)
{
    size_t next = 0; /* positional arguments so far */
    int status = -1;

    for (int at = 1; at < argc && status < 0;) {
        const struct argument *a = arguments_find(command, argv[at]);
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            help_print(command, at + 1 < argc ? argv[at + 1] : NULL);
            return 0;
        }
        if (a)
            status = parse_option(command, a, argc, argv, &at);
        else if (argv[at][0] == '-' && argv[at][1])
            status = unknown(command, argv[at]);
        else
            status = parse_word(command, argv[at++], &next);
    }
    return status;
}
