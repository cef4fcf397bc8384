/* Conversations: each answer is what eps_generate makes of the template's text; what is kept of the turns before, what
 * is dropped; and eps chat at a shell. Templates themselves: test_template. */
#include "tests/kit/command.h"
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(single)

/* The byte model of test_eps_generate, 512 positions, with a template; `long` has more positions than anybody waits
 * for. */
#define TEMPLATE                                                                                                       \
    "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('not that') }}{% endif %}"                    \
    "[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"

enum { MOST = 4096 };

static struct fixture fixture;

static void setup(void)
{
    processes_setup();
    fixture_open_model(&fixture, "generate");
    ck_assert_int_eq(mkdir("model", 0700), 0);
    fixture_write_model(&fixture, "model");
    expect("cp -r model base", 0);
    processes_put_text("model/chat_template.jinja", TEMPLATE);
    expect("eps export --model model --out copy", 0); /* the template goes along */
    processes_config("long.json", 2, 2, 64, 65000);
    processes_text("text", 2000);
    expect("eps train --model long.json --data text --out run --steps 1 --seq 8 --batch 1 && "
           "eps export --model run/latest --out long && cp model/chat_template.jinja long",
           0);
    /* The same with a tokenizer of 600 tokens, of which <|endoftext|> is special. */
    expect("mkdir tokens && cp " TESTS_DIR "/fixtures/bpe/tokenizer.json tokens && "
           "sed 's/\"vocab_size\": *[0-9]*/\"vocab_size\": 600/; s/65000/512/' long.json > tokens/config.json && "
           "eps train --model tokens/config.json --data text --out special.run --steps 1 --seq 8 --batch 1 && "
           "eps export --model special.run/latest --out special && cp model/chat_template.jinja special",
           0);
}

static void remove_all(void)
{
    fixture_close(&fixture);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, remove_all)

struct heard {
    char text[MOST];
    size_t n;
    size_t stop_at; /* bytes; 0: never */
};

static void on_text(void *user, const char *text, size_t n)
{
    struct heard *h = user;

    ck_assert_uint_lt(h->n + n, MOST);
    memcpy(h->text + h->n, text, n);
    h->n += n;
    h->text[h->n] = 0;
}

static int should_stop(void *user)
{
    const struct heard *h = user;
    return h->stop_at > 0 && h->n >= h->stop_at;
}

static const struct eps_chat_events events = {.on_text = on_text, .should_stop = should_stop};

static void on_token(void *user, uint32_t id, const char *text, size_t n)
{
    (void)id;
    on_text(user, text, n);
}

/* Appends to a text that may hold zero bytes. */
static void add(struct heard *text, const char *bytes, size_t n)
{
    on_text(text, bytes, n);
}

static void add_string(struct heard *text, const char *string)
{
    add(text, string, strlen(string));
}

static void check_same(const struct heard *a, const struct heard *b)
{
    ck_assert_uint_eq(a->n, b->n);
    ck_assert_mem_eq(a->text, b->text, a->n);
}

static struct eps_sampling drawn(double temperature, uint64_t seed)
{
    return (struct eps_sampling){
        .temperature = temperature, .top_p = NAN, .min_p = NAN, .repetition_penalty = 1.1, .seed = seed};
}

/* What eps_generate makes of a prompt. */
static void generate(struct heard *h, const struct eps_chat_options *chat, const struct heard *prompt)
{
    const struct eps_generate_events on = {.on_token = on_token};
    const struct eps_prompt text = {.text = prompt->text, .n_bytes = prompt->n};
    const struct eps_generate_options options = {.model = chat->model,
                                                 .programs = BIN_DIR,
                                                 .prompts = &text,
                                                 .n_prompts = 1,
                                                 .n_tokens = chat->n_tokens,
                                                 .sampling = chat->sampling};
    struct eps_generated out;
    struct eps_error error;

    *h = (struct heard){.n = 0};
    ck_assert_msg(eps_generate(&out, &options, &on, h, &error) == 0, "%s", error.text);
}

static struct eps_chat *open_chat(const struct eps_chat_options *options, struct heard *h)
{
    struct eps_chat *chat;
    struct eps_error error;

    ck_assert_msg(eps_chat_open(&chat, options, &events, h, &error) == 0, "%s", error.text);
    return chat;
}

static struct eps_answer say(struct eps_chat *chat, struct heard *h, const char *text)
{
    struct eps_answer answer;
    struct eps_error error;

    *h = (struct heard){.stop_at = h->stop_at};
    ck_assert_msg(eps_chat_say(&answer, chat, text, strlen(text), &error) == 0, "%s", error.text);
    return answer;
}

/* Greedy, and drawn: a draw depends on seed and position alone. */
TEST_EACH(each_answer_is_the_continuation_of_the_conversation_so_far, 2)
{
    static const char *const said[] = {"Hello", "What is \xE2\x82\xAC 5?\nTell me.", "Bye"};
    const struct eps_chat_options options = {
        .model = "model", .programs = BIN_DIR, .system = "Be brief.", .n_tokens = 40, .sampling = drawn(_i, 5)};
    struct heard h = {.n = 0}, alone, conversation = {.n = 0};
    struct eps_chat *chat = open_chat(&options, &h);

    add_string(&conversation, "[system]Be brief.\n");
    for (int i = 0; i < COUNT(said); i++) {
        const size_t before = conversation.n;
        struct eps_answer answer = say(chat, &h, said[i]);
        add_string(&conversation, print("[user]%s\n[assistant]", said[i]));
        generate(&alone, &options, &conversation);
        check_same(&h, &alone);
        ck_assert_uint_eq(answer.n_prompt, conversation.n);
        ck_assert_uint_eq(answer.n_tokens, 40);
        ck_assert(!answer.ended && !answer.stopped && !answer.full && !answer.interrupted && answer.n_dropped == 0);
        ck_assert(i == 0 ? answer.n_reused == 0 : answer.n_reused >= 30);
        ck_assert_uint_le(answer.n_reused, before);
        add(&conversation, h.text, h.n);
        add_string(&conversation, "\n");
    }
    eps_chat_close(chat);
    ck_assert(processes_nobody());
}

/* As in training: the token that a user types ends no text. By hand: split it is <, |, endoftext's pieces, | and >; as
 * a token it is one, as the letter a is. */
TEST(a_special_token_in_a_message_is_text_unless_it_is_asked_for)
{
    struct eps_chat_options options = {.model = "special", .programs = BIN_DIR, .n_tokens = 1, .sampling = drawn(0, 1)};
    uint32_t n_prompt[3];

    for (int i = 0; i < 3; i++) {
        options.split_special_tokens = i == 1 ? EPS_SPLIT_NO : i == 2 ? EPS_SPLIT_YES : EPS_SPLIT_DEFAULT;
        struct heard h = {.n = 0};
        struct eps_chat *chat = open_chat(&options, &h);
        n_prompt[i] = say(chat, &h, "<|endoftext|>").n_prompt;
        eps_chat_close(chat);
        chat = open_chat(&options, &h);
        const uint32_t of_a_letter = say(chat, &h, "a").n_prompt;
        ck_assert(i == 1 ? n_prompt[i] == of_a_letter : n_prompt[i] > of_a_letter + 4);
        eps_chat_close(chat);
    }
    ck_assert_uint_eq(n_prompt[0], n_prompt[2]);
    ck_assert(processes_nobody());
}

/* Of 100 tokens a quarter is kept for the answer. By hand: "[user]one\n[assistant]" has 21 bytes, an answer of 20
 * tokens has 20 to 60 bytes. */
TEST(a_full_context_loses_its_oldest_turns_and_keeps_the_system_message)
{
    const struct eps_chat_options options = {
        .model = "model", .programs = BIN_DIR, .system = "S", .context = 100, .n_tokens = 20, .sampling = drawn(0, 0)};
    struct heard h = {.n = 0}, alone, conversation = {.n = 0};
    struct eps_chat *chat = open_chat(&options, &h);
    struct eps_answer answer;
    struct eps_error error;
    char text[200] = "";

    ck_assert_uint_eq(say(chat, &h, "one").n_dropped, 0);
    memset(text, 'x', 45); /* with the first turn: 10 + 21 + 20 + 1 + 63 at least */
    answer = say(chat, &h, text);
    ck_assert_uint_eq(answer.n_dropped, 2);
    add_string(&conversation, print("[system]S\n[user]%s\n[assistant]", text));
    generate(&alone, &options, &conversation);
    check_same(&h, &alone);
    memset(text, 'x', 100); /* alone too long: nothing is lost by it */
    ck_assert_int_eq(eps_chat_say(&answer, chat, text, 100, &error), -E2BIG);
    ck_assert_holds(error.text, "the message makes 128 tokens, and the context has 100: shorten it");
    ck_assert_int_eq(eps_chat_say(&answer, chat, "no", 2, &error), -EINVAL);
    ck_assert_holds(error.text, "the chat template: line 1, column ", "refuses this conversation: not that");
    ck_assert_int_eq(eps_chat_say(&answer, chat, "\xC3", 1, &error), -EINVAL);
    ck_assert_holds(error.text, "the message is not UTF-8 text: byte 0 is 0xC3");
    ck_assert_uint_eq(say(chat, &h, "a").n_dropped, 2);
    memset(text, 'x', 70); /* leaves 2 of 100: the third token is drawn after the last of them */
    text[70] = 0;
    answer = say(chat, &h, text);
    ck_assert(answer.full && answer.n_prompt == 98 && answer.n_tokens == 3);
    eps_chat_close(chat);
}

TEST(an_answer_can_be_cut_and_stays_as_it_was_shown)
{
    struct eps_chat_options options = {.model = "model", .programs = BIN_DIR, .n_tokens = 20, .sampling = drawn(0, 0)};
    struct heard h = {.stop_at = 7}, alone, conversation = {.n = 0};
    struct eps_chat *chat = open_chat(&options, &h);
    struct eps_answer answer = say(chat, &h, "Hello");

    ck_assert(answer.interrupted && answer.n_tokens < 20);
    add_string(&conversation, "[user]Hello\n[assistant]");
    add(&conversation, h.text, h.n);
    add_string(&conversation, "\n[user]b\n[assistant]");
    h.stop_at = 0;
    say(chat, &h, "b");
    generate(&alone, &options, &conversation);
    check_same(&h, &alone);
    eps_chat_close(chat);
}

/* A line is a message, but """ begins several lines; each answer ends its line. */
TEST(lines_are_messages_and_answers_are_all_of_stdout)
{
    const struct eps_chat_options options = {.model = "model", .n_tokens = 8, .sampling = drawn(0, 0)};
    struct heard h, conversation = {.n = 0}, wanted = {.n = 0};

    add_string(&conversation, "[user]one\n[assistant]");
    generate(&h, &options, &conversation);
    add(&conversation, h.text, h.n), add(&wanted, h.text, h.n), add_string(&wanted, "\n");
    const size_t n_first = wanted.n;
    add_string(&conversation, "\n[user]\ntwo\n\n  lines\n[assistant]");
    generate(&h, &options, &conversation);
    add(&wanted, h.text, h.n), add_string(&wanted, "\n");
    processes_write("wanted", wanted.text, wanted.n);
    processes_write("first", wanted.text, n_first);
    expect("printf 'one\\n\\n\"\"\"\\n\"\"\"\\n\"\"\"\\n\\ntwo\\n\\n  lines\\n\"\"\"\\n' | "
           "eps chat --model copy --temperature 0 --tokens 8 | cmp - wanted",
           0);
    ck_assert_str_eq(command_err(), "");
    expect("printf one | eps chat --model model --temperature 0 --tokens 8 | cmp - first", 0);
    expect("eps chat --model model </dev/null", 0);
    ck_assert_str_eq(command_out(), "");
}

/* As its generation_config.json asks for: the likeliest token always, or drawn among the 2 likeliest. */
TEST(a_conversation_is_drawn_as_the_model_says)
{
    static const struct {
        const char *settings, *options, *note;
    } cases[] = {{"{'do_sample': false}", "--temperature 0", "the likeliest token always"},
                 {"{'do_sample': true, 'temperature': 1.5, 'top_k': 2}", "--temperature 1.5 --top-k 2",
                  "drawn as generation_config.json says: temperature 1.5, top-k 2"}};

    for (size_t i = 0; i < COUNT(cases); i++) {
        expect(print("rm -rf tuned; cp -r model tuned && echo hi | eps chat --model tuned --tokens 12 %s >want",
                     cases[i].options),
               0);
        processes_put_text("tuned/generation_config.json", quoted(cases[i].settings));
        expect("echo hi | eps chat --model tuned --tokens 12 >got", 0);
        ck_assert_holds(command_err(), cases[i].note);
        expect("cmp want got", 0);
    }
}

TEST(what_cannot_be_said_is_refused_in_a_sentence)
{
    static const struct refusal refusals[] = {
        {"echo a | eps chat --model base", 1, "has no chat template", "use eps generate"},
        {"echo a | eps chat --model model --connect nobody --wait 0", 1, "no daemon nobody: start one", NULL},
        {"echo a | eps chat --model " TESTS_DIR "/fixtures/tied", 1, "has no tokenizer", NULL},
        {"echo a | eps chat --model model --context 513", 2, "--context 513 is more than the model's 512 positions",
         NULL},
        {"echo a | eps chat --model model --stop ''", 2, "--stop is empty", NULL},
        {"echo a | eps chat --model model --temperature -1", 2, "--temperature", NULL},
        {"echo no | eps chat --model model", 1, "the chat template: line 1", "not that"},
        {"printf '\\303\\n' | eps chat --model model", 1, "not UTF-8", NULL},
        {"echo a | eps generate --model base --stop \"$(printf '\\303')\"", 2, "--stop", "not UTF-8"},
        {"echo a | eps generate --model " TESTS_DIR "/fixtures/tied --ids 1 --stop a", 2, "--stop needs a text", NULL},
    };

    for (int i = 0; i < COUNT(refusals); i++)
        expect_refusal(&refusals[i]);
    processes_put_text("base/chat_template.jinja", "{% include 'x' %}");
    expect_sentence("echo a | eps chat --model base", 1,
                    "chat_template.jinja: line 1, column 4: the statement include");
    expect_sentence("echo a | eps chat --model model --tokens 2 >/dev/full", 1, "standard output: No space left");
    ck_assert(processes_nobody());
}

static off_t size_before;

static bool has_more(void *name)
{
    struct stat st;
    return stat(name, &st) == 0 && st.st_size > size_before;
}

static void await_text(void)
{
    struct stat st;

    size_before = stat("answers", &st) == 0 ? st.st_size : 0;
    ck_assert(processes_until(has_more, "answers"));
}

static bool is_read(void *fifo)
{
    int n = -1;
    return ioctl(*(int *)fifo, FIONREAD, &n) == 0 && n == 0;
}

/* It is read once the answer before it has ended. */
static void type(int said, const char *line)
{
    ck_assert_int_eq(write(said, line, strlen(line)), (ssize_t)strlen(line));
    ck_assert(processes_until(is_read, &said));
}

/* One interrupt ends an answer of 60,000 tokens, and the conversation goes on; one while no answer is being written, or
 * SIGTERM, ends it all. */
TEST_EACH(an_interrupt_ends_the_answer_and_another_the_conversation, 2)
{
    const char *const chat[] = {"-c", "exec " BIN_DIR "/eps chat --model long --context 60000 <said >>answers 2>why",
                                NULL};
    const int number = _i ? SIGTERM : SIGINT;

    unlink("said"), unlink("answers");
    ck_assert_int_eq(mkfifo("said", 0600), 0);
    const pid_t pid = processes_start("/bin/sh", chat, NULL);
    const int said = open("said", O_WRONLY);
    type(said, "one\n");
    await_text();
    ck_assert_int_eq(kill(pid, SIGINT), 0);
    type(said, "two\n");
    await_text();
    if (number == SIGINT) {
        ck_assert_int_eq(kill(pid, SIGINT), 0);
        type(said, "\n"); /* no message: it waits for one */
    }
    ck_assert_int_eq(kill(pid, number), 0);
    ck_assert_int_eq(processes_wait(pid), 128 + number);
    close(said);
    processes_await_nobody();
    expect_absent("why", "eps chat: ");
}

TEST(a_terminal_gets_characters_and_no_commands)
{
    processes_put_text("prompt", "In the beginning\n");
    const char *shown = expect_on_terminal("eps chat --model model --tokens 60 --temperature 0 <prompt", 0, 80);

    for (const char *at = shown; *at; at++) {
        const unsigned char c = (unsigned char)*at;
        ck_assert_msg((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\r' || c == '\t', "byte 0x%02x: %s", c, shown);
    }
}

/* The rest of its line behind a text on the terminal; until the second call after it. */
static const char *answer_behind(const char *shown, const char *text)
{
    static char answers[2][200];
    static int k;
    const char *at = strstr(shown, text);

    ck_assert_msg(at != NULL, "no '%s' in %s", text, shown);
    at += strlen(text);
    k = !k;
    snprintf(answers[k], sizeof answers[k], "%.*s", (int)strcspn(at, "\r\n"), at);
    return answers[k];
}

/* Whom one speaks with, how one ends, and commands; a slash between quotation marks is text, as it is in a pipe. The
 * answer after /clear is that of a conversation which begins with it. */
TEST(a_person_at_a_terminal_has_a_head_and_commands)
{
    static const char head[] = "Ctrl-D ends the conversation, /help lists the commands.\r\n> ";
    const char *shown = expect_typed("eps chat --model model --tokens 8 --temperature 0", 0, 80,
                                     "/help\n/sistem x\none\n/clear\n/system S\ntwo\n\"\"\"\n/exit\n\"\"\"\n/exit\n");

    ck_assert_holds(shown, "model\033[0m: gpt2, ", " parameters, 512 tokens of context\r\n", head);
    ck_assert_holds(shown, "  /clear          forget all messages", "  /system TEXT    set the system message",
                    "  /exit           end the conversation");
    ck_assert_holds(shown, "/sistem is no command: /help lists them", "All messages are forgotten");
    const char *answer = answer_behind(shown, "The system message is set, from the next answer on.\r\n> ");
    ck_assert_holds(answer_behind(shown, "> ... ... "), ""); /* the answer to "/exit" */
    shown = expect_typed("eps chat --model model --system S --tokens 8 --temperature 0", 0, 80, "two\n\004");
    ck_assert_str_eq(answer_behind(shown, head), answer);
    ck_assert_uint_gt(strlen(answer), 3);
    expect("echo /exit | eps chat --model model --tokens 8 --temperature 0 >told && [ -s told ]", 0);
    ck_assert(processes_nobody());
}

/* As if the conversation had begun so. */
TEST(a_conversation_can_be_cleared_and_given_another_system_message)
{
    const struct eps_chat_options options = {
        .model = "model", .programs = BIN_DIR, .system = "Be brief.", .n_tokens = 20, .sampling = drawn(0, 1)};
    struct heard h = {.n = 0}, alone, conversation;
    struct eps_chat *chat = open_chat(&options, &h);
    struct eps_error error;

    say(chat, &h, "one");
    for (int i = 0; i < 3; i++) {
        static const char *const systems[] = {NULL, "S", ""}; /* as it was, another one, none */
        eps_chat_clear(chat);
        if (systems[i])
            ck_assert_int_eq(eps_chat_set_system(chat, systems[i], strlen(systems[i]), &error), 0);
        conversation = (struct heard){.n = 0};
        if (i < 2)
            add_string(&conversation, print("[system]%s\n", i ? "S" : "Be brief."));
        add_string(&conversation, "[user]two\n[assistant]");
        generate(&alone, &options, &conversation);
        say(chat, &h, "two");
        check_same(&h, &alone);
    }
    ck_assert_int_eq(eps_chat_set_system(chat, "\xC3", 1, &error), -EINVAL);
    ck_assert_str_eq(error.text, "the system message is not UTF-8 text");
    const struct eps_chat_facts facts = eps_chat_facts(chat);
    ck_assert_str_eq(facts.model_type, "gpt2");
    ck_assert(facts.context == 512 && facts.n_parameters > 1000);
    eps_chat_close(chat);
}
