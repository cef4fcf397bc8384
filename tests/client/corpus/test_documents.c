/* Documents from .jsonl files: layouts of tuning data, rows and labels, what becomes of long ones, and what is refused
 * with its file and line. A byte is a token; the template is "<role>content", with a stop after an answer. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/corpus/documents.h"
#include "client/task/document_rows.h"
#include "client/corpus/layouts.h"
#include "client/task/source.h"
#include "client/text/conversation.h"
#include "proto/model/family.h"
#include "proto/model/gpt2.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

static const char template[] = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}"
                               "{% if m.role == 'assistant' %}{{ '.' }}{% endif %}{% endfor %}"
                               "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

/* Of the last call. */
static struct client_corpus documents;
static struct client_data data;

static int read_files(const char *const *names, size_t n, struct error *err)
{
    json_t *side = json_pack("{s:s}", "chat_template.jinja", template);
    struct client_documents_rules rules = {.side = side, .train_on = EPS_TRAIN_ON_ANSWERS};

    ck_assert_int_eq(client_tokenizer_open(&rules.tokenizer, side, NULL, 256, NULL), 0);
    ck_assert_msg(client_data_open(&data, names, n, err) == 0, "%s", err->text);
    const int rc = client_documents_read(&documents, &data, &rules, err);
    client_tokenizer_close(rules.tokenizer);
    json_decref(side);
    return rc;
}

static void forget(void)
{
    client_corpus_free(&documents);
    client_data_free(&data);
}

/* The text of document k, with what is trained in brackets. */
static void spell(char *out, size_t k)
{
    uint32_t ids[400];
    const uint32_t n = client_document_inputs(&documents.list[k]) + 1;

    ck_assert_int_eq(client_corpus_tokens(&documents, ids, k, n, NULL), 0);
    for (uint32_t i = 0; i < n; i++) {
        const bool now = ids[i] & CLIENT_TOKEN_TRAINED, before = i > 0 && ids[i - 1] & CLIENT_TOKEN_TRAINED;
        const bool next = i + 1 < n && ids[i + 1] & CLIENT_TOKEN_TRAINED;
        out += sprintf(out, "%s%c%s", now && !before ? "[" : "", (char)(ids[i] & 0xFF), now && !next ? "]" : "");
    }
}

static const struct {
    const char *line, *want;
} layouts[] = {
    {"{\"messages\": null, \"instruction\": null, \"chosen\": null, \"rejected\": null, \"chat_template_kwargs\": "
     "null, "
     "\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}",
     "<user>a<assistant>[b.]"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
     "<user>a<assistant>[b.]"},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, "
     "{\"role\": \"user\", "
     "\"content\": \"c\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"d\"}]}",
     "<user>a<assistant>b.<user>c<assistant>[d.]"},
    {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}], "
     "\"system\": \"s\"}",
     "<system>s<user>a<assistant>[b.]"},
    {"{\"conversations\": [{\"role\": \"user\", \"content\": \"a\"}, {\"from\": \"function_call\", \"value\": \"b\", "
     "\"train\": "
     "false}, {\"from\": \"observation\", \"value\": \"c\"}, {\"from\": \"gpt\", \"value\": \"d\"}]}",
     "<user>a<assistant>b.<tool>c<assistant>[d.]"},
    {"{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}", "<user>a\nb<assistant>[c.]"},
    {"{\"instruction\": \"a\", \"input\": \"\", \"output\": \"c\", \"system\": \"s\", \"history\": [[\"x\", \"y\"]]}",
     "<system>s<user>x<assistant>[y.]<user>a<assistant>[c.]"},
    {"{\"prompt\": \"2+2=\", \"completion\": \"4\"}", "2+2=[4]"},
    {"{\"text\": \"one\"}", "o[ne]"},
    {"{\"id\": 12345678901234567890, \"score\": NaN, \"messages\": [{\"role\": \"user\", \"content\": \"a\", \"at\": "
     "1e400}, "
     "{\"role\": \"assistant\", \"content\": \"b\"}]}",
     "<user>a<assistant>[b.]"},
};

TEST_EACH(layouts_of_tuning_data_are_read, COUNT(layouts))
{
    const char *path = processes_put_text("one.jsonl", layouts[_i].line);
    struct error err = {""};
    char got[400] = "";
    const struct client_source_ops *are = NULL;

    ck_assert_msg(read_files(&path, 1, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(documents.n, 1);
    spell(got, 0);
    ck_assert_str_eq(got, layouts[_i].want);
    ck_assert_int_eq(client_source_find_documents(&are, &data, NULL, NULL), 0);
    ck_assert_ptr_eq(are, strstr(layouts[_i].line, "\"text\"") ? NULL /* a text alone is a stream's */
                                                               : &client_source_conversations);
    forget();
}

/* "<user>a?b\nc<assistant>d.", in which the third of the user's characters is zero. */
TEST(a_zero_character_in_a_text_ends_it_nowhere)
{
    const char *path =
        processes_put_text("zero.jsonl", "{\"instruction\": \"a\\u0000b\", \"input\": \"c\", \"output\": \"d\"}");
    struct error err = {""};
    uint32_t ids[24];

    ck_assert_msg(read_files(&path, 1, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(client_document_inputs(&documents.list[0]) + 1, COUNT(ids));
    ck_assert_int_eq(client_corpus_tokens(&documents, ids, 0, COUNT(ids), NULL), 0);
    ck_assert(ids[6] == 'a' && ids[7] == 0 && ids[8] == 'b' && ids[10] == 'c');
    forget();
}

/* A text whose file begins with a conversation is a row of its own; its file counts by its first line that is not
 * empty. */
TEST(texts_and_conversations_may_share_a_run_that_begins_with_one)
{
    const char *paths[] = {processes_put_text("texts.jsonl", "{\"text\": \"one\"}\n"),
                           processes_put_text("mixed.jsonl",
                                              "\n{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"text\": \"two\"}\n")};
    struct error err = {""};
    const struct client_source_ops *are = NULL;

    ck_assert_msg(read_files(paths, 2, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(documents.n, 3);
    ck_assert_uint_eq(documents.n_lines, 3);
    ck_assert(documents.list[1].file == 1 && documents.list[1].line == 2 && documents.list[2].line == 3);
    ck_assert_int_eq(client_source_find_documents(&are, &data, NULL, NULL), 0);
    ck_assert_ptr_eq(are, &client_source_conversations);
    forget();
}

static const struct {
    const char *name, *text, *words[3];
} refused[] = {
    {"a.jsonl", "{\"messages\": 1}", {"a.jsonl: line 1: ", "messages are no list"}},
    {"b.jsonl",
     "{\"text\": \"ok\"}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
     {"line 3: ", "no answer"}},
    {"c.jsonl", "{\"prompt\": \"a\", \"completion\": \"\"}", {"line 1: ", "completion is empty"}},
    {"d.jsonl", "{\"prompt\": \"a\"}", {"line 1: ", "\"completion\""}},
    {"e.jsonl", "{\"text\": \"ok\"}\n{\"text\": }", {"line 2: ", "no JSON object"}},
    {"f.jsonl", "{\"conversations\": [{\"from\": \"alien\", \"value\": \"a\"}]}", {"line 1: ", "turn 1", "alien"}},
    {"q.jsonl",
     "{\"conversations\": [{\"from\": \"human\\u0000\", \"value\": \"a\"}]}",
     {"line 1: ", "turn 1", "a zero character"}},
    {"r.jsonl",
     "{\"messages\": [{\"role\": \"user\\u0000\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
     {"line 1: message 1 has a role with a zero character"}},
    {"g.jsonl", "{\"conversations\": [{\"from\": \"human\"}]}", {"line 1: ", "turn 1", "\"value\""}},
    {"h.jsonl", "{\"instruction\": \"a\"}", {"line 1: ", "\"output\""}},
    {"i.jsonl", "{\"instruction\": \"\", \"output\": \"b\"}", {"line 1: ", "instruction is empty"}},
    {"j.jsonl", "{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"a\"]]}", {"line 1: ", "history"}},
    {"k.jsonl", "{\"messages\": [1]}", {"line 1: ", "message 1 is no object"}},
    {"l.jsonl", "{\"messages\": [], \"tools\": 3}", {"line 1: ", "tools are no list"}},
    {"m.jsonl",
     "{\"messages\": [{\"role\": \"user\", \"content\": 7}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
     {"line 1: the chat template: line 1, column"}},
    {"n.jsonl", "{\"text\": \"a\"}", {"line 1: ", "a single token"}},
    {"o.txt", "plain text\n", {"no lines of JSON", ".jsonl"}},
    {"p.jsonl", "\n\n", {"nothing in it"}},
};

TEST_EACH(what_is_no_document_is_refused_with_its_file_and_line, COUNT(refused))
{
    const char *path = processes_put_text(refused[_i].name, refused[_i].text);
    struct error err = {""};

    ck_assert_int_eq(read_files(&path, 1, &err), -EINVAL);
    ck_assert_holds(err.text, refused[_i].words[0], refused[_i].words[1], refused[_i].words[2]);
    forget();
}

/* "<user>a<assistant>bcd." has 22 tokens and 21 inputs; "bcd." are predicted by inputs 17 to 20. */
TEST(inputs_predict_their_successors_and_long_documents_are_cut)
{
    const char *path = processes_put_text(
        "one.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"bcd\"}]}");
    uint32_t ids[22], labels[22], work[23];
    const struct client_row_fields row = {.at = {[PLAN_FIELD_IDS] = ids, [PLAN_FIELD_LABELS] = labels}};
    struct error err = {""};

    ck_assert_msg(read_files(&path, 1, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(documents.n_tokens, 22);
    ck_assert_uint_eq(client_documents_longest(&documents), 21);
    ck_assert_int_eq(client_documents_get(&documents, &row, 0, work, 0, 100, NULL), 0);
    for (uint32_t i = 0; i < 21; i++) {
        ck_assert_uint_eq(ids[i], (uint8_t) "<user>a<assistant>bcd."[i]);
        ck_assert_uint_eq(labels[i], i < 17 ? PLAN_NO_LABEL : (uint8_t) "<user>a<assistant>bcd."[i + 1]);
    }
    ck_assert_uint_eq(client_documents_length(&documents, 0, 19), 19);
    ck_assert_int_eq(client_documents_get(&documents, &row, 0, work, 0, 19, NULL), 0);
    ck_assert(labels[17] == 'b' && labels[18] == 'c');
    static const struct {
        uint32_t seq;
        enum eps_long long_rows;
        enum eps_fate fate;
    } fates[] = {{21, EPS_LONG_DROP, EPS_KEPT}, {20, EPS_LONG_CUT, EPS_CUT},        {20, EPS_LONG_DROP, EPS_DROPPED},
                 {18, EPS_LONG_CUT, EPS_CUT},   {17, EPS_LONG_CUT, EPS_UNANSWERED}, {17, EPS_LONG_DROP, EPS_DROPPED}};
    for (int i = 0; i < COUNT(fates); i++)
        ck_assert_int_eq(client_documents_fate(&documents, 0, fates[i].seq, fates[i].long_rows), fates[i].fate);
    ck_assert_int_eq(client_documents_refuse(&documents, &data, 0, 20, &err), -EINVAL);
    ck_assert_holds(err.text, "one.jsonl: line 1: 21 tokens are more than --seq 20", "--long cut or drop");
    ck_assert_uint_eq(client_documents_seq(21, 4096), 24);
    ck_assert_uint_eq(client_documents_seq(21, 20), 20);
    ck_assert_uint_eq(client_documents_seq(5000, 4096), 1024);
    forget();
}

/* ---- The source ---- */

enum { N = 60, SEQ = 40, BATCH = 7 };

/* N conversations, of which every tenth is too long for its answer to be seen. */
static const char *many(void)
{
    static char text[N * 200];
    char *at = text;

    for (int i = 0; i < N; i++) {
        const int n = i % 10 == 9 ? 50 : 1 + i % 12;
        at += sprintf(at, "{\"prompt\": \"%.*s\", \"completion\": \"%c%d\"}\n", n,
                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 'b' + i % 20, i);
    }
    return processes_put_text("many.jsonl", text);
}

static struct client_source *open_source(struct client_data *files, const struct client_source_rules *rules,
                                         uint64_t eval_tokens)
{
    static struct client_data none;
    static const struct model_config config = {.family = &family_gpt2, .vocabulary = 256, .n_positions = 64};
    const char *path = many();
    const struct client_source_setup setup = {.config = &config, .data = files, .eval_data = &none};
    const struct client_division division = {
        .batch = BATCH, .seq = SEQ, .order = EPS_SHUFFLED, .seed = rules->seed, .eval_tokens = eval_tokens};
    struct client_source *source;
    struct error err = {""};

    ck_assert_int_eq(client_data_open(files, &path, 1, &err), 0);
    ck_assert_int_eq(client_source_open(&source, &client_source_conversations, &setup, &err), 0);
    ck_assert_msg(client_source_read(source, rules, &err) == 0, "%s", err.text);
    ck_assert_int_eq(client_source_divide(source, &division, &err), 0);
    ck_assert_int_eq(client_source_make_room(source, BATCH, &err), 0);
    return source;
}

/* 54 of 60 have an answer within 40 tokens; a tenth of those are held out, and an epoch has each of the others once. */
TEST(an_epoch_has_each_conversation_once_but_those_held_out_or_unanswered)
{
    const struct client_source_rules rules = {.seq = SEQ, .seed = 3};
    struct client_data files;
    struct client_source *source = open_source(&files, &rules, 0);
    struct client_source_facts facts;
    static uint32_t ids[BATCH * SEQ], labels[BATCH * SEQ];
    const struct client_buffer buffer = {.at = {ids, labels}, .n_rows = BATCH, .seq = SEQ};
    struct client_minibatch minibatch;
    bool seen[N] = {false};
    char note[200];
    unsigned n = 0;

    facts = client_source_measure(source);
    ck_assert(facts.whole && facts.n_rows == 49 && facts.task == EPS_TASK_DEFAULT);
    ck_assert_uint_eq(client_source_n_rows(source, CLIENT_HELD_OUT), 5);
    client_source_describe(note, sizeof note, source);
    ck_assert_str_eq(note, "60 conversations, 5 rows held out; at --seq 40 6 unanswered and left out");
    for (uint64_t step = 0; step < 7; step++) {
        ck_assert_int_eq(client_source_fill(&minibatch, &buffer, source, step, step * BATCH, NULL), 0);
        for (unsigned row = 0; row < BATCH; row++) {
            const uint32_t *own = labels + row * minibatch.n_tokens;
            unsigned number = 0, i = 0;
            while (i < minibatch.n_tokens && own[i] == PLAN_NO_LABEL)
                i++;
            for (i++; i < minibatch.n_tokens && own[i] != PLAN_NO_LABEL; i++)
                number = 10 * number + (own[i] - '0');
            ck_assert(number < N && !seen[number] && number % 10 != 9);
            seen[number] = true;
            n++;
        }
    }
    ck_assert_uint_eq(n, 49);
    for (uint64_t k = 0; k < 5; k++) {
        ck_assert(!seen[client_source_pick_held_out(source, k).id]);
        seen[client_source_pick_held_out(source, k).id] = true;
    }
    client_source_close(source);
    client_data_free(&files);
}

/* Held-out rows that are evaluated are spread over all of them, from the shortest to the longest. */
TEST(an_evaluation_may_be_limited)
{
    const struct client_source_rules rules = {.seq = SEQ, .seed = 3};
    struct client_data files, others;
    struct client_source *all = open_source(&files, &rules, 0);
    const uint64_t n_tokens = client_source_progress(all, 5);
    struct client_source *some = open_source(&others, &rules, n_tokens * 2 / 5 + 1);

    ck_assert_uint_eq(client_source_n_rows(all, CLIENT_HELD_OUT), 5);
    ck_assert_uint_eq(client_source_n_rows(some, CLIENT_HELD_OUT), 2);
    for (uint64_t k = 0; k < 2; k++)
        ck_assert_uint_eq(client_source_pick_held_out(some, k).id, client_source_pick_held_out(all, k * 5 / 2).id);
    client_source_close(all), client_source_close(some);
    client_data_free(&files), client_data_free(&others);
}

TEST(what_a_long_conversation_does_is_chosen)
{
    const struct client_source_rules rules = {.seq = SEQ, .long_rows = EPS_LONG_DROP};
    struct client_data files;
    struct client_source *source = open_source(&files, &rules, 0);
    char note[200];

    client_source_describe(note, sizeof note, source);
    ck_assert_str_eq(note, "60 conversations, 5 rows held out; at --seq 40 6 dropped");
    client_source_close(source);
    client_data_free(&files);
}
