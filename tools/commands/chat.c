/* eps chat: messages from stdin, answers on stdout as they are written. Where a person types, there is a head, and a
 * line that begins with a slash is a command; in a pipe every line is a message, so that any text can be said. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/hub.h"
#include "tools/screen/terminal.h"
#include "tools/screen/text.h"
#include "tools/table_options.h"
#include "tools/usual.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct chat {
    struct eps_chat_options options;
    bool asks;  /* stdin and stdout are a terminal: print prompts */
    bool began; /* the model is open */
    bool left;  /* by /exit */
    bool block; /* the message was given between lines of """ */
    struct printed printed;
    struct stopping stopping;
    int signals; /* a descriptor that is readable once a signal came */
    char *line;  /* (cap_line), owned by getline */
    size_t cap_line;
    struct text message;
};

static void on_text(void *user, const char *text, size_t n)
{
    struct chat *chat = user;

    printed_text(&chat->printed, text, n);
    printed_flush(&chat->printed);
}

/* One Ctrl-C ends the answer; a second one, another signal, or one before the conversation began ends all. */
static int chat_should_stop(void *user)
{
    struct chat *chat = user;
    const int level = stopping_observer(&chat->stopping);

    return chat->printed.error || (level > 0 && (!chat->began || chat->stopping.first != SIGINT)) ? 2 : level;
}

static void chat_on_note(void *user, const char *sentence)
{
    char text[OPTIONS_TEXT];

    (void)user;
    fprintf(stderr, "eps chat: %s\n", arguments_options(text, sentence));
}

/* Reads a line without its newline. Length, or -1: there is none (rc 0: the input ended; -EINTR; -errno). Signals are
 * blocked, so poll waits for them. stdin is not buffered, so poll knows of all that is left. */
static ssize_t chat_read_line(struct chat *chat, int *rc)
{
    struct pollfd polled[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = chat->signals, .events = POLLIN}};

    *rc = 0;
    while (poll(polled, 2, -1) < 0)
        if (errno != EINTR)
            break;
    if (stopping_observer(&chat->stopping) > 0) {
        *rc = -EINTR;
        return -1;
    }
    errno = 0;
    ssize_t n = getline(&chat->line, &chat->cap_line, stdin);
    if (n < 0 && !feof(stdin))
        *rc = errno ? -errno : -EIO;
    return n > 0 && chat->line[n - 1] == '\n' ? n - 1 : n;
}

static void tools_chat_ask(const struct chat *chat, const char *prompt)
{
    if (chat->asks)
        fputs(prompt, stdout);
    fflush(stdout);
}

/* Reads a message: a line, or the lines between two that are """. 1, 0 at the end of input, or -errno. */
static int read_message(struct chat *chat)
{
    static const char mark[] = "\"\"\"";
    bool block = false;
    size_t n_lines = 0;
    int rc;

    chat->message.n = 0;
    chat->block = false;
    for (;;) {
        tools_chat_ask(chat, block ? "... " : "> ");
        const ssize_t n = chat_read_line(chat, &rc);
        const bool marked = n == 3 && memcmp(chat->line, mark, 3) == 0;
        if (n < 0)
            return rc ? rc : n_lines > 0;
        if (block && marked && n_lines > 0)
            return 1;
        if (marked) {
            block = chat->block = !block;
        } else if (block || n > 0) {
            if ((n_lines > 0 && text_add(&chat->message, "\n", 1)) || text_add(&chat->message, chat->line, (size_t)n))
                return -ENOMEM;
            n_lines++;
            if (!block)
                return 1;
        }
    }
}

static void chat_tell(const struct eps_answer *answer)
{
    if (answer->n_dropped > 0)
        fprintf(stderr, "eps chat: the context is full: the %" PRIu32 " oldest messages were dropped\n",
                answer->n_dropped);
    if (answer->full)
        fprintf(stderr, "eps chat: the context is full, so the answer ends here\n");
}

/* ---- Commands of a person at a terminal ---- */

static int command_help(struct eps_chat *session, const char *text, struct eps_error *error);

static int command_clear(struct eps_chat *session, const char *text, struct eps_error *error)
{
    (void)text, (void)error;
    eps_chat_clear(session);
    puts("All messages are forgotten, but the system message.");
    return 0;
}

static int command_system(struct eps_chat *session, const char *text, struct eps_error *error)
{
    const int rc = eps_chat_set_system(session, text, strlen(text), error);

    if (!rc)
        puts(*text ? "The system message is set, from the next answer on." : "There is no system message any more.");
    return rc;
}

static const struct {
    const char *name, *value, *does;
    int (*run)(struct eps_chat *session, const char *text, struct eps_error *error); /* NULL: ends the conversation */
} chat_commands[] = {
    {"/clear", "", "forget all messages but the system message", command_clear},
    {"/system", " TEXT", "set the system message; without TEXT: remove it", command_system},
    {"/help", "", "print this", command_help},
    {"/exit", "", "end the conversation, as Ctrl-D does", NULL},
};

enum { N_COMMANDS = sizeof chat_commands / sizeof *chat_commands };

static int command_help(struct eps_chat *session, const char *text, struct eps_error *error)
{
    (void)session, (void)text, (void)error;
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %s%-*s  %s\n", chat_commands[i].name, (int)(14 - strlen(chat_commands[i].name)),
               chat_commands[i].value, chat_commands[i].does);
    printf("  %-14s  %s\n", "\"\"\"", "begin a message of several lines, and end it");
    printf("  %-14s  %s\n", "Ctrl-C", "end the answer that is being written");
    return 0;
}

/* Carries out a line that begins with a slash. 1: it ends the conversation; 0; or libeps's code with a sentence. */
static int chat_carry_out(const char *line, struct eps_chat *session, struct eps_error *error)
{
    const size_t n = strcspn(line, " \t");

    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strlen(chat_commands[i].name) != n || memcmp(line, chat_commands[i].name, n) != 0)
            continue;
        return chat_commands[i].run ? chat_commands[i].run(session, line + n + strspn(line + n, " \t"), error) : 1;
    }
    snprintf(error->text, sizeof error->text,
             "%.*s is no command: /help lists them; a message may begin with / between two lines of \"\"\"",
             n < 40 ? (int)n : 40, line);
    return -EINVAL;
}

/* "runs/chat: llama, 1.1 M parameters, 512 tokens of context" */
static void print_head(const struct chat *chat, const struct eps_chat *session)
{
    const struct eps_chat_facts facts = eps_chat_facts(session);
    const struct eps_chat_options *o = &chat->options;
    char count[24];

    printf("%s%s%s: %s, %s parameters, %" PRIu32 " tokens of context\n", terminal_style(stdout, TERMINAL_BOLD),
           o->model     ? o->model
           : o->connect ? o->connect
                        : "the model of your live run",
           terminal_style(stdout, TERMINAL_PLAIN), facts.model_type, text_count(count, facts.n_parameters),
           facts.context);
    puts("Ctrl-D ends the conversation, /help lists the commands.");
}

/* ---- The conversation ---- */

/* Says messages until the input ends. Returns libeps's code with a sentence. */
static int converse(struct chat *chat, struct eps_chat *session, const struct command *command, struct eps_error *error)
{
    int rc;

    while ((rc = read_message(chat)) > 0) {
        struct eps_answer answer = {0};
        chat->printed.last = 0;
        const bool commands = chat->asks && !chat->block && chat->message.bytes[0] == '/';
        rc = commands ? chat_carry_out(chat->message.bytes, session, error)
                      : eps_chat_say(&answer, session, chat->message.bytes, chat->message.n, error);
        if (commands && rc > 0) {
            chat->left = true;
            return 0;
        }
        if (!commands && chat->printed.last != '\n' && (!rc || chat->printed.last))
            printed_put(&chat->printed, "\n", 1);
        printed_flush(&chat->printed);
        if (chat->asks && (rc == -EINVAL || rc == -E2BIG))
            arguments_fail(command, rc, error->text);
        else if (rc)
            return rc;
        else
            chat_tell(&answer);
        if (chat->printed.error || chat->stopping.level > 1 ||
            (chat->stopping.level > 0 && chat->stopping.first != SIGINT))
            break;
        chat->stopping.level = chat->stopping.first = 0;
    }
    if (rc < 0)
        snprintf(error->text, sizeof error->text, "standard input: %s", strerror(-rc));
    return rc;
}

static int chat_end(struct chat *chat, const struct command *command, int rc, const struct eps_error *error)
{
    if (chat->asks && chat->began && !chat->left)
        putchar('\n'); /* after the last prompt */
    fflush(stdout);
    if (chat->printed.error)
        return output_status(command->name, chat->printed.error);
    if (stopping_observer(&chat->stopping) > 0)
        return stopping_status(&chat->stopping, 0);
    return rc ? arguments_fail(command, rc, error->text) : 0;
}

static int chat_run(struct chat *chat, const struct command *command)
{
    static const struct eps_chat_events events = {on_text, chat_should_stop, chat_on_note};
    struct eps_chat *session = NULL;
    struct eps_error error;

    printed_init(&chat->printed);
    stopping_init(&chat->stopping);
    chat->signals = signalfd(-1, &chat->stopping.signals, SFD_CLOEXEC | SFD_NONBLOCK);
    chat->asks = chat->printed.terminal && isatty(STDIN_FILENO) == 1;
    setvbuf(stdin, NULL, _IONBF, 0);
    int rc = eps_chat_open(&session, &chat->options, &events, chat, &error);
    chat->began = !rc;
    if (!rc && chat->asks)
        print_head(chat, session);
    if (!rc)
        rc = converse(chat, session, command, &error);
    const int status = chat_end(chat, command, rc, &error);
    eps_chat_close(session);
    if (chat->signals >= 0)
        close(chat->signals);
    return status;
}

int command_chat(int argc, char **argv)
{
    struct chat chat = {.options = eps_chat_defaults()};
    struct table_options options = {.options = &chat.options};
    struct usual usual = {.threads = 0};
    struct hub hub = {.yes = false};

    table_options_take(&options, EPS_COMMAND_CHAT);
    usual_add(&options, &usual, NULL);
    table_options_add(&options, &(struct argument)HUB_YES(&hub), 1);
    const struct command command = {
        "eps chat",
        "Converses with a model in the format of its own chat template. A line of standard input is a message; a line "
        "of three quotation marks (\"\"\") begins a message of several lines, which ends at the next such line. Ctrl-D "
        "ends the conversation. Ctrl-C ends the answer that is being written, a second one the conversation. On a "
        "terminal, /clear, /system TEXT, /help and /exit are commands.",
        options.arguments, options.n};
    int status = table_options_parse(&options, &command, argc, argv);

    if (status < 0)
        status = usual_apply(&usual, &command, chat.options.model ? chat.options.connect : NULL);
    if (status < 0)
        status = hub_find(&hub, &chat.options.model, HUB_MODEL, &command);
    if (status < 0)
        status = chat_run(&chat, &command);
    table_options_free(&options);
    free(chat.line);
    free(chat.message.bytes);
    return status;
}
