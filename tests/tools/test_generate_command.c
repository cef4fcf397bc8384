/* eps generate at a shell: what goes to stdout, to stderr, to a terminal, and how it ends. What it refuses: test_cli. */
#include "tests/kit/command.h"
#include "tests/kit/fixture.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(single)

static struct fixture fixture;

#define GENERATE "eps generate --model model "
#define PROMPT   "In the beginning " /* the first text's */

static json_t *first_text(void)
{
    return json_array_get(json_object_get(fixture.reference, "texts"), 0);
}

/* long: a model with more positions than anybody waits for. */
static void setup(void)
{
    processes_setup();
    fixture_open_model(&fixture, "generate");
    ck_assert_str_eq(json_string_value(json_object_get(first_text(), "prompt")), PROMPT);
    ck_assert_int_eq(mkdir("model", 0700), 0);
    fixture_write_model(&fixture, "model");
    processes_put_text("prompt.txt", PROMPT);
    processes_config("long.json", 2, 2, 64, 65000);
    processes_text("text", 2000);
    expect("eps train --model long.json --data text --out long --steps 1 --seq 8 --batch 1", 0);
}

static void remove_all(void)
{
    fixture_close(&fixture);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, remove_all)

/* The bytes of the first text's first n tokens, those that are no characters as U+FFFD; they hold no byte that begins a
 * longer character and is followed by one that goes on with it. */
static size_t continuation(char *out, size_t n)
{
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned char byte =
            (unsigned char)json_integer_value(json_array_get(json_object_get(first_text(), "ids"), i));
        if (byte < 0x80)
            out[used++] = (char)byte;
        else
            used += (size_t)sprintf(out + used, "\xEF\xBF\xBD");
    }
    out[used] = 0;
    return used;
}

TEST(prompt_and_continuation_are_all_that_goes_to_stdout)
{
    static const char *const sources[] = {"--prompt '" PROMPT "'", "--prompt-file prompt.txt",
                                          "--prompt-file - <prompt.txt"};
    char wanted[256] = PROMPT;
    const size_t n = strlen(PROMPT) + continuation(wanted + strlen(PROMPT), 4);

    for (int i = 0; i < COUNT(sources); i++) {
        expect(print(GENERATE "--tokens 4 --temperature 0 %s", sources[i]), 0);
        ck_assert_uint_eq(strlen(command_out()), n);
        ck_assert_mem_eq(command_out(), wanted, n);
        ck_assert_uint_eq(command_err_lines(), 1);
        ck_assert_holds(command_err(), "eps generate: 4 tokens after 17, ",
                        " tokens/s; 845.5 KiB of the 845.5 KiB of weights that a token visits stayed on the device");
    }
}

TEST(json_is_one_object_with_everything_in_it)
{
    static const char *const numbers[] = {"prompt_ms",    "tokens_ms",   "tokens_per_s",
                                          "weight_bytes", "token_bytes", "resident_bytes"};
    json_t *object = expect_json(GENERATE "--prompt '" PROMPT "' --tokens 7 --temperature 0 --json", 0),
           *ids = json_object_get(object, "ids");
    char wanted[256];

    ck_assert_str_eq(command_err(), "");
    ck_assert_str_eq(json_string_value(json_object_get(object, "prompt")), PROMPT);
    continuation(wanted, 7);
    ck_assert_str_eq(json_string_value(json_object_get(object, "text")), wanted);
    ck_assert_uint_eq(json_array_size(ids), 7);
    for (size_t i = 0; i < 7; i++)
        ck_assert(json_equal(json_array_get(ids, i), json_array_get(json_object_get(first_text(), "ids"), i)));
    ck_assert_int_eq(json_integer_value(json_object_get(object, "prompt_tokens")), 17);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "tokens")), 7);
    ck_assert(json_is_false(json_object_get(object, "ended")));
    for (int i = 0; i < COUNT(numbers); i++)
        ck_assert_msg(json_number_value(json_object_get(object, numbers[i])) > 0, "%s", numbers[i]);
    json_decref(object);
}

TEST(ids_stay_ids_where_there_is_no_tokenizer)
{
    unsigned a, b, c;

    expect("eps generate --model " TESTS_DIR "/fixtures/tied --ids 1,60,7 --tokens 3", 0);
    ck_assert_msg(sscanf(command_out(), "1 60 7 %u %u %u", &a, &b, &c) == 3 && a < 61 && b < 61 && c < 61, "%s",
                  command_out());
}

/* 512 positions: 517 tokens in all, the last of which is not looked at, fill them once. */
TEST(a_text_beyond_the_positions_says_that_the_window_moved)
{
    static const char note[] =
        "eps generate: the text is longer than the model's positions: 1 time the context was cut";

    expect(GENERATE "--prompt '" PROMPT "' --tokens 500 --temperature 0", 0);
    ck_assert_msg(strncmp(command_err(), note, sizeof note - 1) == 0, "%s", command_err());
    expect(GENERATE "--prompt '" PROMPT "' --tokens 500 --temperature 0 --json", 0, "\"slides\": 1", "\"tokens\": 500");
}

static bool has_text(void *name)
{
    struct stat st;
    return stat(name, &st) == 0 && st.st_size > 17;
}

static bool nobody_is_left(void *context)
{
    (void)context;
    return !processes_find("epsd") && !processes_find("eps-worker");
}

TEST_EACH(an_interrupt_keeps_what_was_said, 2)
{
    const char *const generate[] = {"-c",
                                    "exec " BIN_DIR "/eps generate --model long --prompt '" PROMPT
                                    "' --tokens 60000 >said 2>why",
                                    NULL};
    const int number = _i ? SIGTERM : SIGINT;

    unlink("said");
    const pid_t pid = processes_start("/bin/sh", generate, NULL);
    ck_assert(processes_until(has_text, "said"));
    ck_assert_int_eq(kill(pid, number), 0);
    ck_assert_int_eq(processes_wait(pid), 128 + number);
    ck_assert(nobody_is_left(NULL));
    expect_file("why", "eps generate: interrupted");
    ck_assert_uint_eq(processes_count("why", "\n"), 1);
    char *text = processes_read("said");
    ck_assert_int_eq(strncmp(text, PROMPT, strlen(PROMPT)), 0);
    free(text);
}

TEST(a_reader_that_has_seen_enough_ends_it_without_a_word_and_a_full_disk_is_told)
{
    expect(GENERATE "--prompt x --tokens 4 >/dev/full", 1, "eps generate: standard output", "No space left");
    expect("(eps generate --model long --tokens 60000 --prompt x; echo $? >status) | head -c 20", 0);
    ck_assert(processes_until(nobody_is_left, NULL));
    ck_assert_str_eq(command_err(), "");
    expect_file("status", "141\n");
}

/* The fixture's texts hold control characters; a terminal sees none but new lines and tabs. */
TEST(a_terminal_gets_characters_and_no_commands)
{
    static const char first[] = "\xEF\xBF\xBD[2Jx\xEF\xBF\xBD"
                                "2J";
    size_t n_marks = 0;
    const char *said =
        expect_on_terminal(GENERATE
                           "--temperature 0 --tokens 100 --prompt \"$(printf '\\033[2Jx\\302\\2332J\\t\\177.')\"",
                           0, 80);

    ck_assert_msg(strncmp(said, first, sizeof first - 1) == 0, "%s", said);
    for (const char *at = said; *at; at++) {
        const unsigned char c = (unsigned char)*at;
        ck_assert_msg((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\r' || c == '\t', "byte 0x%02x: %s", c, said);
        n_marks += c == 0xEF;
    }
    ck_assert_uint_ge(n_marks, 4);
    ck_assert_holds(said, "\neps generate: 100 tokens after "); /* on a line of its own */
}
