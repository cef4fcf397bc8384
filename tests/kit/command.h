/* tests/kit/command.h - commands as a user types them, and what they say. For tests with tests/kit/processes.h, in
 * whose directory they run. Everything asserts. */
#ifndef TESTS_KIT_COMMAND_H
#define TESTS_KIT_COMMAND_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Runs a line of the shell, where our programs are found by their names; stdout goes to the file out, stderr to err. It
 * exits with this status, and each of the texts that follow is part of its stdout; of its stderr if the status is not
 * 0. */
#define expect(command, status, ...) expect_texts(command, status, (const char *const[]){"", ##__VA_ARGS__, NULL})
void expect_texts(const char *command, int status, const char *const *texts);

/* The same, and stderr is one line, which holds the texts. */
#define expect_sentence(command, status, ...)                                                                          \
    expect_sentence_texts(command, status, (const char *const[]){"", ##__VA_ARGS__, NULL})
void expect_sentence_texts(const char *command, int status, const char *const *texts);
/* eps stop ends the daemon "lab", both with status 0. */
void expect_stop(pid_t daemon);
/* As expect, of a command that prints one JSON value, which the caller drops. */
json_t *expect_json(const char *command, int status);
/* What is at a path of members and indices, "workers.0.budget"; borrowed. json_at asserts that it is there,
 * json_number_at that it is a number. */
json_t *json_at(json_t *value, const char *path);
double json_number_at(json_t *value, const char *path);

/* Runs a line of the shell, which exits with this status, on a terminal of so many columns, an xterm with colours; what
 * it showed, until the next one. */
const char *expect_on_terminal(const char *command, int status, unsigned short columns);
/* The same, where these keys are typed; the terminal shows them, too. */
const char *expect_typed(const char *command, int status, unsigned short columns, const char *keys);

/* What the last command wrote to either; until the next one. */
const char *command_out(void);
const char *command_err(void);
size_t command_out_lines(void);
size_t command_err_lines(void);

/* A file, by its name in the directory or a path, holds each of the texts; or none of them. */
#define expect_file(path, ...)   expect_in_file(path, true, (const char *const[]){__VA_ARGS__, NULL})
#define expect_absent(path, ...) expect_in_file(path, false, (const char *const[]){__VA_ARGS__, NULL})
void expect_in_file(const char *path, bool present, const char *const *texts);

/* A command that is refused: nothing on stdout, and on stderr a sentence, which begins with a program's name, does not
 * end in a full stop, and holds both texts. */
struct refusal {
    const char *command;
    int status;
    const char *first, *second; /* NULL: no second */
};
void expect_refusal(const struct refusal *refusal);

/* As printf; one of 8 static buffers. */
const char *print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* JSON written with single quotes, in double ones; one of 4 static buffers. */
char *quoted(const char *text);

#endif
