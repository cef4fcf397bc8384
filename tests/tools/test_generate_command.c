/* eps generate at a shell: what goes to stdout, to stderr, to a terminal, and how it ends. The tokens themselves:
 * test_eps_generate. What is refused: test_cli. */
#include "client/text/utf8.h"
#include "tests/kit/command.h"
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(single)

#define GENERATE "eps generate --model model "
#define PROMPT   "In the beginning " /* the first text's */

enum { N_TOKENS = 200 };

/* The model of test_eps_generate, and its first text. */
static struct fixture fixture;
static json_t *ids_of_text;

static void setup(void)
{
    processes_setup();
    fixture_open_model(&fixture, "generate");
    ck_assert_int_eq(mkdir("model", 0700), 0);
    fixture_write_model(&fixture, "model");
    json_t *text = json_at(fixture.reference, "texts.0");
    ck_assert_str_eq(json_string_value(json_at(text, "prompt")), PROMPT);
    ids_of_text = json_at(text, "ids");
    ck_assert_uint_eq(json_array_size(ids_of_text), N_TOKENS);
    processes_put_text("prompt.txt", PROMPT);
    processes_config("long.json", 2, 2, 64, 65000); /* more positions than anybody waits for */
    processes_text("text", 2000);
    expect("eps train --model long.json --data text --out long --steps 1 --seq 8 --batch 1", 0);
}

static void remove_all(void)
{
    fixture_close(&fixture);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, remove_all)

/* The bytes of the first text's first n tokens, those that are no characters as U+FFFD. */
static void continuation(char *out, size_t n)
{
    struct client_stream stream = {0};
    const char *text;
    char bytes[N_TOKENS];
    size_t n_text;

    for (size_t i = 0; i < n; i++)
        bytes[i] = (char)json_integer_value(json_array_get(ids_of_text, i));
    ck_assert_int_eq(client_stream_push(&stream, &text, &n_text, bytes, n, true, NULL), 0);
    memcpy(out, text, n_text);
    out[n_text] = 0;
    client_stream_free(&stream);
}

TEST(prompt_and_continuation_are_all_that_goes_to_stdout)
{
    static const char *const sources[] = {"--prompt '" PROMPT "'", "--prompt-file prompt.txt",
                                          "--prompt-file - <prompt.txt"};
    char wanted[256] = PROMPT;

    continuation(wanted + strlen(PROMPT), 4);
    for (int i = 0; i < COUNT(sources); i++) {
        expect(print(GENERATE "--tokens 4 --temperature 0 %s", sources[i]), 0);
        ck_assert_str_eq(command_out(), wanted);
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
        ck_assert(json_equal(json_array_get(ids, i), json_array_get(ids_of_text, i)));
    ck_assert(json_number_at(object, "prompt_tokens") == 17 && json_number_at(object, "tokens") == 7);
    ck_assert(json_is_false(json_object_get(object, "ended")));
    for (int i = 0; i < COUNT(numbers); i++)
        ck_assert_msg(json_number_at(object, numbers[i]) > 0, "%s", numbers[i]);
    json_decref(object);
}

TEST(the_command_prints_several_texts_with_a_line_between)
{
    char wanted[2048], first[300], second[300];

    expect(GENERATE "--prompt '" PROMPT "' --tokens 4 --temperature 0", 0);
    snprintf(first, sizeof first, "%s", command_out());
    expect(GENERATE "--prompt x --tokens 4 --temperature 0", 0);
    snprintf(second, sizeof second, "%s", command_out());
    snprintf(wanted, sizeof wanted, "%s\n---\n%s\n---\n%s\n---\n%s", first, first, second, second);
    expect(GENERATE "--prompt '" PROMPT "' --prompt x --samples 2 --tokens 4 --temperature 0", 0);
    ck_assert_str_eq(command_out(), wanted);
    ck_assert_holds(command_err(), "eps generate: 16 tokens after 36 in 4 texts, ");
    json_t *list = expect_json(GENERATE "--ids 65,66 --ids 67 --tokens 2 --seed 4 --samples 2 --json", 0);
    ck_assert_uint_eq(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        ck_assert(json_number_at(list, print("%zu.prompt_tokens", i)) == (i < 2 ? 2 : 1));
        ck_assert(json_number_at(list, print("%zu.seed", i)) == (double)(4 + i % 2));
    }
    json_decref(list);
    expect(GENERATE "--prompt ok --prompt \"$(printf '\\377')\"", 1, "prompt 2: the prompt is not UTF-8");
}

TEST(a_stop_string_is_not_printed)
{
    char wanted[256] = PROMPT, whole[3 * N_TOKENS + 1], stop[8] = "";
    size_t n = 5;

    continuation(whole, N_TOKENS);
    while ((whole[n] & 0x80) || whole[n] <= ' ' || strchr("'\\\x7f", whole[n]) || memchr(whole, whole[n], n))
        n++;
    ck_assert_uint_lt(n, 100);
    stop[0] = whole[n];
    memcpy(wanted + strlen(PROMPT), whole, n);
    expect(print(GENERATE "--prompt '" PROMPT "' --temperature 0 --stop nothing --stop '%s'", stop), 0);
    ck_assert_str_eq(command_out(), wanted);
    json_t *object = expect_json(print(GENERATE "--prompt '" PROMPT "' --temperature 0 --json --stop '%s'", stop), 0);
    ck_assert(json_is_true(json_object_get(object, "stopped")) && json_is_false(json_object_get(object, "ended")));
    ck_assert_str_eq(json_string_value(json_object_get(object, "text")), wanted + strlen(PROMPT));
    json_decref(object);
}

/* Ids of a text of a model in the directory; of those, as many as n. */
static size_t end_of(uint32_t ids[12], bool *ended)
{
    json_t *object = expect_json("eps generate --model ends --ids 7,30,53 --tokens 12 --seed 3 --json", 0),
           *list = json_object_get(object, "ids");
    const size_t n = json_array_size(list);

    for (size_t i = 0; i < n && i < 12; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    *ended = json_is_true(json_object_get(object, "ended"));
    json_decref(object);
    return n;
}

/* eos_token_id: a list or a number, of generation_config.json before config.json. */
TEST(a_text_ends_at_any_end_token_of_the_model)
{
    json_t *config = json_load_file(TESTS_DIR "/fixtures/tied/config.json", 0, NULL);
    uint32_t ids[12], again[12], unused = 0;
    size_t at = 3;
    bool ended;

    expect("mkdir ends && ln -s " TESTS_DIR "/fixtures/tied/model.safetensors ends", 0);
    json_object_set_new(config, "eos_token_id", json_null());
    ck_assert_int_eq(json_dump_file(config, "ends/config.json", 0), 0);
    ck_assert_uint_eq(end_of(ids, &ended), 12);
    ck_assert(!ended);
    for (size_t i = 0; i < at; i++) /* the first token from the fourth on that was not there before */
        if (ids[i] == ids[at])
            i = (size_t)-1, at++;
    ck_assert_uint_lt(at, 12);
    for (size_t i = 0; i < 12; i++)
        if (ids[i] == unused)
            i = (size_t)-1, unused++;
    const char *const ends[] = {print("[%u, 1000000, -1, \"x\", %u]", unused, ids[at]), print("%u", ids[at])};
    for (int i = 0; i < 2; i++) {
        processes_put_text("ends/generation_config.json", print("{\"eos_token_id\": %s}", ends[i]));
        ck_assert_uint_eq(end_of(again, &ended), at + 1);
        ck_assert(ended);
        ck_assert_mem_eq(again, ids, (at + 1) * sizeof *ids);
    }
    json_object_set_new(config, "eos_token_id", json_pack("[i,i]", (int)unused, (int)ids[0]));
    ck_assert_int_eq(json_dump_file(config, "ends/config.json", 0), 0);
    ck_assert_uint_eq(end_of(again, &ended), at + 1);
    unlink("ends/generation_config.json");
    ck_assert_uint_eq(end_of(again, &ended), 1);
    json_decref(config);
}

/* What a model whose generation_config.json is this writes with these options, is what one without writes with those.
 * The note says what was taken; none: nothing was. */
#define DRAW "--seed 3 --tokens 24 --prompt 'In the' "
static const struct {
    const char *settings, *options, *same, *note;
} drawn[] = {
    {"{'do_sample': true, 'temperature': 0.5, 'top_k': 3, 'top_p': 0.9}", "", "--temperature 0.5 --top-k 3 --top-p 0.9",
     "drawn as generation_config.json says: temperature 0.5, top-k 3, top-p 0.9\n"},
    {"{'temperature': 0.5, 'top_k': 3, 'top_p': 0.9}", "--top-k 9", "--temperature 0.5 --top-k 9 --top-p 0.9",
     "says: temperature 0.5, top-p 0.9\n"},
    {"{'temperature': 0.5, 'top_k': 3, 'top_p': 0.9}", "--temperature 2", "--temperature 2 --top-k 3 --top-p 0.9",
     "says: top-k 3, top-p 0.9\n"},
    {"{'temperature': 0.5, 'top_k': 3, 'top_p': 0.9}", "--temperature 1 --top-k 0 --top-p 1", "", NULL},
    {"{'temperature': 0.5, 'top_k': 3, 'top_p': 0.9}", "--temperature 0", "--temperature 0", NULL},
    {"{'do_sample': false, 'temperature': 0.5}", "", "--temperature 0", "the likeliest token always, as"},
    {"{'do_sample': false, 'top_k': 3}", "--temperature 0.5", "--temperature 0.5 --top-k 3", "says: top-k 3\n"},
    {"{'do_sample': false, 'temperature': 0.5}", "--min-p 0.1", "--temperature 0.5 --min-p 0.1",
     "says: temperature 0.5\n"},
    {"{'eos_token_id': 7, 'temperature': null}", "", "", NULL},
    {"not JSON", "", "", NULL},
    {"{'temperature': 0.5, 'top_k': 3}", "--beams 2", "--beams 2",
     "what generation_config.json says of drawing is ignored"},
};

static char *drawn_text(const char *model, const char *options)
{
    const char *const seed = strstr(options, "--beams") ? strchr(DRAW, '-') + strlen("--seed 3 ") : DRAW;

    expect(print("eps generate --model %s %s%s", model, seed, options), 0);
    return strdup(command_out());
}

TEST_EACH(a_model_says_how_it_is_drawn_from_unless_an_option_does, COUNT(drawn))
{
    expect("rm -rf tuned && cp -r model tuned", 0);
    char *want = drawn_text("tuned", drawn[_i].same); /* without the file */
    processes_put_text("tuned/generation_config.json", quoted(drawn[_i].settings));
    char *text = drawn_text("tuned", drawn[_i].options);
    ck_assert_str_eq(text, want);
    if (drawn[_i].note)
        ck_assert_holds(command_err(), drawn[_i].note);
    else
        ck_assert_ptr_null(strstr(command_err(), "generation_config"));
    free(text), free(want);
}

TEST(what_a_model_cannot_mean_is_refused_with_the_option_that_mends_it)
{
    static const char *const wrong[][2] = {
        {"{'temperature': -1}", "temperature -1 is not 0 or more: mend it, or give --temperature"},
        {"{'temperature': 'hot'}", "temperature is not a number: mend it, or give --temperature"},
        {"{'top_k': 1.5}", "top_k 1.5 is not a count of tokens: mend it, or give --top-k"},
        {"{'top_p': 0}", "top_p 0 is not above 0 and at most 1: mend it, or give --top-p"},
    };

    expect("cp -r model wrong", 0);
    for (int i = 0; i < COUNT(wrong); i++) {
        processes_put_text("wrong/generation_config.json", quoted(wrong[i][0]));
        expect("eps generate --model wrong " DRAW, 1, print("generation_config.json: %s", wrong[i][1]));
        expect("eps generate --model wrong " DRAW "--temperature 1 --top-k 5 --top-p 0.5", 0);
    }
}

TEST(ids_stay_ids_where_there_is_no_tokenizer)
{
    unsigned a, b, c;

    expect("eps generate --model " TESTS_DIR "/fixtures/tied --ids 1,60,7 --tokens 3", 0);
    ck_assert_msg(sscanf(command_out(), "1 60 7 %u %u %u", &a, &b, &c) == 3 && a < 61 && b < 61 && c < 61, "%s",
                  command_out());
}

/* 512 positions, of which the prompt takes 17, and the last token is not looked at: 496 tokens fill them. */
TEST(a_text_beyond_the_positions_says_that_the_window_moved)
{
    static const char note[] =
        "eps generate: the text is longer than the model's positions: 1 time the context was cut";

    expect(GENERATE "--prompt '" PROMPT "' --tokens 497 --temperature 0", 0);
    ck_assert_msg(strncmp(command_err(), note, sizeof note - 1) == 0, "%s", command_err());
    expect(GENERATE "--prompt '" PROMPT "' --tokens 496 --temperature 0 --json", 0, "\"slides\": 0", "\"tokens\": 496");
    for (unsigned slides = 0; slides < 2; slides++) /* and with a prompt that does */
        expect(print(GENERATE "--prompt \"$(head -c %u text)\" --tokens 1 --json", 512 + slides), 0,
               print("\"slides\": %u", slides));
}

static bool has_text(void *name)
{
    struct stat st;
    return stat(name, &st) == 0 && st.st_size > 17;
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
    ck_assert(processes_nobody());
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
    processes_await_nobody();
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
