/* Conversations, as a user looks at them, trains on them, measures and resumes, and what is refused. The weights are
 * fresh ones of a small GPT-2 of bytes, beside a chat template. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE "--device cpu --device-mem 64MiB "
#define TRAIN   "eps train --model chat/config.json --data chat.jsonl --batch 8 --lr 3e-3 " MACHINE

static const char template[] = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}"
                               "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

/* 40 conversations of two turns; every tenth has a long question. */
static void setup(void)
{
    processes_setup();
    expect("mkdir chat bare bert", 0);
    processes_config("chat/config.json", 2, 2, 16, 128);
    processes_config("bare/config.json", 2, 2, 16, 128);
    processes_put_text("chat/chat_template.jinja", template);
    processes_put_text("bert/config.json",
                       "{\"model_type\": \"bert\", \"vocab_size\": 330, \"hidden_size\": 32, "
                       "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 64, "
                       "\"max_position_embeddings\": 32, \"hidden_act\": \"gelu\"}");
    expect(
        "for i in $(seq 40); do a=$(seq -s, 1 $((i % 10 ? i % 7 : 60))); printf '{\"messages\": [{\"role\": \"user\", "
        "\"content\": \"%s?\"}, {\"role\": \"assistant\", \"content\": \"yes %s\"}, {\"role\": \"user\", \"content\": "
        "\"so\"}, "
        "{\"role\": \"assistant\", \"content\": \"no\"}]}\\n' \"$a\" $i; done >chat.jsonl; "
        "for i in $(seq 40); do printf '{\"prompt\": \"%s+1=\", \"completion\": \"%s\"}\\n' $i $((i + 1)); done "
        ">sums.jsonl; "
        "printf '{\"text\": \"a text\"}\\n' >text.jsonl; seq 500 >plain.txt; "
        "head -c 1000 /dev/zero >ids.bin",
        0);
    expect(TRAIN "--steps 1 --out made", 0);
}

SUITE_TIMEOUT(200)
SUITE_FIXTURE_ONCE(setup, processes_remove)

static bool may_mount(void)
{
    return system("unshare -rm bash -c 'mount -t tmpfs none /dev' 2>/dev/null") == 0;
}

/* As in a container whose /dev is empty: the daemon and the worker of a run have no stdin otherwise. */
TEST_IF(a_run_needs_no_dev_null, may_mount())
{
    expect("unshare -rm bash -c 'mount -t tmpfs none /dev && mkdir /dev/shm && exec " TRAIN "--steps 1 --out bare-dev'",
           0);
}

#define QUESTION_OF(text)                                                                                              \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"" text "\"}, {\"role\": \"assistant\", \"content\": \"b\"}]"

/* The text of row i that eps data shows, with these options. */
static void shows(const char *options, size_t i, const char *want)
{
    json_t *said = expect_json(print("eps data named.jsonl --json %s", options), 0), *piece;
    char got[200] = "";
    size_t k;

    json_array_foreach(json_at(json_array_get(json_at(said, "rows"), i), "texts"), k, piece)
        strncat(got, json_string_value(piece), sizeof got - strlen(got) - 1);
    ck_assert_str_eq(got, want);
    json_decref(said);
}

/* As transformers' apply_chat_template chooses (get_chat_template). A run keeps them all, and its option. */
TEST(a_conversation_with_tools_has_the_template_of_tools)
{
#define TEMPLATE(name)                                                                                                 \
    "{% for m in messages %}" name                                                                                     \
    "{{ m.content }}{% if not loop.last %}:{% endif %}{% endfor %}{% if add_generation_prompt %}:" name "{% endif %}"
    expect("mkdir -p named/additional_chat_templates && cp chat/config.json named", 0);
    processes_put_text("named/chat_template.jinja", TEMPLATE("d"));
    processes_put_text("named/additional_chat_templates/tool_use.jinja", TEMPLATE("t"));
    processes_put_text("named/additional_chat_templates/rag.jinja", TEMPLATE("r"));
    processes_put_text("named/additional_chat_templates/broken.jinja", "{% include 'x' %}");
    processes_put_text("named.jsonl", QUESTION_OF("x") "}\n" QUESTION_OF("y") ", \"tools\": [{\"name\": \"f\"}]}\n");
    shows("--model named", 0, "dx:db");
    shows("--model named", 1, "ty:tb");
    shows("--model named --chat-template rag", 0, "rx:rb");
    shows("--model named --chat-template rag", 1, "ry:rb");
    expect("eps data named.jsonl --model named --chat-template rags", 2,
           "no chat template of this name, but default, broken, rag, tool_use");
    expect("eps data named.jsonl --model named --chat-template broken", 1, "the statement include");
    expect("eps data plain.txt --model named --chat-template rag", 2, "--chat-template is for conversations");
    expect("eps train --model named/config.json --data named.jsonl --chat-template rag --batch 2 --steps 1 --out "
           "picked " MACHINE,
           0);
    shows("--model picked/latest", 1, "ty:tb"); /* all of them were saved */
    expect("grep -q '\"chat_template\": *\"rag\"' picked/latest/training.json", 0);
    expect("eps train --resume picked --data named.jsonl --steps 2 " MACHINE, 0);
    expect("eps train --resume picked --data named.jsonl --steps 3 --chat-template tool_use " MACHINE, 2,
           "--chat-template");
    expect("eps export --model picked/latest --out exported", 0);
    shows("--model exported --chat-template default", 1, "dy:db");
    expect("for i in chat_template.jinja additional_chat_templates; do diff -r named/$i exported/$i || exit 1; done",
           0);
    expect("eps eval --model exported --data named.jsonl --chat-template rag " MACHINE, 0);
}

static double loss_of(const char *options)
{
    json_t *said = expect_json(print("eps eval %s --json " MACHINE, options), 0);
    const double loss = json_number_at(said, "loss");

    json_decref(said);
    return loss;
}

/* The name that training was given need not be given again; another one may be. */
TEST(a_trained_model_is_measured_and_asked_in_the_template_of_its_training)
{
    expect("mkdir -p asked/additional_chat_templates && cp chat/config.json asked", 0);
    processes_put_text("asked/chat_template.jinja", "{{ raise_exception('not this one') }}");
    processes_put_text("asked/additional_chat_templates/rag.jinja",
                       "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
                       "{% if add_generation_prompt %}[assistant]{% endif %}");
    expect("head -n 9 chat.jsonl >asked.jsonl && eps train --model asked/config.json --data asked.jsonl "
           "--chat-template rag --batch 2 --steps 1 --out following " MACHINE,
           0);
    expect("eps eval --model following --data asked.jsonl 2>&1 " MACHINE, 0,
           "the chat template is rag, as in the training of this model");
    expect("eps eval --model following --data asked.jsonl --chat-template default " MACHINE, 1, "not this one");
    expect("eps eval --model following --data plain.txt " MACHINE, 0); /* which needs none */
    expect("printf hi | eps chat --model following --tokens 3 2>&1", 0,
           "the chat template is rag, as in the training of this model");
    expect("printf hi | eps chat --model following --tokens 3 --chat-template default", 1, "not this one");
}

/* As a mark of transformers' that holds nothing: the row has nothing to train. */
TEST(an_empty_answer_that_a_template_marks_makes_an_unanswered_row)
{
    expect("mkdir marks && cp chat/config.json marks", 0);
    processes_put_text("marks/chat_template.jinja",
                       "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content if m.role == 'assistant' }}"
                       "{% endgeneration %}{{ m.content if m.role != 'assistant' }}{% endfor %}");
    processes_put_text("empty.jsonl", QUESTION_OF("x") "}\n"
                                                       "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                                                       "{\"role\": \"assistant\", \"content\": \"\"}]}\n");
    json_t *said = expect_json("eps data empty.jsonl --model marks --json", 0);
    ck_assert_str_eq(json_string_value(json_at(said, "rows.0.fate")), "kept");
    ck_assert_str_eq(json_string_value(json_at(said, "rows.1.fate")), "unanswered");
    json_decref(said);
}

/* By each command that reads them, once a file. */
TEST(keys_that_nobody_reads_are_told)
{
#define UNREAD(file, n) file ": the key \"id\" of " n " lines and the key \"mark\" of messages in 1 line are not read"
    expect("sed 's/{\"messages\"/{\"id\": NaN, \"messages\"/; 1s/\"content\"/\"mark\": 1, \"content\"/' chat.jsonl "
           ">marked.jsonl && head -n 9 marked.jsonl >few.jsonl",
           0);
    expect("eps data marked.jsonl --model chat --limit 0 2>&1", 0, "eps data: " UNREAD("marked.jsonl", "40"));
    json_t *said = expect_json("eps data marked.jsonl --model chat --limit 0 --json", 0);
    ck_assert_uint_eq(json_array_size(json_at(said, "notes")), 1);
    ck_assert_str_eq(json_string_value(json_at(said, "notes.0")), UNREAD("marked.jsonl", "40"));
    json_decref(said);
    expect("eps train --model chat/config.json --data marked.jsonl --eval-data few.jsonl --batch 8 --steps 1 --out "
           "told " MACHINE,
           0, "note         " UNREAD("marked.jsonl", "40"), "note         " UNREAD("few.jsonl", "9"));
    expect("eps eval --model made --data marked.jsonl 2>&1 " MACHINE, 0, "eps eval: " UNREAD("marked.jsonl", "40"));
    expect("gzip -c few.jsonl >few.jsonl.gz && printf more >>few.jsonl.gz && eps data few.jsonl.gz --model chat "
           "--limit 0 2>&1",
           0, "eps data: few.jsonl.gz: 4 bytes behind its gzip data are not read", "lines        9\n");
    expect("printf '{\"text\": \"%050d\", \"id\": 1}\\n' 1 | eps data - --model chat --seq 8 --limit 0 2>&1", 0,
           "eps data: -: the key \"id\" of 1 line is not read");
}

TEST(answers_are_learned_and_measured)
{
    expect(TRAIN "--epochs 12 --seq 96 --eval-every 10 --out run -v", 0,
           "rows         40 conversations, 3 rows held out; at --seq 96 4 unanswered and left out",
           "a tenth of the rows, drawn by the seed", "rows of at most 96 tokens", "held-out loss",
           "eps chat --model run/latest\n");
    json_t *last = expect_json("tail -n 1 run/metrics.jsonl", 0);
    json_t *first = expect_json("head -n 1 run/metrics.jsonl", 0);
    json_t *said = expect_json("eps eval --model run --data chat.jsonl --json " MACHINE, 0);
    json_t *all = expect_json("eps eval --model run --data chat.jsonl --train-on all --json " MACHINE, 0);
    json_t *alone =
        expect_json("eps eval --model run --data chat.jsonl --train-on last --long drop --json " MACHINE, 0);

    ck_assert_double_lt(json_number_at(last, "loss"), 0.7 * json_number_at(first, "loss"));
    /* 36 conversations whose question leaves room: "yes N\n" with 9 numbers of one digit and 27 of two, and "no\n". */
    ck_assert_double_eq(json_number_at(said, "tokens"), 36 * 8 + 9 + 27 * 2);
    ck_assert_double_gt(json_number_at(all, "tokens"), 3 * json_number_at(said, "tokens"));
    ck_assert_double_eq(json_number_at(alone, "tokens"), 36 * 3);
    json_decref(first), json_decref(last), json_decref(said), json_decref(all), json_decref(alone);
}

/* An epoch has 5 steps of 33 rows, so step 4 is within the first and step 8 within the second. */
TEST(a_run_that_was_stopped_within_an_epoch_ends_with_the_same_bits)
{
    expect(TRAIN "--steps 8 --save-every 4 --keep 0 --seed 3 --out whole", 0);
    expect("mkdir stopped && cp -r whole/step-4 stopped && eps train --resume stopped", 0, "continuing from");
    expect("cmp whole/step-8/model.safetensors stopped/step-8/model.safetensors && "
           "cmp whole/step-8/optimizer.safetensors stopped/step-8/optimizer.safetensors",
           0);
    expect("eps train --resume stopped --steps 9 --train-on all", 2, "--train-on");
    expect("eps train --resume stopped --steps 9 --change batch --batch 4", 2, "--change batch");
}

/* Whether special tokens that messages spell are tokens is stored with the run: else its data would be others. */
TEST(a_run_whose_messages_spell_tokens_goes_on_with_them)
{
    expect("mkdir spelled && sed 's/\"vocab_size\": *[0-9]*/\"vocab_size\": 406/' chat/config.json "
           ">spelled/config.json && "
           "cp chat/chat_template.jinja spelled && cp " TESTS_DIR
           "/fixtures/tokenizers/qwen.json spelled/tokenizer.json && "
           "sed 's/yes/<|im_end|>yes/' chat.jsonl >spelled.jsonl",
           0);
    expect("eps train --model spelled/config.json --data spelled.jsonl --split-special-tokens no --batch 4 --steps 4 "
           "--save-every 2 --keep 0 --seed 3 --out parsed " MACHINE,
           0);
    expect("mkdir again && cp -r parsed/step-2 again && eps train --resume again", 0, "continuing from");
    expect("cmp parsed/step-4/model.safetensors again/step-4/model.safetensors", 0);
    expect("eps train --resume again --steps 5 --split-special-tokens yes", 2, "--split-special-tokens");
    const double given = loss_of("--model again --data spelled.jsonl --split-special-tokens no");
    ck_assert_double_eq(loss_of("--model again --data spelled.jsonl"), given);
    ck_assert_double_ne(loss_of("--model again --data spelled.jsonl --split-special-tokens yes"), given);
    expect(
        "eps train --model spelled/config.json --data spelled.jsonl --batch 4 --steps 4 --seed 3 --out pieces " MACHINE
        "&& ! cmp -s parsed/step-4/model.safetensors pieces/latest/model.safetensors",
        0);
}

/* 36 conversations twice, and half of 40 sums, are 92 rows an epoch: 12 steps. Weights are stored, and part of what the
 * data are. */
TEST(sources_have_weights)
{
    expect("eps train --model chat/config.json --data chat.jsonl=2 sums.jsonl=0.5 --eval-data chat.jsonl --seq 96 "
           "--batch 8 --epochs 1 --out weighted " MACHINE,
           0, "steps        12 of 8 rows");
    expect_file("weighted/latest/training.json", "chat.jsonl=2\"", "sums.jsonl=0.5\"");
    expect("eps train --resume weighted --steps 13", 0, "continuing from");
    expect("eps train --resume weighted --steps 14 --data chat.jsonl sums.jsonl", 1, "not what the run was trained on");
    expect("eps train --model chat/config.json --data chat.jsonl sums.jsonl=0.00005 --eval-data chat.jsonl --seq 96 "
           "--batch 8 --steps 1 --out light " MACHINE "&& eps train --resume light --steps 2",
           0, "continuing from");
    expect("eps train --model chat/config.json --data chat.jsonl --eval-data sums.jsonl=2 --out no " MACHINE, 1,
           "--eval-data: ", "the weight 2");
    expect("eps train --model chat/config.json --data plain.txt=2 --out no " MACHINE, 1,
           "weights are for conversations");
}

/* Prompts with completions, which need no template; from standard input, compressed; beside texts. */
TEST(a_base_model_is_trained_on_prompts_with_completions)
{
    expect("gzip -c sums.jsonl | eps train --model bare/config.json --data - --batch 8 --steps 2 --out sums " MACHINE,
           0, ": 40 conversations, 4 rows held out");
    expect("mkdir folder && cp sums.jsonl text.jsonl folder && eps train --model bare/config.json --data folder "
           "--eval-data "
           "sums.jsonl --batch 8 --steps 2 --out folded " MACHINE,
           0, ": 41 conversations, 40 rows held out");
    expect("eps train --model bare/config.json --data text.jsonl plain.txt --batch 8 --steps 2 --seq 8 --out "
           "stream " MACHINE,
           0, "sequences of 8 tokens");
}

/* 8 answers are of one digit and 32 of two. */
TEST(a_preset_is_trained_on_the_rows_that_it_is_measured_on)
{
    static const char *const presets[] = {"byte-small", "text-small"};

    for (int i = 0; i < COUNT(presets); i++) {
        const char *name = presets[i];
        expect(print("eps train --model %s --data sums.jsonl --eval-data sums.jsonl --steps 2 --out of-%s " MACHINE,
                     name, name),
               0, ": 40 conversations, 40 rows held out", "of at most 8 tokens");
        json_t *last = expect_json(print("tail -n 1 of-%s/metrics.jsonl", name), 0);
        json_t *said = expect_json(print("eps eval --model of-%s --data sums.jsonl --json " MACHINE, name), 0);
        ck_assert(i > 0 || json_number_at(said, "tokens") == 8 + 32 * 2);
        ck_assert_double_eq_tol(json_number_at(last, "eval_loss"), json_number_at(said, "loss"), 1e-6);
        expect(print("eps train --resume of-%s --steps 3", name), 0, "continuing from");
        json_decref(last), json_decref(said);
    }
    expect("eps train --data - --steps 1 --pack --out of-any " MACHINE " <sums.jsonl", 0, "chosen for", "packed rows");
    expect("printf '{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\\n' >pair.jsonl; "
           "eps train --model text-small --data pair.jsonl --out no " MACHINE,
           1, "text-small is a preset");
}

/* The loss and labels of an evaluation, packed and not. */
static void same_evaluation(const char *options)
{
    json_t *one = expect_json(print("eps eval --model packed --data chat.jsonl --json " MACHINE "%s", options), 0);
    json_t *several =
        expect_json(print("eps eval --model packed --data chat.jsonl --pack --json " MACHINE "%s", options), 0);

    ck_assert_double_eq(json_number_at(one, "tokens"), json_number_at(several, "tokens"));
    ck_assert_double_eq_tol(json_number_at(one, "loss"), json_number_at(several, "loss"), 1e-6);
    json_decref(one), json_decref(several);
}

/* A step of a whole epoch, 33 conversations in as many rows or packed in 17, has the same loss and the same gradient,
 * but for the order of sums. */
TEST(packed_conversations_are_learned_and_measured_as_they_are_alone)
{
    expect(TRAIN "--batch 33 --steps 4 --seq 128 --warmup 0 --out alone", 0);
    expect(TRAIN "--batch 17 --steps 4 --seq 128 --warmup 0 --pack --out packed -v", 0,
           "rows         40 conversations, 3 documents held out; 17 packed rows of 1.9 documents, 79 % full; at --seq "
           "128 4 unanswered and left out",
           "a tenth of the conversations, drawn by the seed");
    for (int step = 1; step <= 4; step++) {
        json_t *alone = expect_json(print("sed -n '/\"step\": %d,/p' alone/metrics.jsonl", step), 0);
        json_t *packed = expect_json(print("sed -n '/\"step\": %d,/p' packed/metrics.jsonl", step), 0);
        ck_assert_double_eq(json_number_at(alone, "tokens"), json_number_at(packed, "tokens"));
        ck_assert_double_eq_tol(json_number_at(alone, "loss"), json_number_at(packed, "loss"), 1e-6);
        json_decref(alone), json_decref(packed);
    }
    same_evaluation("");
    same_evaluation("--train-on all --seq 96");
    same_evaluation("--train-on all --seq 50 --long drop --batch 3");
    same_evaluation("--train-on all --eval-tokens 300");
}

/* Packed rows of an epoch are fewer than 8 steps have. */
TEST(a_packed_run_that_was_stopped_ends_with_the_same_bits)
{
    expect(TRAIN "--steps 8 --save-every 4 --keep 0 --seed 3 --pack --out filled", 0);
    expect("mkdir refilled && cp -r filled/step-4 refilled && eps train --resume refilled", 0, "continuing from",
           "packed rows");
    expect("cmp filled/step-8/model.safetensors refilled/step-8/model.safetensors && "
           "cmp filled/step-8/optimizer.safetensors refilled/step-8/optimizer.safetensors",
           0);
    expect("eps train --resume refilled --steps 9 --change batch --batch 4", 0, "packed rows");
    expect("eps train --resume made --steps 2 --pack", 2, "--pack differs from the run's default without it");
}

/* Sums have 4 to 6 inputs, mostly 6, of which a row of 23 has room for three. What is left of it takes a short one in
 * first fit; in sequential order, only if that is the next. */
TEST(packing_follows_the_order)
{
#define PACK "eps train --model bare/config.json --data sums.jsonl --pack --seq 23 --batch 2 --steps 1 " MACHINE
    expect(PACK "--out fitted", 0, "9 packed rows of 4.0 documents, 96 % full");
    expect(PACK "--order sequential --out queued", 0, "11 packed rows of 3.3 documents, 79 % full");
}

TEST(what_a_model_sees_is_shown)
{
    expect("eps data chat.jsonl --model chat --limit 1", 0, "row 1, chat.jsonl:1: 49 tokens, 9 trained",
           "<|a|s|s|i|s|t|a|n|t|>|[[y|e|s| |1|\\n\n]]|<|u|s|e|r|>", "|[[n|o|\\n\n]]", "lines        40",
           "rows         40: at --seq 128 0 cut, 0 dropped, 4 left out", "351 of them trained",
           "longest 219; --seq 128");
    ck_assert_ptr_null(strstr(command_out(), "row 2"));
    ck_assert_ptr_null(strstr(command_out(), "\x1b"));
    expect("eps data chat.jsonl --model chat --limit 10 --long drop --seq 50", 0,
           "row 10, chat.jsonl:10: 219 tokens, 0 trained, dropped", "not seen: <|u|s|e|r");
    ck_assert_ptr_nonnull(
        strstr(expect_on_terminal("eps data chat.jsonl --model chat --limit 1", 0, 80), "\x1b[32m[[y|e|s| |1|\\n"));
    ck_assert_ptr_null(
        strstr(expect_on_terminal("NO_COLOR=1 eps data chat.jsonl --model chat --limit 1", 0, 80), "\x1b"));
    json_t *said = expect_json("eps data sums.jsonl --model bare --limit 2 --json --train-on all", 0);
    const json_t *rows = json_object_get(said, "rows"), *row = json_array_get(rows, 0);
    ck_assert_uint_eq(json_array_size(rows), 2);
    char *text = json_dumps(row, JSON_COMPACT);
    ck_assert_str_eq(
        text, "{\"row\":1,\"file\":\"sums.jsonl\",\"line\":1,\"fate\":\"kept\",\"seen\":5,\"ids\":[49,43,49,61,50],"
              "\"texts\":[\"1\",\"+\",\"1\",\"=\",\"2\"],\"trained\":[0,1,1,1,1]}");
    free(text);
    ck_assert_double_eq(json_number_at(json_object_get(said, "counts"), "rows"), 40);
    json_decref(said);
    expect("eps data plain.txt --model bare --seq 16 --limit 1", 0, "row 1: 17 tokens, 16 trained",
           "1|[[\\n\n|2|\\n\n|3");
}

/* By hand, of the sums above in the data's order: 20 inputs leave no room for 4 in a row of 23, and the tenth sum is
 * held out. A row of 4 takes sums of one digit alone. */
TEST(packed_rows_are_shown_as_training_has_them)
{
    expect(
        "eps data sums.jsonl --model bare --pack --seq 23 --order sequential --limit 2", 0,
        "row 1, 5 documents: 25 tokens, 5 trained\n---- document 1, sums.jsonl:1: 5 tokens, 1 trained\n1|+|1|=|[[2]]",
        "---- document 5, sums.jsonl:5: 5 tokens, 1 trained\n5|+|1|=|[[6]]\n\n"
        "row 2, 5 documents: 28 tokens, 7 trained\n---- document 1, sums.jsonl:6: 5 tokens, 1 trained",
        "---- document 4, sums.jsonl:9: 6 tokens, 2 trained\n9|+|1|=|[[1|0]]\n\n"
        "---- document 5, sums.jsonl:11: 7 tokens, 2 trained\n",
        "rows         40 conversations, 4 documents held out; 11 packed rows of 3.3 documents, 79 % full",
        "50 % of documents to 7");
    expect("eps data sums.jsonl --model bare --pack --seq 23 --limit 0", 0,
           "40 conversations, 4 documents held out; 9 packed rows of 4.0 documents, 96 % full");
    expect("eps data sums.jsonl --model bare --pack --seq 5 --limit 40 --eval-data sums.jsonl", 0,
           "sums.jsonl:38: 6 tokens, 1 trained, cut\n3|8|+|1|=|[[3]]\n", "40 packed rows", "at --seq 5 31 cut");
    json_t *said = expect_json("eps data sums.jsonl=2 --model bare --pack --seq 4 --seed 5 --limit 1 --json", 0);
    const json_t *row = json_array_get(json_object_get(said, "rows"), 0);
    const json_t *documents = json_object_get(row, "documents"), *line = NULL;
    ck_assert_uint_eq(json_array_size(documents), 1);
    line = json_object_get(json_array_get(documents, 0), "line");
    ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(row, "ids"), 0)),
                     '0' + json_integer_value(line));
    ck_assert_double_eq(json_number_at(said, "counts.documents"), json_number_at(said, "counts.rows"));
    ck_assert_double_eq(fmod(json_number_at(said, "counts.rows"), 2), 0);
    json_decref(said);
}

/* A row that training has is the row that is shown: another order of the same seed would have another loss. */
TEST(the_first_row_that_is_shown_is_the_first_that_is_trained)
{
    json_t *said = expect_json("eps data sums.jsonl --model bare --pack --seq 23 --seed 7 --limit 1 --json", 0);
    const json_t *documents = json_object_get(json_array_get(json_object_get(said, "rows"), 0), "documents");
    json_t *document;
    size_t i;

    expect("rm -f first.jsonl", 0);
    json_array_foreach((json_t *)(uintptr_t)documents, i, document)
        expect(print("sed -n %dp sums.jsonl >>first.jsonl", (int)json_integer_value(json_object_get(document, "line"))),
               0);
    json_decref(said);
    expect("eps train --model bare/config.json --data sums.jsonl --pack --seq 23 --seed 7 --batch 1 --steps 1 --out "
           "all-of-them " MACHINE
           "&& eps train --model bare/config.json --data first.jsonl --eval-data sums.jsonl --pack "
           "--seq 23 --order sequential --seed 7 --batch 1 --steps 1 --out only-those " MACHINE,
           0);
    expect("for run in all-of-them only-those; do sed 's/.*\\(\"loss\": *[0-9.e-]*\\).*/\\1/' $run/metrics.jsonl; done "
           ">losses; test $(sort -u losses | wc -l) = 1 && grep -q loss losses",
           0);
}

TEST(conversations_from_standard_input_are_piped_in_again)
{
    expect("cat chat.jsonl | eps train --model chat/config.json --data - --batch 4 --steps 1 --out piped " MACHINE, 0);
    expect("eps train --resume piped --steps 2", 2, "its data came from standard input", "--data -");
    expect("head -n 11 chat.jsonl | eps train --resume piped --data - --steps 2", 1,
           "is not what the run was trained on");
    expect("cat chat.jsonl | eps train --resume piped --data - --steps 2", 0, "continuing from");
}

static const struct {
    const char *command;
    int status;
    const char *words[3];
} refused[] = {
    {"eps train --model bare/config.json --data chat.jsonl " MACHINE,
     1,
     {"--data: chat.jsonl: line 1: ", "needs a chat template", "chat_template.jinja"}},
    {"eps train --model byte-small --data chat.jsonl " MACHINE, 1, {"line 1: a conversation", "--model DIR"}},
    {"eps train --model chat/config.json --data text.jsonl chat.jsonl plain.txt " MACHINE,
     1,
     {"plain.txt", "no lines of JSON"}},
    {"eps train --data sums.jsonl ids.bin " MACHINE, 1, {"--data: some files have ", "and others token ids"}},
    {"eps train --data plain.txt ids.bin --steps 1 --out mixed " MACHINE, 0, {"tokens", "loss"}},
    {"eps train --model chat/config.json --data plain.txt --train-on all " MACHINE,
     2,
     {"--train-on is for conversations"}},
    {"eps train --model chat/config.json --data plain.txt --long drop " MACHINE, 2, {"--long is for conversations"}},
    {TRAIN "--seq 64 --long refuse", 1, {"chat.jsonl: line 10: ", "more than --seq 64", "--long cut or drop"}},
    {TRAIN "--seq 8", 1, {"eps train: chat.jsonl: no conversation has an answer within --seq 8"}},
    {TRAIN "--separator eos", 2, {"--separator is not for conversations"}},
    {TRAIN "--columns 1,2", 2, {"--columns"}},
    {"head -n 1 chat.jsonl | eps train --model chat/config.json --data - " MACHINE,
     1,
     {"eps train: --data: one conversation is too few", "or --eval-data"}},
    {"eps eval --model made --data chat.jsonl --stride 4 " MACHINE, 2, {"--stride is not for conversations"}},
    {"eps eval --model made --data plain.txt --split-special-tokens no " MACHINE,
     2,
     {"--split-special-tokens is for conversations"}},
    {"eps data plain.txt --model made --split-special-tokens yes", 2, {"--split-special-tokens is for conversations"}},
    {"eps eval --model made --data plain.txt --train-on last " MACHINE, 2, {"--train-on is for conversations"}},
    {"eps train --model chat/config.json --data plain.txt --pack " MACHINE, 2, {"--pack is for conversations"}},
    {"eps eval --model made --data plain.txt --pack " MACHINE, 2, {"--pack is for conversations"}},
    {"eps train --model bert/config.json --data plain.txt --pack " MACHINE,
     2,
     {"--pack is for conversations", "predicts masked tokens"}},
    {"eps train --model bert/config.json --data plain.txt --train-on last " MACHINE,
     2,
     {"--train-on is for conversations", "predicts masked tokens"}},
    {": >empty.jsonl; eps train --model chat/config.json --data empty.jsonl " MACHINE,
     1,
     {"--data empty.jsonl is empty"}},
    {"eps train --model bert/config.json --task classify --data rows.tsv --pack " MACHINE,
     2,
     {"--pack is for models that predict tokens"}},
    {"eps plan --model bert/config.json --pack", 2, {"a bert model restores masked tokens", "--pack", "leave it out"}},
    {"eps plan --model bert/config.json --task classify --pack", 2, {"has one for each row: leave out --pack"}},
    {"eps train --model chat/config.json --data chat.jsonl=0.5 --pack " MACHINE, 1, {"--pack", "give whole weights"}},
    {TRAIN "--seq 64 --long refuse --pack", 1, {"chat.jsonl: line 10: ", "more than --seq 64", "--long cut or drop"}},
    {"eps data chat.jsonl", 2, {"--model is needed"}},
    {"eps data --model chat", 2, {"at least one file"}},
    {"eps data chat.jsonl --model chat --seq 999", 2, {"--seq 999", "128 positions"}},
    {"eps data absent.jsonl --model chat", 1, {"eps data: absent.jsonl: No such file"}},
    {"eps data plain.txt --model bare --pack", 2, {"--pack is for conversations"}},
    {"eps data plain.txt --model bare --long drop", 2, {"--long is for conversations"}},
    {"eps data sums.jsonl --model bare --seed 0", 2, {"--seed goes with --pack"}},
    {"eps data sums.jsonl --model bare --order shuffled", 2, {"--order goes with --pack"}},
    {"eps data sums.jsonl --model bare --eval-data sums.jsonl", 2, {"--eval-data goes with --pack"}},
    {"eps data sums.jsonl --model bare --pack --eval-data absent.jsonl", 1, {"--eval-data: ", "absent.jsonl"}},
    {"eps data sums.jsonl=0.5 --model bare --pack", 1, {"give whole weights"}},
    {"eps data sums.jsonl --model bare --base-model chat", 2, {"--base-model chat is for an adapter"}},
};

TEST_EACH(what_is_no_tuning_data_is_refused, COUNT(refused))
{
    expect(refused[_i].command, refused[_i].status, refused[_i].words[0], refused[_i].words[1], refused[_i].words[2]);
}
