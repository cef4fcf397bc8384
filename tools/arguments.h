/* tools/arguments.h - parses a command line and prints --help, from one table of names, kinds and values.
 *
 * Options are --name VALUE or --name=VALUE; -m, -p, -n and -v are --model, --prompt, --tokens and --verbose, where a
 * command has them. An error is one sentence on stderr that names the option, the value and what is accepted; the exit
 * status is then 2. */
#ifndef TOOLS_ARGUMENTS_H
#define TOOLS_ARGUMENTS_H

#include <stddef.h>

enum argument_kind {
    ARGUMENT_FLAG,      /* bool */
    ARGUMENT_TEXT,      /* const char * */
    ARGUMENT_TEXTS,     /* struct argument_texts: one or more words up to the next option */
    ARGUMENT_EACH,      /* struct argument_texts: one word each time the option is given */
    ARGUMENT_COUNT,     /* uint32_t, at least 1 */
    ARGUMENT_UP,        /* uint32_t, 1 to EPS_UP_WORKERS */
    ARGUMENT_LONG,      /* uint64_t, at least 1 */
    ARGUMENT_NUMBER,    /* uint64_t, from 0 to UINT64_MAX - 1 */
    ARGUMENT_NUMBER_32, /* uint32_t, from 0 to UINT32_MAX - 1 */
    ARGUMENT_REAL,      /* double */
    ARGUMENT_PAIR,      /* double[2], as in 0.9,0.999 */
    ARGUMENT_BYTES,     /* uint64_t, as in 2GiB or 2G */
    /* unsigned: index of the word among those in `value`, which bars separate. 1 is the first; 0 means unset, as in the
     * enumerations of client/eps.h. */
    ARGUMENT_CHOICE,
    ARGUMENT_PERIOD,     /* double, seconds; 1 if no number follows */
    ARGUMENT_MAYBE,      /* const char *; "-" if no word follows */
    ARGUMENT_AUTO,       /* uint32_t, at least 1; the word auto: 0 */
    ARGUMENT_POSITIONAL, /* const char *: a word without an option */
    ARGUMENT_WORDS,      /* struct argument_texts: all words without an option */
    ARGUMENT_HEADING,    /* no value: a heading above the arguments that follow, in the help */
    ARGUMENT_EXAMPLE,    /* no value: a command line of the short help (tools/help.h) */
    ARGUMENT_USUAL       /* no value: the option of this name, as the short help explains it */
};

struct argument_texts {
    const char **items; /* (n), owned: free */
    size_t n;
};

struct argument {
    const char *name;  /* "--batch"; a heading or an example is a text: {"Model and data", .kind = ...} */
    const char *value; /* in the help: "N"; NULL for a flag */
    enum argument_kind kind;
    void *target;
    const char *help; /* one or more sentences, wrapped to the terminal's width; newlines are kept */
};

struct command {
    const char *name;    /* "eps train" */
    const char *summary; /* a paragraph on what the command does, wrapped in the same way */
    const struct argument *arguments;
    size_t n_arguments;
};

/* An option's name as a letter, wherever a command has that option. */
enum { ARGUMENT_LETTERS = 4 };
extern const struct argument_letter {
    const char *letter, *name; /* "-m", "--model" */
} argument_letters[ARGUMENT_LETTERS];

/* Finds the option of this name, "--batch"; NULL: the command has none. */
const struct argument *arguments_named(const struct command *command, const char *name);

/* Returns -1 to continue, or an exit status: 0 after --help, 2 after an error, 1 without memory. */
int arguments_parse(const struct command *command, int argc, char **argv);

/* The words, separated by commas. Owned: free. NULL: there are none, or no memory (*rc -ENOMEM, else 0). */
char *arguments_join(const struct argument_texts *texts, int *rc);

/* Formats a sentence of libeps, which names the members of its structs, with the options of those names: `device_mem`
 * becomes --device-mem. Returns out. */
enum { OPTIONS_TEXT = 700 };
const char *arguments_options(char out[OPTIONS_TEXT], const char *sentence);

/* Prints "eps train: SENTENCE" on stderr, wrapped on a terminal, as one line in a pipe. Returns the exit status for
 * libeps's code: 2 for -EDOM, else 1. */
int arguments_fail(const struct command *command, int rc, const char *sentence);

/* In hint.c. The sentence for an option unknown to `command`; the option ends at '=' if there is one. Suggests our name
 * for an option of other programs, or the correct spelling. */
void hint_option(char *out, size_t cap, const struct command *command, const char *option);

#endif
