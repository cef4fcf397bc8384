/* tools/commands.h - the subcommands of eps, one file each, and what they share: signals, a request, JSON. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include "client/eps.h"

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>

/* Each returns its exit status. */
int command_train(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_pull(int argc, char **argv);
int command_models(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_eval(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_data(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_report(int argc, char **argv);
int command_export(int argc, char **argv);
int command_reshape(int argc, char **argv);
int command_up(int argc, char **argv);
int command_status(int argc, char **argv);
int command_mem(int argc, char **argv);
int command_top(int argc, char **argv);
int command_save(int argc, char **argv);
int command_stop(int argc, char **argv);
int command_drain(int argc, char **argv);

/* ---- Signals that end a command: the first lets a run save, the second ends it at once ----
 *
 * The signals are blocked and polled, so there is no handler and no bad moment. SIGHUP (the terminal was closed; a
 * shell may send it twice) and SIGPIPE (nobody reads the output) only ever count as a first signal. A signal that was
 * ignored at start, as under nohup, stays ignored. */

struct stopping {
    sigset_t signals;
    int level; /* 0: continue, 1: save and end, 2: end at once */
    int first; /* the first signal's number; 0: none */
    int borne; /* levels that do not end a wait: stopping_should_stop */
};

void stopping_init(struct stopping *stopping);

/* Polls for signals; returns level. */
int stopping_observer(struct stopping *stopping);

/* As a callback of libeps: returns how far the level exceeds `borne`. user is a struct stopping. */
int stopping_should_stop(void *user);

/* Exit status of a failed command: 128 plus the first signal's number, or else `status`. */
int stopping_status(struct stopping *stopping, int status);

/* ---- eps save and eps stop: one request to one daemon, and the wait for its result ---- */

struct asked {
    uint32_t job; /* 0: none is named */
    bool json;
    struct stopping *stopping;
};

struct request {
    const char *name, *text; /* as in struct command */
    const char *json;        /* describes its JSON object in --help */
    /* Requests, waits and prints; returns libeps's code. */
    int (*ask)(struct eps_observer *observer, const struct asked *asked, struct eps_error *error);
    bool takes_job; /* ADDRESS may be followed by the number of a job */
    bool ends;      /* a daemon that ends while the command attaches has done what was requested */
};

/* Runs such a command. Returns the exit status: 130 after Ctrl-C. */
int request_command(int argc, char **argv, const struct request *request);

/* ---- A model's text on stdout ---- */

struct printed {
    bool terminal; /* stdout is one */
    char last;     /* last character printed; 0: none */
    int error;     /* errno of stdout, or 0 */
};

/* From here on a reader that closes its pipe is an error of stdout, and no signal. Call it before stopping_init. */
void printed_init(struct printed *printed);

void printed_put(struct printed *printed, const char *bytes, size_t n);

/* Prints UTF-8. On a terminal, control characters (single bytes and U+0080 to U+009F) become U+FFFD, so that no text
 * acts as a terminal command. */
void printed_text(struct printed *printed, const char *text, size_t n);

void printed_flush(struct printed *printed);

/* Exit status after an error of stdout (errno), which `name` reports unless the reader has closed the pipe. */
int output_status(const char *name, int error);

/* ---- A growing text ---- */

struct text {
    char *bytes; /* (n of cap, then 0), owned: free. NULL: nothing was added yet */
    size_t n, cap;
};

/* -ENOMEM: text is unchanged. */
int text_add(struct text *text, const char *bytes, size_t n);

/* ---- --json ---- */

/* Prints an object or a list on stdout and releases the caller's reference. NULL, which could not be made, ends the
 * program with a sentence and status 1. */
void answer_print(json_t *answer);
/* Writes a value as jansson does with these flags, but each real with the fewest digits that read back. */
void answer_write(FILE *out, const json_t *value, size_t flags);

#endif
