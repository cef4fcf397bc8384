/* tests/kit/processes.h - real programs, files and signals for the tests that need them. */
#ifndef TESTS_KIT_PROCESSES_H
#define TESTS_KIT_PROCESSES_H

#include "client/eps.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The name of $XDG_RUNTIME_DIR in a test's directory; no file of a test is called so. */
#define PROCESSES_RUNTIME ".runtime"

/* A fresh working directory for this test program, $XDG_RUNTIME_DIR in it, so that no other daemon is met. Removed
 * again by processes_remove, which also kills whatever was started and still lives. For Check's unchecked fixtures. */
void processes_setup(void);
/* The same with model.json in it, a GPT-2 of one layer and 32 positions, and text.txt of 8,000 bytes. */
void processes_setup_tiny(void);
void processes_remove(void);

/* All programs that are started from here on know the families of tests (tests/families) too. */
void processes_know_families(void);
/* Where the programs are. */
const char *processes_programs(void);

/* Its path. */
const char *processes_directory(void);
/* The file or directory of this name in it. One of 8 static buffers. */
const char *processes_path(const char *name);

/* Writes a file there; returns its path. */
const char *processes_write(const char *name, const void *bytes, size_t n);
/* The same of a text. */
const char *processes_put_text(const char *name, const char *text);
/* Changes a bit of the byte at `at` of a file, counted from its end if negative. */
void processes_flip(const char *path, long at);
/* A GPT-2 config.json: byte vocabulary, tied, no dropout. Returns its path. */
const char *processes_config(const char *name, uint32_t n_layers, uint32_t n_heads, uint32_t width,
                             uint32_t n_positions);
/* The same with further members, as JSON without braces; of a key that is there already, the further one stands. */
const char *processes_config_with(const char *name, uint32_t n_layers, uint32_t n_heads, uint32_t width,
                                  uint32_t n_positions, const char *members);
/* n printable bytes that look random, the same ones always: byte i is processes_token(i). Returns the path. */
const char *processes_text(const char *name, size_t n);
uint32_t processes_token(size_t i);

/* Starts one of our programs, by its name or a path; its stderr goes to the file log (NULL: to nowhere). argv ends with
 * NULL and begins after the program's name. */
pid_t processes_start(const char *program, const char *const *argv, const char *log);
/* Runs eps with these arguments, as a shell reads them, in the directory, its stdout to the file out, its stderr to
 * err; the exit status. */
int processes_eps(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Waits up to 5 s for the end of a process that was started; the exit status as the shell has it (128 + signal), -1 if
 * it lives on. */
int processes_wait(pid_t pid);
/* A worker that connects to the daemon of this name, which need not be there yet; its stderr goes to log. */
pid_t processes_worker(const char *name, const char *device_mem, const char *log);
/* A daemon named `name` and n workers, all attached; workers[n]. Asserts. */
pid_t processes_daemon(const char *name, uint32_t n_workers, pid_t *workers);
/* Until the daemon of this name, or at this directory, is up and has at least so many workers. Asserts. */
void processes_await_workers(const char *name, uint32_t n);

/* Until the daemon says that it is in this state, as eps status names it. Asserts. */
void processes_await_state(const char *name, const char *state);

/* How many workers the daemon of this name has; UINT32_MAX if it does not answer. */
uint32_t processes_workers(const char *name);

/* Bytes that this process has read so far. */
uint64_t processes_bytes_read(void);

/* A live child or grandchild of this process that runs this program; 0 if there is none. */
pid_t processes_find(const char *program);
/* No daemon and no worker of this process lives. */
bool processes_nobody(void);
/* Until none does. Takes the exit status of each child. */
void processes_await_nobody(void);
/* A line of /proc/PID/status in bytes: "RssAnon", "RssShmem", ...; 0 if it is not there. */
uint64_t processes_status_bytes(pid_t pid, const char *key);
/* A file's whole content, terminated; the caller frees it. */
char *processes_read(const char *path);

/* How often a text occurs in a file; 0 if there is no file. */
unsigned processes_count(const char *path, const char *text);

/* What a program wrote to this file: one JSON value, which the caller drops. Asserts. */
json_t *processes_answer(const char *path);

/* Until no daemon has this name: one that the last test left may still be dying. processes_daemon does it too. */
void processes_await_free(const char *name);

/* Polls until ready(context) is true; false after two minutes. */
bool processes_until(bool (*ready)(void *context), void *context);

/* Until there is a file or directory of this path. Asserts. */
void processes_await_file(const char *path);

/* Until a text is in a file, n times. Asserts. */
void processes_await_text(const char *path, const char *text);
void processes_await_count(const char *path, const char *text, unsigned n);

/* Descriptors that a process has open. */
unsigned processes_count_fds(pid_t pid);

/* Options for a short run: this model, this text, `out` in the directory, everything else chosen. files must outlive
 * it. 256 tokens are evaluated; rows of a task and images have none, so their tests set eval_tokens to UINT64_MAX. */
struct eps_train_options processes_options(const char *model, const char *const *files, const char *out);
/* Trains in another process, so that this one may fork afterwards. */
void processes_train(const struct eps_train_options *options);
/* The same with events; what eps_train returns, its sentence in the file `said`. */
int processes_train_with(const struct eps_train_options *options, const struct eps_train_events *events, void *user);

#endif
