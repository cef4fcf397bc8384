#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/file/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(single)

static int dir; /* of the test's own */
static struct error err;

static void setup(void)
{
    processes_setup();
    dir = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(dir, 0);
}

static void teardown(void)
{
    close(dir);
    processes_remove();
}

/* These members, with ' for ", closed by a checksum that is right. */
static void put_training(const char *members)
{
    static char text[1 << 16];
    const int n = snprintf(text, sizeof text, "%s,", members);

    for (char *quote = text; (quote = strchr(quote, '\''));)
        *quote = '"';
    snprintf(text + n, sizeof text - (size_t)n, "\"checksum\": \"%016" PRIx64 "\"}\n",
             checkpoint_hash(text, (size_t)n));
    processes_put_text(CHECKPOINT_TRAINING, text);
}

static void add(struct checkpoint *c, const char *name, const char *content)
{
    const size_t n = strlen(content);
    struct checkpoint_file *file = checkpoint_add_file(c, name, n);

    processes_write(name, content, n);
    if (n)
        ck_assert_int_eq(checkpoint_add_run(file, 0, n, checkpoint_hash(content, n)), 0);
}

static const char weights[] = "the weights of a model that is not very large";

/* A whole checkpoint, on disk and in *c: weights in three runs, which come in no order, and an empty file. */
static char *make_checkpoint(struct checkpoint *c)
{
    *c = (struct checkpoint){.step = 1200, .options = json_pack("{s:s, s:f}", "data", "book.txt", "lr", 0.1)};
    add(c, CHECKPOINT_CONFIG, "{}");
    processes_write(CHECKPOINT_WEIGHTS, weights, sizeof weights);
    struct checkpoint_file *file = checkpoint_add_file(c, CHECKPOINT_WEIGHTS, sizeof weights);
    checkpoint_add_run(file, 30, sizeof weights - 30, checkpoint_hash(weights + 30, sizeof weights - 30));
    checkpoint_add_run(file, 0, 7, checkpoint_hash(weights, 7));
    checkpoint_add_run(file, 7, 23, checkpoint_hash(weights + 7, 23));
    add(c, CHECKPOINT_MOMENTS, "m and v");
    add(c, "tokenizer.json", "");
    char *text = checkpoint_print(c);
    ck_assert_ptr_nonnull(text);
    processes_put_text(CHECKPOINT_TRAINING, text);
    return text;
}

static void check_refused(const struct checkpoint *c, const char *sentence)
{
    ck_assert_int_eq(checkpoint_check(c, dir, NULL, NULL, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, sentence);
}

SUITE_FIXTURE(setup, teardown)
SUITE_TIMEOUT(60)

/* Published vectors of XXH3_64bits, seed 0. */
TEST(the_hash_is_xxh3)
{
    ck_assert_uint_eq(checkpoint_hash("", 0), 0x2d06800538d394c2);
    ck_assert_uint_eq(checkpoint_hash("a", 1), 0xe6c632b61e964e1f);
    ck_assert_uint_eq(checkpoint_hash("abc", 3), 0x78af5f94892f3950);
}

TEST(a_name_is_one_plain_file)
{
    static const char *const good[] = {"a", "model.safetensors", "vocab-2_x.JSON"};
    static const char *const bad[] = {"", ".", "..", ".x", "a/b", "a b", "\xc3\xa4", "a\n"};
    char longest[CHECKPOINT_NAME_BYTES + 1] = "";

    for (int i = 0; i < COUNT(good); i++)
        ck_assert(checkpoint_is_name(good[i]));
    for (int i = 0; i < COUNT(bad); i++)
        ck_assert_msg(!checkpoint_is_name(bad[i]), "'%s'", bad[i]);
    memset(longest, 'x', CHECKPOINT_NAME_BYTES - 1);
    ck_assert(checkpoint_is_name(longest));
    longest[CHECKPOINT_NAME_BYTES - 1] = 'x';
    ck_assert(!checkpoint_is_name(longest));
}

TEST(what_is_printed_is_the_format_of_the_header)
{
    struct checkpoint c = {.step = 3};
    char want[256];
    int n = 0;

    checkpoint_add_run(checkpoint_add_file(&c, "a", 9), 4, 5, 0xab), checkpoint_add_run(&c.files[0], 0, 4, 1);
    char *text = checkpoint_print(&c);
    snprintf(want, sizeof want,
             "{\"format\":1,\"step\":3,\"options\":{},\"files\":{\"a\":{\"bytes\":9,\"runs\":"
             "[[0,4,\"0000000000000001\"],[4,5,\"00000000000000ab\"]]}},%n",
             &n);
    snprintf(want + n, sizeof want - (size_t)n, "\"checksum\": \"%016" PRIx64 "\"}\n",
             checkpoint_hash(want, (size_t)n));
    ck_assert_str_eq(text, want);
    free(text);
    checkpoint_free(&c);
}

TEST(what_was_written_reads_back_and_is_whole)
{
    struct checkpoint a, b;

    char *text = make_checkpoint(&a);
    ck_assert_msg(checkpoint_read(&b, dir, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(b.step, 1200);
    ck_assert(json_equal(a.options, b.options));
    ck_assert_msg(checkpoint_check(&b, dir, NULL, NULL, NULL, &err) == 0, "%s", err.text);
    char *again = checkpoint_print(&b);
    ck_assert_str_eq(again, text);
    free(text), free(again);
    checkpoint_free(&a), checkpoint_free(&b);
}

TEST(a_flipped_bit_of_every_byte_of_training_json_is_seen_and_every_truncation)
{
    struct checkpoint c;

    char *text = make_checkpoint(&c);
    const size_t n = strlen(text);
    checkpoint_free(&c);
    for (size_t i = 0; i < 8 * n; i += 7) {
        text[i / 8] ^= (char)(1 << i % 8);
        processes_write(CHECKPOINT_TRAINING, text, n);
        const int rc = checkpoint_read(&c, dir, &err);
        ck_assert_msg(rc == -EINVAL || rc == -EPROTONOSUPPORT, "bit %zu: %d", i, rc);
        ck_assert(strncmp(err.text, "training.json", 13) == 0);
        ck_assert_uint_eq(c.n_files, 0);
        text[i / 8] ^= (char)(1 << i % 8);
    }
    for (size_t i = 0; i < n; i++) {
        processes_write(CHECKPOINT_TRAINING, text, i);
        ck_assert_int_eq(checkpoint_read(&c, dir, &err), -EINVAL);
    }
    free(text);
}

/* Of each run the first byte and the last. */
TEST(a_flipped_byte_of_a_file_is_seen_and_placed)
{
    static const struct {
        int at;
        const char *run;
    } rows[] = {{0, "7 bytes from 0"},   {6, "7 bytes from 0"},    {7, "23 bytes from 7"},
                {29, "23 bytes from 7"}, {30, "16 bytes from 30"}, {45, "16 bytes from 30"}};
    struct checkpoint c;
    char sentence[120];

    free(make_checkpoint(&c));
    for (int i = 0; i < COUNT(rows); i++) {
        processes_flip(CHECKPOINT_WEIGHTS, rows[i].at);
        snprintf(sentence, sizeof sentence, "model.safetensors is not what was written: checksum of its %s on differs",
                 rows[i].run);
        check_refused(&c, sentence);
        ck_assert_int_eq(checkpoint_check(&c, dir, CHECKPOINT_MOMENTS, NULL, NULL, &err), 0); /* asked for alone */
        processes_flip(CHECKPOINT_WEIGHTS, rows[i].at);
    }
    checkpoint_free(&c);
}

TEST(a_file_that_is_short_long_missing_or_no_file_is_refused)
{
    struct checkpoint c, none;

    ck_assert_int_eq(checkpoint_read(&none, dir, &err), -ENOENT);
    ck_assert_str_eq(err.text, "training.json is missing");
    ck_assert_int_eq(mkdirat(dir, CHECKPOINT_TRAINING, 0777), 0);
    ck_assert_int_eq(checkpoint_read(&none, dir, &err), -EINVAL);
    ck_assert_str_eq(err.text, "training.json: not a regular file");
    ck_assert_int_eq(rmdir(CHECKPOINT_TRAINING), 0);
    free(make_checkpoint(&c));
    processes_put_text(CHECKPOINT_MOMENTS, "m and");
    check_refused(&c, "optimizer.safetensors has 5 bytes, 7 were written: truncated");
    processes_put_text(CHECKPOINT_MOMENTS, "m and v.");
    check_refused(&c, "optimizer.safetensors has 8 bytes, 7 were written: changed");
    unlink(CHECKPOINT_MOMENTS);
    check_refused(&c, "optimizer.safetensors is missing");
    ck_assert_int_eq(mkfifoat(dir, CHECKPOINT_MOMENTS, 0666), 0);
    check_refused(&c, "optimizer.safetensors: not a regular file");
    ck_assert_int_eq(checkpoint_check(&c, dir, "vocab.json", NULL, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, "training.json: vocab.json is not among its files");
    checkpoint_free(&c);
}

/* Of the three files that must be there, two are as they should be. */
#define FILES(entry)                                                                                                   \
    "{'format':1,'step':3,'options':{},'files':{'config.json':{'bytes':0,'runs':[]},"                                  \
    "'model.safetensors':{'bytes':0,'runs':[]}," entry "}"
#define MOMENTS(entry) FILES("'optimizer.safetensors':" entry)
#define RUNS(runs)     MOMENTS("{'bytes':7,'runs':[" runs "]}")
#define HASH           "'0123456789abcdef'"
#define NO_RUN         "run 0 of optimizer.safetensors is not [offset, bytes, checksum]"

static const struct {
    const char *members, *sentence; /* what stands behind `training.json: ` begins with it */
} refusals[] = {
    {"{'format':2,'step':3", "format 2; this eps reads 1"},
    {"{'format':9223372036854775807", "format 9223372036854775807; this eps reads 1"},
    {"{'format':-1", "no format in it"},
    {"{'step':3", "no format in it"},
    {"{'format':1,'step':-3", "its step is no count"},
    {"{'format':1,'step':1.5", "its step is no count"},
    {"{'format':1,'step':99999999999999999999", "not JSON at byte"},
    {"{'format':1,'format':1", "not JSON at byte"},
    {"{'format':1,'step':3,'options':[]", "its options are no object"},
    {"{'format':1,'step':3,'options':{},'files':[]", "its files are not a list"},
    {"{'format':1,'step':3,'options':{},'files':{}", "config.json is not among its files"},
    {FILES("'../x':{'bytes':0,'runs':[]}"), "'../x' is no name"},
    {FILES("'training.json':{'bytes':0,'runs':[]}"), "'training.json' is no name"},
    {FILES("'a':{'bytes':0,'runs':[]}"), "optimizer.safetensors is not among its files"},
    {MOMENTS("7"), "optimizer.safetensors has no length or no runs"},
    {MOMENTS("{'bytes':-7,'runs':[]}"), "optimizer.safetensors has no length"},
    {MOMENTS("{'bytes':7,'runs':{}}"), "optimizer.safetensors has no length"},
    {RUNS(""), "runs of optimizer.safetensors end at 0 of 7 bytes"},
    {RUNS("[0,3," HASH "]"), "runs of optimizer.safetensors end at 3 of 7 bytes"},
    {RUNS("7"), NO_RUN},
    {RUNS("[0,7]"), NO_RUN},
    {RUNS("[0,7,7]"), NO_RUN},
    {RUNS("[0,7,'0123456789abcdeg']"), NO_RUN},
    {RUNS("[0,7,'0123456789abcdef0']"), NO_RUN},
    {RUNS("[0,-7," HASH "]"), NO_RUN},
    {RUNS("[0,8," HASH "]"), "run 0 of optimizer.safetensors (8 bytes at 0)"},
    {RUNS("[0,0," HASH "],[0,7," HASH "]"), "run 0 of optimizer.safetensors (0 bytes at 0)"},
    {RUNS("[0,4," HASH "],[3,4," HASH "]"), "run 1 of optimizer.safetensors (4 bytes at 3)"},
    {RUNS("[0,3," HASH "],[4,3," HASH "]"), "run 1 of optimizer.safetensors (3 bytes at 4)"},
    {RUNS("[0,3," HASH "],[3,9223372036854775807," HASH "]"),
     "run 1 of optimizer.safetensors (9223372036854775807 bytes at 3)"},
};

TEST_EACH(what_is_wrong_with_training_json_is_said, COUNT(refusals))
{
    const char *sentence = refusals[_i].sentence;
    struct checkpoint c;

    put_training(refusals[_i].members);
    ck_assert_int_eq(checkpoint_read(&c, dir, &err), strstr(sentence, "this eps") ? -EPROTONOSUPPORT : -EINVAL);
    ck_assert_msg(strncmp(err.text, "training.json: ", 15) == 0 &&
                      strncmp(err.text + 15, sentence, strlen(sentence)) == 0,
                  "'%s', not '%s...'", err.text, sentence);
    ck_assert_uint_eq(c.n_files, 0);
}

/* A long list of files is refused as a list; one that is as long as it may be is read. */
TEST_RANGE(at_most_sixteen_files_are_listed, 13, 15)
{
    char members[4096];
    struct checkpoint c;

    int n = snprintf(members, sizeof members, MOMENTS("{'bytes':0,'runs':[]}")) - 1; /* into the braces again */
    for (int i = 0; i < _i; i++)
        n += snprintf(members + n, sizeof members - (size_t)n, ",'f%d':{'bytes':0,'runs':[]}", i);
    snprintf(members + n, sizeof members - (size_t)n, "}");
    put_training(members);
    ck_assert_int_eq(checkpoint_read(&c, dir, &err), _i == 13 ? 0 : -EINVAL);
    ck_assert_uint_eq(c.n_files, _i == 13 ? 16 : 0);
    checkpoint_free(&c);
}

static int stop_at_once(void *data, uint64_t bytes)
{
    *(uint64_t *)data += bytes;
    return -EINTR;
}

/* A run of several blocks, as those of real weights are. */
TEST(a_long_run_is_read_in_blocks_until_progress_says_no)
{
    enum { N = (5 << 20) + 3 };
    static char bytes[N];
    struct checkpoint c = {0};
    uint64_t seen = 0;

    for (size_t i = 0; i < N; i++)
        bytes[i] = (char)(i * i >> 7);
    processes_write("tokenizer.json", bytes, N);
    checkpoint_add_run(checkpoint_add_file(&c, "tokenizer.json", N), 0, N, checkpoint_hash(bytes, N));
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, NULL, NULL, &err), 0);
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, stop_at_once, &seen, &err), -EINTR);
    ck_assert_uint_eq(seen, 1 << 20);
    processes_flip("tokenizer.json", -1);
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, NULL, NULL, &err), -EINVAL);
    checkpoint_free(&c);
}
