/* eps generate at a shell: what goes to stdout, to stderr, to a terminal, and how it ends. */
#include "tests/kit/command.h"
#include "tests/kit/fixture.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(single)

static struct fixture fixture;
static char out_file[300], err_file[300];

static void setup(void)
{
    processes_setup();
    fixture_open_model(&fixture, "generate");
    snprintf(out_file, sizeof out_file, "%s", processes_path("out"));
    snprintf(err_file, sizeof err_file, "%s", processes_path("err"));
    ck_assert_int_eq(mkdir("model", 0700), 0);
    fixture_write_model(&fixture, "model");
}

static void remove_all(void)
{
    fixture_close(&fixture);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, remove_all)

static json_t *first_text(void)
{
    return json_array_get(json_object_get(fixture.reference, "texts"), 0);
}

#define GENERATE "eps generate --model model "
#define PROMPT   "In the beginning " /* the first text's */

/* The bytes of the first text's first n tokens, those that are no characters as U+FFFD; they hold no byte that begins a
 * longer character and is followed by one that goes on with it. */
static size_t continuation(char *out, size_t n)
{
    const json_t *ids = json_object_get(first_text(), "ids");
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)json_integer_value(json_array_get(ids, i));
        if (byte < 0x80)
            out[used++] = (char)byte;
        else
            used += (size_t)sprintf(out + used, "\xEF\xBF\xBD");
    }
    return used;
}

/* The one line on stderr. */
static void check_sentence(const char *words)
{
    ck_assert_msg(strstr(command_err(), words) && command_err_lines() == 1, "no \"%s\": %s", words, command_err());
}

TEST(prompt_and_continuation_are_all_that_goes_to_stdout)
{
    static const char *const sources[] = {"--prompt '" PROMPT "'", "--prompt-file prompt.txt",
                                          "--prompt-file - <prompt.txt"};
    char wanted[256] = PROMPT;

    ck_assert_str_eq(json_string_value(json_object_get(first_text(), "prompt")), PROMPT);
    const size_t n = strlen(PROMPT) + continuation(wanted + strlen(PROMPT), 4);
    ck_assert_int_eq(system("printf '" PROMPT "' >prompt.txt"), 0);
    for (int i = 0; i < COUNT(sources); i++) {
        expect(print(GENERATE "--tokens 4 --temperature 0 %s", sources[i]), 0);
        ck_assert_uint_eq(strlen(command_out()), n);
        ck_assert_mem_eq(command_out(), wanted, n);
        check_sentence("eps generate: 4 tokens after 17, ");
        check_sentence(" tokens/s; 845.5 KiB of the 845.5 KiB of weights that a token visits stayed on the device");
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
    wanted[continuation(wanted, 7)] = 0;
    ck_assert_str_eq(json_string_value(json_object_get(object, "text")), wanted);
    ck_assert_uint_eq(json_array_size(ids), 7);
    for (size_t i = 0; i < 7; i++)
        ck_assert(json_equal(json_array_get(ids, i), json_array_get(json_object_get(first_text(), "ids"), i)));
    ck_assert_int_eq(json_integer_value(json_object_get(object, "prompt_tokens")), 17);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "tokens")), 7);
    ck_assert(json_is_false(json_object_get(object, "ended")));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
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
    static const char note[] = "eps generate: the text is longer than the model's positions: 1 time the model saw";

    expect(GENERATE "--prompt '" PROMPT "' --tokens 500 --temperature 0", 0);
    ck_assert_msg(strncmp(command_err(), note, sizeof note - 1) == 0, "%s", command_err());
    expect(GENERATE "--prompt '" PROMPT "' --tokens 500 --temperature 0 --json", 0);
    json_t *object = json_load_file(out_file, JSON_ALLOW_NUL, NULL);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "slides")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "tokens")), 500);
    json_decref(object);
}

static const struct refusal mistakes[] = {
    {GENERATE "--ids 1,2x", 2, "--ids '1,2x'", "464,2068"},
    {GENERATE "--ids ,", 2, "--ids ','", "commas"},
    {GENERATE "--ids -1", 2, "--ids '-1'", "commas"},
    {GENERATE "--ids 4294967296", 2, "--ids '4294967296'", "commas"},
    {GENERATE "--ids 256", 2, "--ids: 256 is not a token", "255"},
    {GENERATE "--ids 1 --prompt a", 2, "--ids", "give one"},
    {GENERATE "--prompt a --prompt-file b", 2, "--prompt-file", "give one"},
    {GENERATE "--prompt-file /nonexistent", 1, "--prompt-file /nonexistent", "No such file"},
    {GENERATE "--prompt-file /", 1, "--prompt-file /", "directory"},
    {GENERATE "--prompt-file /dev/null", 1, "--prompt-file /dev/null", "empty"},
    {GENERATE "--prompt-file /dev/zero", 1, "--prompt-file /dev/zero", "64 MiB"},
    {GENERATE "--prompt a --tokens 0", 2, "--tokens '0'", "1"},
    {GENERATE "--prompt a --temperature cold", 2, "--temperature 'cold'", "number"},
    {GENERATE "--prompt a --temperature -1", 2, "--temperature -1", "0"},
    {GENERATE "--prompt a --top-k 0", 2, "--top-k '0'", "1"},
    {GENERATE "--prompt a --top-p 2", 2, "--top-p 2", "1"},
    {GENERATE "--prompt \"$(printf '\\303(')\"", 1, "not UTF-8", "byte 0"},
    {GENERATE "--prompt a --connect lab --device-mem 1GiB", 2, "--device-mem", "--connect"},
};

TEST_EACH(a_mistake_is_named, COUNT(mistakes))
{
    expect_refusal(&mistakes[_i]);
}

static bool has_text(void *context)
{
    struct stat st;
    return stat(context, &st) == 0 && st.st_size > 17;
}

static bool nobody_is_left(void *context)
{
    (void)context;
    return !processes_find("epsd") && !processes_find("eps-worker");
}

/* long/latest: a model with more positions than anybody waits for. */
static void make_long(void)
{
    char command[1024];

    if (access("long", F_OK) == 0)
        return;
    processes_config("long.json", 2, 2, 64, 65000);
    snprintf(command, sizeof command,
             "%s/eps train --model long.json --data %s --out long --steps 1 --seq 8 --batch 1 >/dev/null", BIN_DIR,
             processes_text("text", 2000));
    ck_assert_int_eq(system(command), 0);
}

static void redirect(const char *path, int to)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, to);
    close(fd);
}

TEST_EACH(an_interrupt_keeps_what_was_said, 2)
{
    const int number = _i ? SIGTERM : SIGINT;
    char program[400];

    make_long();
    snprintf(program, sizeof program, "%s/eps", BIN_DIR);
    unlink(out_file);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        redirect(out_file, STDOUT_FILENO);
        redirect(err_file, STDERR_FILENO);
        execl(program, "eps", "generate", "--model", "long", "--prompt", PROMPT, "--tokens", "60000", (char *)NULL);
        _exit(127);
    }
    ck_assert(processes_until(has_text, out_file));
    ck_assert_int_eq(kill(pid, number), 0);
    ck_assert_int_eq(processes_wait(pid), 128 + number);
    ck_assert(nobody_is_left(NULL));
    char *said = processes_read(err_file), *text = processes_read(out_file);
    ck_assert_msg(strstr(said, "eps generate: interrupted") && strchr(said, '\n') == said + strlen(said) - 1, "%s",
                  said);
    ck_assert_int_eq(strncmp(text, PROMPT, strlen(PROMPT)), 0);
    free(said);
    free(text);
}

TEST(a_reader_that_has_seen_enough_ends_it_without_a_word)
{
    make_long();
    expect("(eps generate --model long --tokens 60000 --prompt x; echo $? >status) | head -c 20", 0);
    ck_assert(processes_until(nobody_is_left, NULL));
    ck_assert_str_eq(command_err(), "");
    expect("cat status", 0);
    ck_assert_str_eq(command_out(), "141\n");
}

TEST(a_full_disk_is_told)
{
    if (access("/dev/full", W_OK) == 0)
        expect(GENERATE "--prompt x --tokens 4 >/dev/full", 1, "eps generate: standard output", "No space left");
}

/* The fixture's texts hold control characters; a terminal sees none but new lines and tabs. */
TEST(a_terminal_gets_characters_and_no_commands)
{
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    char said[65536], program[400];
    size_t n = 0, n_marks = 0;
    ssize_t got;
    int fd, status;
    pid_t pid = forkpty(&fd, NULL, NULL, &size);

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        snprintf(program, sizeof program, "%s/eps", BIN_DIR);
        execl(program, "eps", "generate", "--model", "model", "--prompt",
              "\033[2Jx\xC2\x9B"
              "2J\t\x7F.",
              "--temperature", "0", "--tokens", "100", (char *)NULL);
        _exit(127);
    }
    while (n < sizeof said - 1 && (got = read(fd, said + n, sizeof said - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = 0;
    close(fd);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s", said);
    ck_assert_msg(strncmp(said,
                          "\xEF\xBF\xBD[2Jx\xEF\xBF\xBD"
                          "2J",
                          12) == 0,
                  "%s", said);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)said[i];
        ck_assert_msg((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\r' || c == '\t', "byte %zu is 0x%02x", i, c);
        n_marks += c == 0xEF;
    }
    ck_assert_uint_ge(n_marks, 4);
    ck_assert_ptr_nonnull(strstr(said, "\neps generate: 100 tokens after ")); /* on a line of its own */
}
