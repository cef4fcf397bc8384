/* Labelled rows from TSV and JSON lines: what is read, how labels become classes, and what is refused with its file and
 * line. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/fixtures/tokenizer.h"

#include "client/corpus/labelled.h"
#include "proto/base/number.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

/* It adds no special tokens. */
static struct client_tokenizer *open_bare(void)
{
    json_t *whole = json_load_file(TESTS_DIR "/fixtures/tokenizers/bert.json", 0, NULL);
    json_object_del(whole, "post_processor");
    char *text = json_dumps(whole, 0);
    json_t *side = json_pack("{s:s}", "tokenizer.json", text);
    struct client_tokenizer *t;

    ck_assert_int_eq(client_tokenizer_open(&t, side, NULL, 400, NULL), 0);
    json_decref(side);
    json_decref(whole);
    free(text);
    return t;
}

/* Of the last call. */
static struct client_corpus rows;
static struct client_pairs pairs;
static struct client_labels labels;

struct options {
    const char *columns;
    bool numbers, unlabelled, bare;
    const char *classes; /* a config.json whose two labels are fixed */
};

static int read_files(const char *const *names, size_t n, const struct options *options, struct error *err)
{
    struct client_labelled_rules rules = {.columns = options->columns,
                                          .unlabelled = options->unlabelled,
                                          .tokenizer =
                                              options->bare ? open_bare() : tokenizer_open_fixture("bert", NULL)};
    struct client_data data;

    ck_assert_int_eq(client_labels_init(&labels, options->numbers, NULL), 0);
    if (options->classes)
        ck_assert_int_eq(client_labels_take(&labels, options->classes, strlen(options->classes), 2, NULL), 0);
    ck_assert_int_eq(client_data_open_rows(&data, names, n, err), 0);
    const int rc = client_labelled_read(&rows, &pairs, &data, &labels, &rules, err);
    client_data_free(&data);
    client_tokenizer_close(rules.tokenizer);
    return rc;
}

static int read_text(const char *name, const char *text, const struct options *options, struct error *err)
{
    const char *path = processes_put_text(name, text);

    return read_files(&path, 1, options, err);
}

static void forget(void)
{
    client_corpus_free(&rows);
    client_labels_free(&labels);
}

#define CLASSES "{\"id2label\": {\"0\": \"no\", \"1\": \"yes\"}}"

static const struct {
    const char *name, *text;
    struct options options;
    size_t n;
    bool paired;
    uint32_t labels[4];
} files[] = {
    /* GLUE's layouts: SST-2, MRPC, CoLA (no names), QNLI; and JSON lines of either style. */
    {"sst.tsv", "sentence\tlabel\nthe fox \t1\nlazy \"dog\t0\n", {0}, 2, false, {1, 0}},
    {"mrpc.tsv",
     "\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tthe fox\ta dog\r\n0\t1\t2\tx\ty\r\n",
     {.columns = "#1 String,#2 String,Quality"},
     2,
     true,
     {1, 0}},
    {"cola.tsv", "gj04\t1\t\tthe fox\ngj04\t0\t*\tfox the\n", {.columns = "4,2"}, 2, false, {1, 0}},
    {"qnli.tsv",
     "index\tquestion\tsentence\tlabel\n0\twho\tthe fox\tentailment\n1\twho\tx\tnot_entailment",
     {0},
     2,
     true,
     {0, 1}},
    {"rows.jsonl",
     "{\"text\": \"the fox\", \"label\": 3}\n\n{\"label\": 10, \"text\": \"a dog\"}\n{\"text\": \"x\", \"label\": 3}\n",
     {0},
     3,
     false,
     {0, 1, 0}},
    {"pairs.jsonl",
     "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": true, \"n\": 1}\n"
     "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": false}\n",
     {0},
     2,
     true,
     {1, 0}},
    /* A classifier's own classes, by name and by number; no label at all. */
    {"own.tsv", "text\tlabel\nx\tyes\ny\t1\nz\tno\n", {.classes = CLASSES}, 3, false, {1, 1, 0}},
    {"none.tsv", "text\tother\nx\tyes\n", {.unlabelled = true}, 1, false, {PLAN_NO_LABEL}},
    /* As in GLUE's test files, which hide their labels. */
    {"hidden.tsv",
     "text\tlabel\nx\t-1\ny\t\n",
     {.unlabelled = true, .classes = CLASSES},
     2,
     false,
     {PLAN_NO_LABEL, PLAN_NO_LABEL}},
    {"hidden.jsonl",
     "{\"text\": \"x\", \"label\": null}\n{\"text\": \"x\", \"label\": 1}\n{\"text\": \"x\"}\n",
     {.unlabelled = true, .classes = CLASSES},
     3,
     false,
     {PLAN_NO_LABEL, 1, PLAN_NO_LABEL}},
    {"later.jsonl",
     "{\"text\": \"x\"}\n{\"text\": \"x\", \"label\": \"yes\"}\n",
     {.columns = "text,label", .unlabelled = true, .classes = CLASSES},
     2,
     false,
     {PLAN_NO_LABEL, 1}},
    /* But not where -1 is a label. */
    {"minus.tsv",
     "text\tlabel\nx\t-1\ny\t1\n",
     {.unlabelled = true, .classes = "{\"id2label\": {\"0\": \"1\", \"1\": \"-1\"}}"},
     2,
     false,
     {1, 0}},
    {"score.tsv", "text\tscore\nx\t-1\n", {.numbers = true, .unlabelled = true}, 1, false, {0xBF800000}},
    /* An empty line is a row where it can be one. */
    {"empty.tsv", "text\tlabel\n\tb\n\n \ta\n", {0}, 2, false, {1, 0}},
    {"wide.jsonl", "{\"text\": \"x\", \"label\": 0, \"id\": 18446744073709551616}\n", {0}, 1, false, {0}},
    {"empty.jsonl", "{\"text\": \"\", \"label\": 0}\n\n", {0}, 1, false, {0}},
    {"lines.tsv",
     "\r\ntext\r\n\r\nx\r\n\r\n",
     {.unlabelled = true},
     3,
     false,
     {PLAN_NO_LABEL, PLAN_NO_LABEL, PLAN_NO_LABEL}},
    {"numbered.tsv", "\nx\n", {.columns = "1", .unlabelled = true}, 2, false, {PLAN_NO_LABEL, PLAN_NO_LABEL}},
    {"mark.jsonl", "\xEF\xBB\xBF{\"text\": \"x\", \"label\": 0}\n", {0}, 1, false, {0}},
    {"alone.tsv", "x\tyes\ny\tno\n", {.columns = "1", .unlabelled = true}, 2, false, {PLAN_NO_LABEL, PLAN_NO_LABEL}},
    /* Two texts without a label: a known pair of names, or a comma at the end. */
    {"pair.tsv",
     "premise\thypothesis\nx\ty\n",
     {.columns = "premise,hypothesis", .unlabelled = true, .classes = CLASSES},
     1,
     true,
     {PLAN_NO_LABEL}},
    {"comma.tsv", "x\ty\n", {.columns = "1,2,", .unlabelled = true, .classes = CLASSES}, 1, true, {PLAN_NO_LABEL}},
    {"one.tsv",
     "premise\tlabel\nx\tyes\n",
     {.columns = "premise,label", .unlabelled = true, .classes = CLASSES},
     1,
     false,
     {1}},
};

TEST_EACH(rows_are_read_in_the_layouts_of_glue, COUNT(files))
{
    struct error err = {""};

    ck_assert_msg(read_text(files[_i].name, files[_i].text, &files[_i].options, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(rows.n, files[_i].n);
    for (size_t i = 0; i < rows.n; i++) {
        ck_assert_uint_eq(rows.list[i].is_paired, files[_i].paired);
        ck_assert_uint_eq(rows.list[i].label, files[_i].labels[i]);
    }
    forget();
}

/* [CLS] is 2 and [SEP] 3; what is between are the tokens of the text, by themselves. */
TEST(a_row_has_its_own_texts_tokens)
{
    struct client_tokenizer *t = tokenizer_open_fixture("bert", NULL);
    struct client_tokens fox = {0}, dog = {0};
    uint32_t ids[64], work[128], second;
    size_t used;

    ck_assert_int_eq(read_text("two.tsv", "label\tsentence1\tsentence2\nx\tthe\tthe\ny\tquick fox\tlazy dog\n",
                               &(struct options){0}, NULL),
                     0);
    ck_assert_int_eq(client_tokenizer_encode(&fox, &used, t, "quick fox", 9, true, NULL), 0);
    ck_assert_int_eq(client_tokenizer_encode(&dog, &used, t, "lazy dog", 8, true, NULL), 0);
    const int64_t n = client_labelled_get(&rows, &pairs, ids, &second, work, 1, 64, NULL);
    ck_assert_int_eq(n, (int64_t)(fox.n + dog.n + 3));
    ck_assert_int_eq(client_labelled_length(&rows, &pairs, 1), n);
    ck_assert_uint_eq(second, fox.n + 2);
    ck_assert(ids[0] == 2 && ids[second - 1] == 3 && ids[n - 1] == 3);
    ck_assert_mem_eq(ids + 1, fox.ids, fox.n * sizeof *ids);
    ck_assert_mem_eq(ids + second, dog.ids, dog.n * sizeof *ids);
    ck_assert_int_eq(client_labelled_get(&rows, &pairs, ids, &second, work, 1, 6, NULL), 6);
    ck_assert_uint_eq(client_labelled_least(&rows, &pairs), 5);
    free(fox.ids);
    free(dog.ids);
    client_tokenizer_close(t);
    forget();
}

/* A row whose texts spell [CLS] and [SEP] around them has each once: row 0 as row 1, row 2 with the writer's own
 * second. */
TEST(a_row_s_texts_may_spell_what_is_put_around_them)
{
    static const char *const spelled[] = {
        "text\tlabel\n[CLS]quick fox[SEP]\tx\nquick fox\ty\n[CLS][CLS]quick fox[SEP][SEP]\tx\n",
        "sentence1\tsentence2\tlabel\n[CLS]the\tquick fox[SEP]\tx\nthe\tquick fox\ty\n"
        "[CLS][CLS]the\tquick fox[SEP][SEP]\tx\n"};
    uint32_t ids[3][64], work[128], second[3];
    int64_t n[3];

    for (int paired = 0; paired < 2; paired++) {
        ck_assert_int_eq(read_text("spelled.tsv", spelled[paired], &(struct options){0}, NULL), 0);
        for (size_t i = 0; i < 3; i++)
            n[i] = client_labelled_get(&rows, &pairs, ids[i], &second[i], work, i, 64, NULL);
        ck_assert(n[0] == n[1] && second[0] == second[1] && n[2] == n[1] + 2);
        ck_assert_mem_eq(ids[0], ids[1], (size_t)n[0] * sizeof **ids);
        ck_assert(ids[2][0] == 2 && ids[2][1] == 2 && ids[2][n[2] - 2] == 3 && ids[2][n[2] - 1] == 3);
        forget();
    }
}

/* As the package `tokenizers` has them (test_pairs): [CLS] [SEP], and [CLS] [SEP] [SEP]. */
TEST(an_empty_text_is_a_row_of_special_tokens)
{
    uint32_t ids[8], work[16], second;

    ck_assert_int_eq(read_text("e.tsv", "text\tlabel\n\tx\nfox\ty\n", &(struct options){0}, NULL), 0);
    ck_assert_int_eq(client_labelled_get(&rows, &pairs, ids, &second, work, 0, 8, NULL), 2);
    ck_assert(ids[0] == 2 && ids[1] == 3 && second == 2);
    ck_assert_int_eq(client_labelled_get(&rows, &pairs, ids, &second, work, 1, 8, NULL), 3);
    forget();
    ck_assert_int_eq(read_text("e.tsv", "sentence1\tsentence2\tlabel\n\t\tx\n", &(struct options){0}, NULL), 0);
    ck_assert_int_eq(client_labelled_get(&rows, &pairs, ids, &second, work, 0, 8, NULL), 3);
    ck_assert(ids[0] == 2 && ids[1] == 3 && ids[2] == 3 && second == 2);
    forget();
}

TEST(labels_are_numbered_by_value_or_by_name)
{
    ck_assert_int_eq(read_text("n.tsv", "text\tlabel\na\t10\nb\t9\nc\t-1\n", &(struct options){0}, NULL), 0);
    ck_assert_str_eq(labels.names[0], "-1");
    ck_assert_str_eq(labels.names[1], "9");
    ck_assert_str_eq(labels.names[2], "10");
    ck_assert_uint_eq(rows.list[0].label, 2);
    forget();
    ck_assert_int_eq(read_text("m.tsv", "text\tlabel\na\t10\nb\t9\nc\tx\n", &(struct options){0}, NULL), 0);
    ck_assert_str_eq(labels.names[0], "10");
    ck_assert_str_eq(labels.names[1], "9");
    forget();
    ck_assert_int_eq(read_text("n.jsonl", "{\"text\": \"a\", \"label\": 0.1}\n{\"text\": \"a\", \"label\": 1.0}\n",
                               &(struct options){0}, NULL),
                     0);
    ck_assert_str_eq(labels.names[0], "0.1");
    ck_assert_str_eq(labels.names[1], "1");
    forget();
    ck_assert_int_eq(read_text("r.tsv", "text\tscore\na\t-2.5\nb\t1e1\n", &(struct options){.numbers = true}, NULL), 0);
    ck_assert_float_eq(number_from_pattern(rows.list[0].label), -2.5f);
    ck_assert_float_eq(number_from_pattern(rows.list[1].label), 10.0f);
    forget();
}

/* So that a resumed run, whose labels are the checkpoint's, knows its data again. */
TEST(the_checksum_is_of_texts_and_labels)
{
    const char *text = "text\tlabel\na\tno\nb\tyes\n";
    const struct options fixed = {.classes = CLASSES};

    ck_assert_int_eq(read_text("h.tsv", text, &(struct options){0}, NULL), 0);
    const uint64_t hash = rows.hash;
    forget();
    ck_assert_int_eq(read_text("h.tsv", text, &fixed, NULL), 0);
    ck_assert_uint_eq(rows.hash, hash);
    forget();
    ck_assert_int_eq(read_text("h.tsv", "text\tlabel\na\tyes\nb\tyes\n", &fixed, NULL), 0);
    ck_assert_uint_ne(rows.hash, hash);
    forget();
    ck_assert_int_eq(read_text("h.tsv", "text\tlabel\na\tno\na\tyes\n", &fixed, NULL), 0);
    ck_assert_uint_ne(rows.hash, hash);
    forget();
}

TEST(several_files_are_one_list_and_may_be_compressed)
{
    const char *names[] = {processes_put_text("1.tsv", "text\tlabel\na\tx\n"), processes_path("2.jsonl.gz")};

    processes_put_text("2.jsonl", "{\"label\": \"y\", \"text\": \"b\"}\n");
    expect("gzip 2.jsonl", 0);
    ck_assert_int_eq(read_files(names, 2, &(struct options){0}, NULL), 0);
    ck_assert_uint_eq(rows.n, 2);
    ck_assert_uint_eq(rows.list[1].label, 1);
    forget();
}

static const struct {
    const char *name, *text;
    struct options options;
    int code;
    const char *first, *second;
} wrongs[] = {
    {"a.tsv",
     "x\ty\n",
     {0},
     -EINVAL,
     "a.tsv: line 1: no column with a known name for a text, only 'x', 'y'",
     "--columns"},
    {"a.tsv", "text\ty\n", {0}, -EINVAL, "line 1: no column with a known name for a label", "'text', 'y'"},
    {"a.tsv", "text\ty\n", {.columns = "text,z"}, -EINVAL, "a.tsv: line 1: no column 'z'", "'text', 'y'"},
    {"a.tsv",
     "label\ttext\tlabel\nx\ty\tz\n",
     {0},
     -EINVAL,
     "a.tsv: line 1: the columns 1 and 3 are both named 'label'",
     "--columns by numbers"},
    {"a.tsv", "a\tb\tb\nx\ty\tz\n", {.columns = "b,a"}, -EINVAL, "the columns 2 and 3 are both named 'b'", NULL},
    {"a.tsv", "a\tb\n", {.columns = "1,3"}, -EINVAL, "a.tsv: line 1: no column 3", "2 fields"},
    {"a.tsv", "a\tb\n", {.columns = "1"}, -EDOM, "--columns '1'", "TEXT,LABEL"},
    {"a.tsv", "a\tb\n", {.columns = "1,,2"}, -EDOM, "--columns '1,,2'", NULL},
    {"a.tsv", "a\tb\n", {.columns = "1,2,"}, -EDOM, "--columns '1,2,'", "TEXT,TEXT,LABEL, as"},
    {"a.tsv", "a\tb\n", {.columns = "1,", .unlabelled = true}, -EDOM, "--columns '1,'", "(without labels TEXT or"},
    {"a.tsv", "a\tb\n", {.columns = "1,2,3,4"}, -EDOM, "--columns '1,2,3,4'", NULL},
    {"a.tsv", "a\tb\n", {.columns = "1,2,2"}, -EDOM, "--columns '1,2,2' has '2' twice", NULL},
    {"a.tsv", "a\tb\n", {.columns = "a,a"}, -EDOM, "--columns 'a,a' has 'a' twice", NULL},
    {"a.tsv", "text\tlabel\nx\ty\tz\n", {0}, -EINVAL, "a.tsv: line 2: 3 fields between tabs", "first line has 2"},
    {"a.tsv",
     "text\tlabel\nx\ty\nz\n",
     {0},
     -EINVAL,
     "a.tsv: line 3: 1 field between",
     "correct the tabs, or remove the line (awk -F '\\t' 'NF == 2' keeps"},
    {"a.tsv", "text\tlabel\n\tno\n", {.bare = true}, -EINVAL, "line 2: its text is empty", "adds no token"},
    {"a.tsv", "text,label\nx,y\n", {0}, -EINVAL, "a.tsv: line 1: it has commas and no tab", "(TSV)"},
    {"a.tsv", "x,y\nx,y\n", {.columns = "1,2"}, -EINVAL, "line 1: it has commas and no tab", "(TSV)"},
    {"a.tsv", "text\tlabel\rx\ty\r", {0}, -EINVAL, "lines end in CR alone", "tr '\\r' '\\n'"},
    {"a.tsv", "text\tlabel\nx\ty\n", {.columns = "0,2"}, -EINVAL, "no column '0'", "all numbers from 1 to 10000"},
    /* A line of names, where columns are numbers. */
    {"a.tsv",
     "id\tlabel\tmine\nx\t0\ty\n",
     {.columns = "3,2"},
     -EINVAL,
     "line 1: its fields are names of columns",
     "--columns mine,label"},
    {"a.tsv",
     "index\tsentence\nx\t0\n",
     {.columns = "2", .unlabelled = true},
     -EINVAL,
     "its fields are names of columns",
     "--columns sentence;"},
    /* A label that is named must be there, also where rows need none. */
    {"a.tsv",
     "text\tlabel\nx\ty\n",
     {.columns = "text,lable", .unlabelled = true},
     -EINVAL,
     "no column 'lable'",
     "leave it out of --columns"},
    {"a.tsv", "x\ty\n", {.columns = "1,3", .unlabelled = true}, -EINVAL, "no column 3", "2 fields"},
    {"a.jsonl",
     "{\"text\": \"x\", \"label\": 1}\n",
     {.columns = "text,lable", .unlabelled = true},
     -EINVAL,
     "a.jsonl: no row has 'lable'",
     "leave it out of --columns"},
    {"a.tsv",
     "a\tb\nx\ty\n",
     {.columns = "a,b,label", .unlabelled = true},
     -EINVAL,
     "no column 'label'",
     "give --columns a,b,"},
    {"a.tsv",
     "a\tb\nx\ty\n",
     {.columns = "a,b", .unlabelled = true, .classes = CLASSES},
     -EINVAL,
     "line 2: its label 'y' is no class",
     "if this column is a second text, end --columns with a comma"},
    {"a.tsv",
     "text\tmine\nx\ty\n",
     {.columns = "1,2,", .unlabelled = true},
     -EINVAL,
     "its fields are names of columns",
     "--columns text,mine,;"},
    {"a.tsv", "text\tlabel\nx\t\n", {0}, -EINVAL, "line 2: its label is empty", NULL},
    {"a.tsv",
     "text\tlabel\nx\tmaybe\n",
     {.classes = CLASSES},
     -EINVAL,
     "line 2: its label 'maybe' is no class",
     "2 classes: no, yes"},
    {"a.tsv", "text\tlabel\nx\t2\n", {.classes = CLASSES}, -EINVAL, "line 2: its label 2 is out of range", "0 to 1"},
    {"a.tsv",
     "text\tlabel\nx\t0\n",
     {.classes = "{\"id2label\": {\"0\": \"1.0\", \"1\": \"two\"}}"},
     -EINVAL,
     "its label '0' is no class",
     "1.0, two"},
    {"a.tsv", "text\tlabel\nx\t-1\n", {.classes = CLASSES}, -EINVAL, "its label -1 is out of range", NULL},
    {"a.tsv",
     "text\tscore\nx\t2\ny\tgood\n",
     {.numbers = true},
     -EINVAL,
     "line 3: its label 'good' is not a number",
     NULL},
    {"a.tsv", "text\tscore\nx\tnan\n", {.numbers = true}, -EINVAL, "'nan' is not a number", NULL},
    {"a.tsv", "text\tscore\nx\t1e99\n", {.numbers = true}, -EINVAL, "'1e99' is not a number", NULL},
    {"a.tsv", "text\tlabel\n\xFFx\ty\n", {0}, -EINVAL, "a.tsv: line 2: not UTF-8", NULL},
    {"a.tsv", "text\tlabel\nx\t\xFF\n", {0}, -EINVAL, "a.tsv: line 2: its label is not UTF-8", NULL},
    {"a.tsv", "text\tlabel\n", {0}, -EINVAL, "a.tsv: no row", NULL},
    {"a.tsv", "", {0}, -EINVAL, "a.tsv: no row", NULL},
    {"a.tsv", "{\"text\": \"x\", \"label\": 1}\n", {0}, -EINVAL, "a.tsv: this is JSON lines", ".jsonl"},
    {"a.jsonl", "{\"text\": \"x\"}\n", {0}, -EINVAL, "a.jsonl: line 1: no column with a known name for a label", NULL},
    {"a.jsonl",
     "{\"text\": \"x\", \"label\": 1}\n{\"text\": \"x\"}\n",
     {0},
     -EINVAL,
     "a.jsonl: line 2: it has no 'label'",
     NULL},
    {"a.jsonl", "{\"text\": [1], \"label\": 1}\n", {0}, -EINVAL, "line 1: its 'text' is no text", NULL},
    {"a.jsonl",
     "{\"text\": \"x\", \"label\": null}\n",
     {0},
     -EINVAL,
     "line 1: its 'label' is no text and no number",
     NULL},
    {"a.jsonl", "[1]\n", {0}, -EINVAL, "line 1: no JSON object", NULL},
    {"a.jsonl", "{\"text\": \"x\", \"label\": 1}\n{\"text\"\n", {0}, -EINVAL, "a.jsonl: line 2: no JSON object", NULL},
    {"a.jsonl", "{\"text\": \"x\", \"label\": 1}\n", {.columns = "1,2"}, -EDOM, "--columns has numbers", NULL},
    {"a.jsonl",
     "{\"text\": \"x\", \"label\": \"a\\tb\"}\n",
     {0},
     -EINVAL,
     "line 1: its label 'a?b' has a control character",
     NULL},
    {"a.bin", "0123", {0}, -EINVAL, "a.bin: token ids have no labels", NULL},
};

TEST_EACH(what_is_no_labelled_row_is_refused_with_its_line, COUNT(wrongs))
{
    struct error err = {""};

    ck_assert_int_eq(read_text(wrongs[_i].name, wrongs[_i].text, &wrongs[_i].options, &err), wrongs[_i].code);
    ck_assert_holds(err.text, wrongs[_i].first, wrongs[_i].second ? wrongs[_i].second : "");
    forget();
}
