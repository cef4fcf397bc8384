/* What --help says, the manual pages and the shell's completion: three accounts of the same options, which must not
 * drift apart. --help is the one that the programs themselves keep true. */
#include "tests/kit/test.h"

#include "client/eps.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(release)

#define SOURCE TESTS_DIR "/.."

enum { MAX_WORDS = 100, WORD = 80 };

struct words {
    size_t n;
    char items[MAX_WORDS][WORD];
};

static void add(struct words *words, const char *text, size_t n)
{
    ck_assert_uint_lt(words->n, MAX_WORDS);
    ck_assert_uint_lt(n, WORD);
    snprintf(words->items[words->n++], WORD, "%.*s", (int)n, text);
}

static bool holds(const struct words *words, const char *item)
{
    for (size_t i = 0; i < words->n; i++) {
        if (strcmp(words->items[i], item) == 0)
            return true;
    }
    return false;
}

static void check_equal(const char *what, const struct words *a, const char *a_name, const struct words *b,
                        const char *b_name)
{
    for (size_t i = 0; i < a->n; i++)
        ck_assert_msg(holds(b, a->items[i]), "%s: '%s' is in %s, not in %s", what, a->items[i], a_name, b_name);
    for (size_t i = 0; i < b->n; i++)
        ck_assert_msg(holds(a, b->items[i]), "%s: '%s' is in %s, not in %s", what, b->items[i], b_name, a_name);
}

/* What a command line of the shell prints; to be freed. */
static char *output(const char *command)
{
    FILE *pipe = popen(command, "r");
    char *text = calloc(1, 65536);

    ck_assert_ptr_nonnull(pipe);
    ck_assert_uint_lt(fread(text, 1, 65535, pipe), 65535);
    ck_assert_msg(pclose(pipe) == 0, "%s: failed", command);
    return text;
}

static char *read_source(const char *name)
{
    char command[400];

    snprintf(command, sizeof command, "cat %s/%s", SOURCE, name);
    return output(command);
}

/* "--name" or "--name VALUE" of every line that begins with one. */
static struct words help_options(const char *command)
{
    struct words words = {0};
    char line[400];

    snprintf(line, sizeof line, "%s/%s --help", BIN_DIR, command);
    char *text = output(line);
    for (const char *at = text; (at = strstr(at, "\n  --")); at++) {
        const char *option = at + 3;
        size_t n = strcspn(option, " \n");
        if (option[n] == ' ' && option[n + 1] != ' ')
            n += 1 + strcspn(option + n + 1, " \n");
        add(&words, option, n);
    }
    free(text);
    return words;
}

/* The same of ".It Fl -name Ar VALUE" between two places of a manual page. */
static struct words page_options(const char *from, const char *to)
{
    struct words words = {0};

    for (const char *at = from; (at = strstr(at, "\n.It Fl -")) && at < to; at++) {
        char name[WORD], kind[WORD], value[WORD], line[WORD * 3], option[WORD * 3];
        const char *begin = at + strlen("\n.It Fl ");
        snprintf(line, sizeof line, "%.*s", (int)strcspn(begin, "\n"), begin);
        const int n = sscanf(line, "%79s Op Ar %79s", name, value) == 2        ? 4
                      : sscanf(line, "%79s %79s %79s", name, kind, value) == 3 ? 3
                                                                               : 1;
        snprintf(option, sizeof option, n == 4 ? "-%s [%s]" : n == 3 ? "-%s %s" : "-%s", name, value);
        add(&words, option, strlen(option));
    }
    return words;
}

/* The words that a command line of bash prints with the completion loaded. */
static struct words completion(const char *code)
{
    struct words words = {0};
    char line[1000];

    snprintf(line, sizeof line, "bash -c '. %s/tools/completion/eps.bash; %s'", SOURCE, code);
    char *text = output(line), *rest = text, *word;
    while ((word = strsep(&rest, " \n"))) {
        if (*word)
            add(&words, word, strlen(word));
    }
    free(text);
    return words;
}

/* What is offered for the last, empty word. */
static struct words offered(const char *words)
{
    char code[600];

    snprintf(code, sizeof code,
             "COMP_WORDS=(%s \"\"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _eps 2>/dev/null; echo \"${COMPREPLY[@]}\"",
             words);
    return completion(code);
}

static struct words names_of(const struct words *options)
{
    struct words names = {0};

    for (size_t i = 0; i < options->n; i++)
        add(&names, options->items[i], strcspn(options->items[i], " "));
    return names;
}

/* Where an option takes one of a few words, those are offered. */
static void check_choices(const char *command, const struct words *options)
{
    for (size_t i = 0; i < options->n; i++) {
        char option[WORD], value[WORD], line[WORD * 3];
        if (sscanf(options->items[i], "%79s %79s", option, value) != 2 || !strchr(value, '|'))
            continue;
        snprintf(line, sizeof line, "%s %s", command, option);
        const struct words got = offered(line);
        char *rest = value, *word;
        while ((word = strsep(&rest, "|"))) {
            if (strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789") == strlen(word)) /* not a placeholder: FILE */
                ck_assert_msg(holds(&got, word), "%s: '%s' is not offered", line, word);
        }
    }
}

static struct words commands(void)
{
    struct words words = {0};
    char *text = output(BIN_DIR "/eps --help");

    for (const char *at = text; (at = strstr(at, "\n  ")); at++)
        add(&words, at + 3, strcspn(at + 3, " \n"));
    free(text);
    return words;
}

TEST(every_command_is_in_the_manual_and_in_the_completion)
{
    const struct words said = commands(), offers = completion("echo $_eps_commands");
    struct words written = {0};
    char *page = read_source("tools/man/eps.1");

    for (const char *at = page; (at = strstr(at, "\n.Ss eps ")); at++)
        add(&written, at + 9, strcspn(at + 9, "\n"));
    ck_assert_uint_ge(said.n, 5);
    check_equal("eps", &said, "--help", &written, "tools/man/eps.1");
    check_equal("eps", &said, "--help", &offers, "tools/completion/eps.bash");
    free(page);
}

TEST(every_option_of_a_command_is_in_the_manual_and_in_the_completion)
{
    const struct words all = commands();
    char *page = read_source("tools/man/eps.1");

    for (size_t i = 0; i < all.n; i++) {
        char command[WORD * 2], heading[WORD * 2], code[WORD * 2];
        snprintf(command, sizeof command, "eps %s", all.items[i]);
        snprintf(heading, sizeof heading, "\n.Ss eps %s\n", all.items[i]);
        snprintf(code, sizeof code, "_eps_options %s", all.items[i]);
        const char *from = strstr(page, heading);
        ck_assert_msg(from != NULL, "tools/man/eps.1 has no%s", heading);
        const char *to = strstr(from + 1, "\n.S");
        struct words said = help_options(command), written = page_options(from, to);
        const struct words offers = completion(code);
        add(&written, "--help", 6); /* said once, for all of them */
        check_equal(command, &said, "--help", &written, "tools/man/eps.1");
        check_choices(command, &said);
        said = names_of(&said);
        check_equal(command, &said, "--help", &offers, "tools/completion/eps.bash");
    }
    free(page);
}

TEST(help_is_in_groups)
{
    char *said = output(BIN_DIR "/eps train --help");
    const char *first = strstr(said, "\n\nModel and data:\n  --model "), *last = strstr(said, "\n\nMachine:\n  --");

    ck_assert(first && last && first < last);
    ck_assert_ptr_nonnull(strstr(last, "\n\n  --help "));
    ck_assert_ptr_null(strstr(said, "\n\n\n"));
    free(said);
}

TEST_EACH(every_option_of_the_other_programs_is_in_theirs, 2)
{
    static const char *const programs[] = {"epsd", "eps-worker"};
    const char *program = programs[_i];
    char name[64], code[64];

    snprintf(name, sizeof name, "tools/man/%s.1", program);
    snprintf(code, sizeof code, "_eps_options %s", program);
    char *page = read_source(name);
    const struct words said = help_options(program), written = page_options(page, page + strlen(page)),
                       names = names_of(&said), offers = completion(code);
    ck_assert_uint_ge(said.n, 4);
    check_equal(program, &said, "--help", &written, name);
    check_choices(program, &said);
    check_equal(program, &names, "--help", &offers, "tools/completion/eps.bash");
    free(page);
}

TEST(every_preset_is_offered_and_in_the_manual)
{
    const struct words offers = offered("eps train --model");
    char *page = read_source("tools/man/eps.1");

    for (size_t i = 0; eps_preset(i); i++) {
        char row[WORD];
        ck_assert_msg(holds(&offers, eps_preset(i)->name), "'%s' is not offered", eps_preset(i)->name);
        snprintf(row, sizeof row, "\n.It %s Ta ", eps_preset(i)->name);
        ck_assert_msg(strstr(page, row), "tools/man/eps.1 does not list %s", eps_preset(i)->name);
    }
    free(page);
}

/* groff's own complaints: a macro that is not there, a list that does not end. */
TEST_EACH(the_manual_pages_are_well_formed, 3)
{
    static const char *const pages[] = {"eps", "epsd", "eps-worker"};
    char command[300];

    if (system("command -v groff >/dev/null") != 0)
        return;
    snprintf(command, sizeof command, "groff -mdoc -Tutf8 -ww -z %s/tools/man/%s.1 2>&1", SOURCE, pages[_i]);
    char *said = output(command);
    ck_assert_str_eq(said, "");
    free(said);
}
