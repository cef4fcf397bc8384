/* Only a sentence's own options are renamed: a word that begins with two dashes at a word's start, in a clause that
 * names none of our programs. A clause begins behind a colon, a semicolon, a comma or a bracket. The length stays,
 * since two dashes become two backticks, so sentences of fixed room need no check. */
#include "client/member.h"

#include "proto/base/error.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* True if one of our programs is named between clause and end, as in "attach one with eps-worker --connect lab". */
static bool has_program(const char *clause, const char *end)
{
    static const char *const programs[] = {"eps", "epsd", "eps-worker"};

    while (clause < end) {
        const size_t n = strcspn(clause, " ");
        for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
            const size_t m = strlen(programs[i]);
            if (n >= m && memcmp(clause + n - m, programs[i], m) == 0 && (n == m || clause[n - m - 1] == '/'))
                return true;
        }
        clause += n + (clause[n] == ' ');
    }
    return false;
}

void client_name_members(char *sentence)
{
    const char *clause = sentence;

    for (char *at = sentence; *at; at++) {
        if (strchr(":;,(", *at))
            clause = at + 1;
        const size_t n = strncmp(at, "--", 2) == 0 ? strspn(at + 2, "abcdefghijklmnopqrstuvwxyz-") : 0;
        if (n == 0 || at[2] == '-' || (at > sentence && !strchr(" ('\"", at[-1])) || has_program(clause, at))
            continue;
        for (size_t i = 0; i < n; i++)
            at[i + 1] = at[i + 2] == '-' ? '_' : at[i + 2];
        at[0] = at[n + 1] = '`';
        at += n + 1;
    }
}

void client_tell(void (*on_note)(void *user, const char *sentence), void *user, const char *sentence)
{
    struct error said;

    error_set(&said, 0, "%s", sentence);
    client_name_members(said.text);
    if (on_note)
        on_note(user, said.text);
}
