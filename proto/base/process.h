/* proto/base/process.h - what every program of ours does before it works. */
#ifndef PROTO_BASE_PROCESS_H
#define PROTO_BASE_PROCESS_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Two OpenMP teams that spin on the same cores can slow each other a hundredfold, and libgomp reads its limit when it
 * is loaded. So a program that was started without one starts itself anew with GOMP_SPINCOUNT=2000 (measured best: it
 * costs nothing alone and survives company). Call first in main. Returns if the environment says something already, or
 * if it cannot be done. */
void process_bound_spinning(char **argv);

/* What libuv takes for granted and dies without: that 0, 1 and 2 are open (else what is opened next gets their numbers, a
 * file of the run standard output's, say), and room for descriptors. What was closed gets /dev/null, the wrong way round,
 * so that reading or writing it goes on failing. -EMFILE with a sentence. Call before anything is opened. */
int process_check_descriptors(struct error *err);

/* Room on the stack of any thread. -ENOMEM with a sentence. Call first, before anything large is put there. */
int process_check_stack(struct error *err);

/* What else is taken for granted: that n threads can be made, which libuv and nanomsg abort without and
 * libgomp ends with words of its own. So n are made here, all at a time, with memory beside them for what allocates
 * without asking; then they end. Whoever needs them starts them next. -EAGAIN, -ENOMEM with a sentence. */
int process_check_threads(unsigned n, struct error *err);

/* Ends this process with SIGTERM when its parent dies: private daemons and workers must not outlive who started them.
 * False if the process of that number (0: not known) is no more the parent: it died before this call. */
bool process_follow_parent(long parent);

/* Blocks SIGTERM, SIGINT and SIGHUP, which would end the process where it stands; call first in main, so that from its
 * first instruction on they wait, across process_bound_spinning too, for process_take_signals, when their handlers are
 * there and what they should take down can be taken down. */
void process_hold_signals(void);
void process_take_signals(void);

/* Whether a process of this host is stopped: by Ctrl-Z, SIGSTOP, a debugger. False where the system does not say. */
bool process_is_stopped(long pid);

/* Memory of this host that could be taken now, no more than this process's control group allows; UINT64_MAX where the
 * system does not say. */
uint64_t process_available_bytes(void);

/* "2GiB", "2g", "512M", "64KiB", "1000": bytes, at least 1. K, M, G and T are powers of 1024 in either case, with or
 * without iB; KB, MB and GB, which others read as powers of 1000, are refused. -EINVAL with a sentence that names the
 * option. */
int process_parse_bytes(uint64_t *out, const char *option, const char *text, struct error *err);

/* "1.4 GiB", "37.0 MiB", "12.5 KiB", "812 B"; returns out. */
enum { PROCESS_BYTES_TEXT = 24 };
const char *process_format_bytes(char out[PROCESS_BYTES_TEXT], uint64_t bytes);

/* The same in the unit that `like` is written in, so that figures of a line can be compared: "0.12 GiB" beside
 * "2.0 GiB". What is less than 1 of it has two digits that count. */
const char *process_format_bytes_like(char out[PROCESS_BYTES_TEXT], uint64_t bytes, uint64_t like);

#endif
