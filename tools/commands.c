/* Signals are blocked before anything starts, and taken by sigtimedwait where a command polls, so no code of ours runs
 * in a handler. Output to a pipe whose reader is gone is then an error of the write, not a death. */
#include "tools/commands.h"

#include "tools/arguments.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void stopping_init(struct stopping *stopping)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action;

    *stopping = (struct stopping){0};
    sigemptyset(&stopping->signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&stopping->signals, numbers[i]);
    }
    sigprocmask(SIG_BLOCK, &stopping->signals, NULL);
}

int stopping_observer(struct stopping *stopping)
{
    const struct timespec at_once = {0};
    int number;

    while ((number = sigtimedwait(&stopping->signals, NULL, &at_once)) > 0) {
        if (!stopping->first)
            stopping->first = number;
        if (number == SIGINT || number == SIGTERM)
            stopping->level = stopping->level < 2 ? stopping->level + 1 : 2;
        else if (stopping->level == 0)
            stopping->level = 1;
    }
    return stopping->level;
}

int stopping_should_stop(void *user)
{
    struct stopping *stopping = user;
    const int level = stopping_observer(stopping);

    return level > stopping->borne ? level - stopping->borne : 0;
}

int stopping_status(struct stopping *stopping, int status)
{
    stopping_observer(stopping);
    return stopping->first ? 128 + stopping->first : status;
}

/* ---- A request ---- */

static int parse_job(const struct command *command, uint32_t *job, const char *text)
{
    char sentence[200], *end;
    const unsigned long n = isdigit((unsigned char)*text) ? strtoul(text, &end, 10) : 0;

    if (n >= 1 && n <= UINT32_MAX && !*end) {
        *job = (uint32_t)n;
        return 0;
    }
    snprintf(sentence, sizeof sentence, "JOB '%.40s' is not a job's number: eps status lists them", text);
    return arguments_fail(command, -EDOM, sentence);
}

static void print_note(void *user, const char *sentence)
{
    const struct request *request = user;
    char text[OPTIONS_TEXT];

    fprintf(stderr, "%s: %s\n", request->name, arguments_options(text, sentence));
}

/* A daemon that is about to end lets nobody in any more; a moment later there is none. */
static bool has_ended(const char *address)
{
    struct eps_observer *observer;
    const int rc = eps_observer_open(&observer, address, NULL, NULL, NULL);

    eps_observer_close(observer);
    return rc == -ENOENT || rc == -ECONNREFUSED;
}

int request_command(int argc, char **argv, const struct request *request)
{
    const char *address = NULL, *number = NULL;
    struct stopping stopping;
    struct asked asked = {.stopping = &stopping};
    const struct argument arguments[] = {
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &address,
         "the daemon's name or directory, or its run's --out; default: your only daemon"},
        {"--json", NULL, ARGUMENT_FLAG, &asked.json, request->json},
        {"JOB", NULL, ARGUMENT_POSITIONAL, &number,
         "the number of a job in eps status: that job ends, running or waiting, and the daemon stays. A number alone "
         "is a job of your only daemon"},
    };
    const size_t n_arguments = sizeof arguments / sizeof *arguments - (request->takes_job ? 0 : 1);
    const struct command command = {request->name, request->text, arguments, n_arguments};
    struct eps_error error;
    struct eps_observer *observer;
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    if (request->takes_job && address && !number && address[strspn(address, "0123456789")] == 0)
        number = address, address = NULL;
    status = number ? parse_job(&command, &asked.job, number) : 0;
    if (status)
        return status;
    stopping_init(&stopping);
    int rc = eps_observer_open(&observer, address, stopping_should_stop, &stopping, &error);
    if (rc == -EIO && request->ends && has_ended(address))
        rc = request->ask(NULL, &asked, &error);
    else if (!rc) {
        eps_observer_notes(observer, print_note, (void *)(uintptr_t)request);
        rc = request->ask(observer, &asked, &error);
    }
    eps_observer_close(observer);
    return rc ? stopping_status(&stopping, arguments_fail(&command, rc, error.text)) : 0;
}

/* ---- A model's text ---- */

void printed_init(struct printed *printed)
{
    signal(SIGPIPE, SIG_IGN); /* the failed write reports it */
    *printed = (struct printed){.terminal = isatty(STDOUT_FILENO) == 1};
}

void printed_put(struct printed *printed, const char *bytes, size_t n)
{
    if (n > 0 && fwrite(bytes, 1, n, stdout) < n)
        printed->error = errno;
    if (n > 0)
        printed->last = bytes[n - 1];
}

void printed_text(struct printed *printed, const char *text, size_t n)
{
    size_t from = 0;

    for (size_t i = 0; printed->terminal && i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const size_t length = c == 0xC2 && i + 1 < n && (unsigned char)text[i + 1] < 0xA0 ? 2 : 1;
        if (length == 1 && ((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\t'))
            continue;
        printed_put(printed, text + from, i - from);
        printed_put(printed, "\xEF\xBF\xBD", 3);
        from = i + length;
        i = from - 1;
    }
    printed_put(printed, text + from, n - from);
}

void printed_flush(struct printed *printed)
{
    if (fflush(stdout))
        printed->error = errno;
}

int output_status(const char *name, int error)
{
    if (error == EPIPE)
        return 128 + SIGPIPE;
    fprintf(stderr, "%s: standard output: %s\n", name, strerror(error));
    return 1;
}

/* ---- A growing text ---- */

int text_add(struct text *text, const char *bytes, size_t n)
{
    if (text->n + n >= text->cap) {
        const size_t cap = 2 * (text->n + n) + 1;
        char *longer = realloc(text->bytes, cap);
        if (!longer)
            return -ENOMEM;
        text->bytes = longer;
        text->cap = cap;
    }
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
    text->bytes[text->n] = 0;
    return 0;
}

/* ---- --json ---- */

/* What jansson writes, with its reals respelt: a number with a point or an exponent. Texts are passed whole. */
void answer_write(FILE *out, const json_t *value, size_t flags)
{
    char *text = json_dumps(value, flags), number[32];
    size_t n;

    for (const char *at = text; at && *at; at += n) {
        n = strcspn(at, "\"-0123456789");
        if (n == 0 && *at == '"') {
            for (n = 1; at[n] != '"'; n++)
                n += at[n] == '\\';
            n++;
        } else if (n == 0) {
            n = strspn(at, "+-.0123456789eE");
            if (memchr(at, '.', n) || memchr(at, 'e', n)) {
                fputs(eps_format_real(number, strtod(at, NULL)), out);
                continue;
            }
        }
        fwrite(at, 1, n, out);
    }
    free(text);
}

void answer_print(json_t *answer)
{
    if (!answer) {
        fputs("eps: the answer is no JSON: there is no memory for it, or a number in it is not finite\n", stderr);
        exit(EXIT_FAILURE);
    }
    answer_write(stdout, answer, JSON_INDENT(2));
    putchar('\n');
    json_decref(answer);
}
