/* proto/base/log.h - the log of a daemon or worker: one line for each event in its life.
 *
 * Lines go to standard error, as "name: text". Where that is the system's journal ($JOURNAL_STREAM, systemd.exec(5)), a
 * line begins with its level instead, "<4>text" (sd-daemon(3)). log_open sends them to a file: there a line has its
 * time, "2026-11-22T10:00:00+0100 name: warning: text".
 *
 * Writing never blocks: a stopped terminal, or a pipe that nobody reads, must not stall an event loop. A line that is
 * not taken at once is dropped. The next line that is taken is preceded by "N lines of the log were dropped". */
#ifndef PROTO_BASE_LOG_H
#define PROTO_BASE_LOG_H

struct error;

/* As in syslog(3), whose numbers the journal takes. */
enum log_level {
    LOG_LEVEL_ERROR = 3,   /* the process ends, or the job does */
    LOG_LEVEL_WARNING = 4, /* something is lost or refused, and work goes on */
    LOG_LEVEL_INFO = 6     /* all else */
};

/* main sets the program's name, at most 95 characters, before any thread that logs starts; the default is "eps". */
void log_name(const char *name);

/* Lines of lower importance are left out. text: "error", "warning" or "info", the default. -EDOM with a sentence. */
int log_set_level(const char *text, struct error *err);

/* Standard error becomes this file (path_open): it is made, or appended to. For main, before any thread starts. -errno
 * with a sentence; standard error is then as before. */
int log_open(const char *path, struct error *err);
/* Opens the file anew, by its name: it may have been renamed to rotate the log. Where that fails, the old file stays
 * and gets a line that says so. Does nothing without log_open. */
void log_reopen(void);

/* Write one line, of INFO, WARNING and ERROR. Safe from every thread (one write each). */
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
