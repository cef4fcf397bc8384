/* One list of arguments serves the terminal and the manual, so that neither has an option, or a default, that the other
 * lacks. The short help is a choice from that list: an option's name and value are the list's, and only its text is
 * shorter. A command with 80 options is read by people who need five; they find these on one screen. */
#include "tools/help.h"

#include "client/eps.h"
#include "tools/screen/terminal.h"

#include <assert.h>
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { HELP_COLUMN = 26 };

/* Width of the help: the terminal's, within limits; in a pipe a page's. */
static size_t help_width(void)
{
    enum { PAGE = 80, WIDEST = 100, NARROWEST = 50 };
    const size_t columns = terminal_columns(stdout);

    return columns == 0 ? PAGE : columns > WIDEST ? WIDEST : columns < NARROWEST ? NARROWEST : columns;
}

static void help_heading(const char *heading, bool first)
{
    const char *bold = terminal_style(stdout, TERMINAL_BOLD), *plain = terminal_style(stdout, TERMINAL_PLAIN);

    printf("%s%s%s:%s\n", first ? "" : "\n", bold, heading, plain);
}

static void help_argument(const char *name, const char *value, const char *text)
{
    const char *bold = terminal_style(stdout, TERMINAL_BOLD), *plain = terminal_style(stdout, TERMINAL_PLAIN);
    const size_t used = 2 + strlen(name) + (value ? 1 + strlen(value) : 0);

    printf("  %s%s%s%s%s", bold, name, plain, value ? " " : "", value ? value : "");
    if (used >= HELP_COLUMN)
        printf("\n%*s", HELP_COLUMN, "");
    else
        printf("%*s", (int)(HELP_COLUMN - used), "");
    terminal_wrap(stdout, text, HELP_COLUMN, HELP_COLUMN, help_width());
    putchar('\n');
}

/* Whether an argument is listed among all: not a part of the short help alone. */
static bool help_lists(const struct argument *a)
{
    return a->kind != ARGUMENT_USUAL && a->kind != ARGUMENT_EXAMPLE;
}

/* Returns whether some option takes a size. */
static bool help_all(const struct command *command)
{
    bool grouped = false, sizes = false;

    for (size_t i = 0; i < command->n_arguments; i++) {
        const struct argument *a = &command->arguments[i];
        if (a->kind == ARGUMENT_HEADING) {
            help_heading(a->name, i == 0);
            grouped = true;
        } else if (help_lists(a)) {
            help_argument(a->name, a->value, a->help);
            sizes = sizes || a->kind == ARGUMENT_BYTES;
        }
    }
    if (grouped)
        putchar('\n');
    return sizes;
}

static bool help_short(const struct command *command)
{
    size_t n_examples = 0, n_usual = 0, n_options = 0;
    bool sizes = false;

    for (size_t i = 0; i < command->n_arguments; i++) {
        const struct argument *a = &command->arguments[i];
        if (a->kind == ARGUMENT_EXAMPLE) {
            if (n_examples++ == 0)
                help_heading("Examples", true);
            printf("  %s\n", a->name);
        } else if (a->kind == ARGUMENT_USUAL) {
            const struct argument *option = arguments_named(command, a->name);
            assert(option); /* a name that the table has no more */
            if (n_usual++ == 0)
                help_heading("Options of most runs", n_examples == 0);
            help_argument(option->name, option->value, a->help);
            sizes = sizes || option->kind == ARGUMENT_BYTES;
        } else if (a->name[0] == '-') {
            n_options++;
        }
    }
    char text[80];
    snprintf(text, sizeof text, "print all %zu options; man eps-%s explains them", n_options, command->name + 4);
    help_argument("--help all", NULL, text);
    return sizes;
}

/* "-m is --model, -n --tokens": the letters that the command has. Returns how many. */
static size_t help_letters(char *out, size_t cap, const struct command *command)
{
    size_t n = 0, at = 0;

    out[0] = 0;
    for (size_t i = 0; i < ARGUMENT_LETTERS; i++) {
        const struct argument_letter *l = &argument_letters[i];
        if (!arguments_named(command, l->name) || at >= cap)
            continue;
        at += (size_t)snprintf(out + at, cap - at, n ? ", %s %s" : "%s is %s", l->letter, l->name);
        n++;
    }
    return n;
}

/* ---- A list of a manual page ---- */

/* Prints a text as lines of mdoc. Hyphens of options stay ASCII, and no line begins as a request does. */
static void mdoc_text(const char *text)
{
    bool begins = true;

    for (const char *at = text; *at; at++) {
        if (begins && (*at == '.' || *at == '\''))
            fputs("\\&", stdout);
        if (*at == '\n')
            fputs("\n.br", stdout);
        if (*at == '-' || *at == '\\')
            fputs(*at == '-' ? "\\" : "\\e", stdout);
        if (*at != '\\')
            putchar(*at);
        begins = *at == '\n';
    }
    putchar('\n');
}

/* Prints a value as the argument of a macro: characters that mdoc would act on are quoted. */
static void mdoc_value(const char *value)
{
    const size_t n = strlen(value);

    if (value[0] == '[' && value[n - 1] == ']')
        printf(" Op Ar %.*s", (int)(n - 2), value + 1);
    else
        printf(" Ar %s", value);
}

static void mdoc_options(const struct command *command)
{
    bool open = false, sizes = false;

    for (size_t i = 0; i < command->n_arguments; i++) {
        const struct argument *a = &command->arguments[i];
        if (!help_lists(a))
            continue;
        if (a->kind == ARGUMENT_HEADING || !open) {
            printf("%s", open ? ".El\n" : "");
            if (a->kind == ARGUMENT_HEADING)
                printf(".Ss %s\n", a->name);
            printf(".Bl -tag -width Ds\n");
            open = true;
        }
        if (a->kind == ARGUMENT_HEADING)
            continue;
        if (a->name[0] == '-')
            printf(".It Fl %s", a->name + 1);
        else
            printf(".It Ar %s", a->name);
        if (a->value)
            mdoc_value(a->value);
        putchar('\n');
        mdoc_text(a->help);
        sizes = sizes || a->kind == ARGUMENT_BYTES;
    }
    char letters[100];
    printf("%s", open ? ".El\n" : "");
    if (help_letters(letters, sizeof letters, command) > 0) {
        printf(".Pp\n");
        mdoc_text(strcat(letters, "."));
    }
    if (sizes) {
        printf(".Pp\n");
        mdoc_text(eps_bytes_help());
    }
}

void help_print(const struct command *command, const char *word)
{
    bool is_short = false;

    if (word && strcmp(word, "mdoc") == 0) {
        mdoc_text(command->summary);
        printf(".Sh OPTIONS\n");
        mdoc_options(command);
        return;
    }
    for (size_t i = 0; i < command->n_arguments && !(word && strcmp(word, "all") == 0); i++)
        is_short = is_short || command->arguments[i].kind == ARGUMENT_USUAL;
    printf("usage: %s", command->name);
    for (size_t i = 0; i < command->n_arguments; i++) {
        if (command->arguments[i].kind == ARGUMENT_POSITIONAL)
            printf(" [%s]", command->arguments[i].name);
        else if (command->arguments[i].kind == ARGUMENT_WORDS)
            printf(" %s", command->arguments[i].name);
    }
    printf(" [OPTIONS]\n\n");
    terminal_wrap(stdout, command->summary, 0, 0, help_width());
    printf("\n\n");
    const bool sizes = is_short ? help_short(command) : help_all(command);
    help_argument("--help", NULL, "print this text");
    char letters[100];
    if (help_letters(letters, sizeof letters, command) > 0)
        printf("\n%s.\n", letters);
    if (sizes)
        printf("\n%s\n", eps_bytes_help());
    printf("\nExit status: 0 done, 1 failed, 2 wrong usage, 128 + N ended by signal N (130: Ctrl-C).\n");
}
