/* Sentences that name an option: for callers of libeps, and back for the command line. */
#include "tests/kit/test.h"

#include "client/member.h"
#include "tools/arguments.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *inside, *outside;
} sentences[] = {
    {"--top-p 1.5: a probability is needed", "`top_p` 1.5: a probability is needed"},
    {"give --steps or --epochs, not both", "give `steps` or `epochs`, not both"},
    {"(--batch 7, --parts 2)", "(`batch` 7, `parts` 2)"},
    {"'--lr'", "'`lr`'"},
    /* A command line stays, to the end of its clause. */
    {"no daemon: start one with epsd --listen lab --queue 3, or check --connect",
     "no daemon: start one with epsd --listen lab --queue 3, or check `connect`"},
    {"next: build/bin/eps train --resume runs/a", "next: build/bin/eps train --resume runs/a"},
    {"--device-mem does not go with --connect: give it to each eps-worker instead",
     "`device_mem` does not go with `connect`: give it to each eps-worker instead"},
    {"steps of --data passed over", "steps of `data` passed over"},
    /* No options. */
    {"a--b -- c --- d --9 --", "a--b -- c --- d --9 --"},
    {"`ulimit -l` is 8", "`ulimit -l` is 8"},
    {"", ""},
};

TEST_EACH(options_are_members_outside_and_options_again_in_a_command, COUNT(sentences))
{
    char text[200], back[OPTIONS_TEXT];

    snprintf(text, sizeof text, "%s", sentences[_i].inside);
    client_name_members(text);
    ck_assert_str_eq(text, sentences[_i].outside);
    ck_assert_str_eq(arguments_options(back, text), sentences[_i].inside);
}

static void on_note(void *user, const char *sentence)
{
    snprintf(user, 40, "%s", sentence);
}

TEST(a_note_names_members_too)
{
    char said[40] = "";

    client_tell(NULL, said, "--data");
    ck_assert_str_eq(said, "");
    client_tell(on_note, said, "the preset's --batch-size");
    ck_assert_str_eq(said, "the preset's `batch_size`");
}
