/* tools/arguments.h - a command line, from one table: names, kinds, where values go, and what --help says.
 *
 * Options are --name VALUE or --name=VALUE. Whatever is wrong is one sentence on stderr that names the option, the
 * value and what is accepted; the exit status is then 2. */
#ifndef TOOLS_ARGUMENTS_H
#define TOOLS_ARGUMENTS_H

#include <stddef.h>

enum argument_kind {
    ARGUMENT_FLAG,       /* bool */
    ARGUMENT_TEXT,       /* const char * */
    ARGUMENT_TEXTS,      /* struct argument_texts: one or more words, up to the next option */
    ARGUMENT_COUNT,      /* uint32_t, at least 1 */
    ARGUMENT_LONG,       /* uint64_t, at least 1 */
    ARGUMENT_NUMBER,     /* uint64_t, 0 too */
    ARGUMENT_REAL,       /* double */
    ARGUMENT_PAIR,       /* double[2], as in 0.9,0.999 */
    ARGUMENT_BYTES,      /* uint64_t, as in 2GiB or 2G */
    ARGUMENT_CHOICE,     /* unsigned: which of the words in `value`, which stand between bars; 1 is the first, so that 0
                            can stand for none given, as in the enumerations of client/eps.h */
    ARGUMENT_PERIOD,     /* double, seconds; 1 if no number follows */
    ARGUMENT_MAYBE,      /* const char *; "-" if no word follows */
    ARGUMENT_AUTO,       /* uint32_t, at least 1, or the word auto: 0 */
    ARGUMENT_POSITIONAL, /* const char *: a word that belongs to no option */
    ARGUMENT_HEADING     /* nothing to give: a line above the arguments that follow, in the help */
};

struct argument_texts {
    const char **items; /* (n), owned: free */
    size_t n;
};

struct argument {
    const char *name;  /* "--batch"; a heading's text, as in {"Model and data", .kind = ARGUMENT_HEADING} */
    const char *value; /* in the help: "N"; NULL for a flag */
    enum argument_kind kind;
    void *target;
    const char *help; /* a sentence or more, broken to the width of the terminal; newlines break too */
};

struct command {
    const char *name;    /* "eps train" */
    const char *summary; /* what it does, a paragraph, broken in the same way */
    const struct argument *arguments;
    size_t n_arguments;
};

/* Returns -1 to go on, or the status to exit with: 0 after --help, 2 after a mistake. */
int arguments_parse(const struct command *command, int argc, char **argv);

/* "eps train: SENTENCE" on stderr, broken to the width of a terminal, one line in a pipe; returns the exit status for what libeps returned: 2 for -EDOM, else 1. */
int arguments_fail(const struct command *command, int rc, const char *sentence);

#endif
