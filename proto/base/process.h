/* proto/base/process.h - start-up steps of every program. */
#ifndef PROTO_BASE_PROCESS_H
#define PROTO_BASE_PROCESS_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Two OpenMP teams that spin on the same cores can slow each other a hundredfold, and libgomp reads its limit when it
 * is loaded. So a program that was started without a limit restarts itself with GOMP_SPINCOUNT=2000 (measured best: no
 * cost alone, and robust against other teams). Call first in main. Returns if the environment already sets a limit, or
 * if the restart fails. */
void process_bound_spinning(char **argv);

/* Restarts this program with the present environment: every thread and all memory are gone, the process stays. If the
 * program's file was replaced, the new one begins. Returns only if that fails: -errno. */
int process_restart(char **argv);

/* libuv requires descriptors 0, 1 and 2 to be open, and room for more. If one is closed, the next file opened gets its
 * number: a file of the run could become standard output. A closed one becomes /dev/null opened in the wrong direction,
 * so that using it still fails. -EMFILE with a sentence. Call before anything is opened. */
int process_check_descriptors(struct error *err);

/* True if the limit on stacks suffices for every thread. Else false, after a sentence on standard error. Call first in
 * main, whose own frame must be small: one that does not fit is a segmentation fault. */
bool process_check_stack(const char *program);

/* Checks that n threads can be created. Otherwise libuv and nanomsg would abort, and libgomp would end with its own
 * message. Creates n threads at once, with memory beside them for libraries that do not check their allocations; then
 * ends them. The caller creates its threads next. -EAGAIN, -ENOMEM with a sentence. */
int process_check_threads(unsigned n, struct error *err);

/* Runs call(arg). -EAGAIN with a sentence if it aborts, as nanomsg and libuv do where they get no thread: others may
 * have taken it since process_check_threads. What the call had locked then stays locked: the library can be used no
 * more. */
int process_survive_abort(void (*call)(void *arg), void *arg, struct error *err);

/* Runs call(arg), and ends the process with a sentence and status 1 if it aborts. For calls that may have made threads
 * before they abort: those use the call's frame, so it cannot be left. */
void process_end_if_aborted(void (*call)(void *arg), void *arg);

/* Ends this process with SIGTERM when its parent, the process, has ended; the end of a thread of the parent, of the one
 * that made this process too, changes nothing. False if process `parent` is no longer the parent: it ended before this
 * call. 0: whichever process is the parent now. */
bool process_follow_parent(long parent);
/* True if process `parent` is the parent of this one, and so has not ended. */
bool process_is_child_of(long parent);

/* Blocks SIGTERM, SIGINT, SIGHUP and SIGUSR1; call first in main. From its first instruction on, and across
 * process_bound_spinning, the signals wait for process_take_signals, when handlers exist and everything can be shut
 * down in order. */
void process_hold_signals(void);
void process_take_signals(void);

/* True if this signal is ignored, as SIGHUP is under nohup. */
bool process_ignores(int number);

/* When a process of this host began, in the system's ticks since boot: tells it from a later one of the same number. 0
 * if the system does not tell. */
uint64_t process_birth(long pid);
/* True if the process that began then has ended: all of its threads, not only the first. A zombie has ended. False if
 * the system does not tell, or birth is 0. */
bool process_has_ended(long pid, uint64_t birth);

/* The name of this machine, cut to n - 1 bytes; empty if the system does not tell. */
void process_host_name(char *out, size_t n);

/* Host memory available now, within this process's control group; UINT64_MAX if the system does not tell. */
uint64_t process_available_bytes(void);

/* Parses "2GiB", "2g", "512M", "64KiB", "128MB", "100000" as bytes, at least 1, in either case. K, M, G and T are
 * powers of 1024, with or without iB; kB, MB, GB and TB are powers of 1000. A number below 65536 needs a unit, as "8"
 * means 8GiB to whoever types it. -EINVAL with a sentence that names the option. */
int process_parse_bytes(uint64_t *out, const char *option, const char *text, struct error *err);
/* The line of --help about byte counts. */
#define PROCESS_BYTES_HELP "BYTES: as in 1.5GiB, 512M (K, M, G, T: powers of 1024), 512MB (of 1000), 65536."

/* Formats "1.4 GiB", "37.0 MiB", "12.5 KiB", "812 B"; returns out. */
enum { PROCESS_BYTES_TEXT = 24 };
const char *process_format_bytes(char out[PROCESS_BYTES_TEXT], uint64_t bytes);

#endif
