#include "tests/kit/test.h"

#include "proto/model/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(single)

/* A directory of its own for each test. */
static char path[64];
static int dir;

static void make_directory(void)
{
    strcpy(path, "/tmp/test_checkpoint.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(path));
    dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(dir, 0);
}

static void remove_directory(void)
{
    static const char *const names[] = {CHECKPOINT_CONFIG, CHECKPOINT_WEIGHTS, CHECKPOINT_MOMENTS, CHECKPOINT_TRAINING,
                                        "tokenizer.json"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlinkat(dir, names[i], 0), unlinkat(dir, names[i], AT_REMOVEDIR);
    close(dir);
    ck_assert_int_eq(rmdir(path), 0);
}

static void put(const char *name, const void *bytes, size_t n)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, n), (ssize_t)n);
    close(fd);
}

/* These members, closed by a checksum that is right. */
static void put_training(const char *members)
{
    static char text[1 << 16];
    const int n = snprintf(text, sizeof text, "%s,", members);

    snprintf(text + n, sizeof text - (size_t)n, "\"checksum\": \"%016" PRIx64 "\"}\n",
             checkpoint_hash(text, (size_t)n));
    put(CHECKPOINT_TRAINING, text, strlen(text));
}

static struct checkpoint_file *add(struct checkpoint *c, const char *name, const char *content)
{
    const size_t n = strlen(content);
    struct checkpoint_file *file = checkpoint_add_file(c, name, n);

    put(name, content, n);
    if (n)
        ck_assert_int_eq(checkpoint_add_run(file, 0, n, checkpoint_hash(content, n)), 0);
    return file;
}

static const char weights[] = "the weights of a model that is not very large";

/* A whole checkpoint, on disk and in *c: weights in three runs, which come in no order, and an empty file. */
static char *make_checkpoint(struct checkpoint *c)
{
    *c = (struct checkpoint){.step = 1200, .options = json_pack("{s:s, s:f}", "data", "book.txt", "lr", 0.1)};
    add(c, CHECKPOINT_CONFIG, "{}");
    put(CHECKPOINT_WEIGHTS, weights, sizeof weights);
    struct checkpoint_file *file = checkpoint_add_file(c, CHECKPOINT_WEIGHTS, sizeof weights);
    checkpoint_add_run(file, 30, sizeof weights - 30, checkpoint_hash(weights + 30, sizeof weights - 30));
    checkpoint_add_run(file, 0, 7, checkpoint_hash(weights, 7));
    checkpoint_add_run(file, 7, 23, checkpoint_hash(weights + 7, 23));
    add(c, CHECKPOINT_MOMENTS, "m and v");
    add(c, "tokenizer.json", "");
    char *text = checkpoint_print(c);
    ck_assert_ptr_nonnull(text);
    put(CHECKPOINT_TRAINING, text, strlen(text));
    return text;
}

SUITE_FIXTURE(make_directory, remove_directory)
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
    static const char *const good[] = {"a", "model.safetensors", "vocab-2_x.JSON"}, *const bad[] = {"",         ".",
                                                                                                    "..",       ".x",
                                                                                                    "a/b",      "a b",
                                                                                                    "\xc3\xa4", "a\n"};
    char longest[CHECKPOINT_NAME_BYTES + 1] = "";

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        ck_assert(checkpoint_is_name(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
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
    struct error err = {""};

    char *text = make_checkpoint(&a);
    ck_assert_msg(checkpoint_read(&b, dir, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(b.step, 1200);
    ck_assert(json_equal(a.options, b.options));
    ck_assert_uint_eq(b.n_files, 4);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_str_eq(a.files[i].name, b.files[i].name);
        ck_assert_uint_eq(a.files[i].bytes, b.files[i].bytes);
        ck_assert_uint_eq(a.files[i].n_runs, b.files[i].n_runs);
        if (a.files[i].n_runs)
            ck_assert_mem_eq(a.files[i].runs, b.files[i].runs, a.files[i].n_runs * sizeof *a.files[i].runs);
    }
    ck_assert_msg(checkpoint_check(&b, dir, NULL, NULL, NULL, &err) == 0, "%s", err.text);
    char *again = checkpoint_print(&b);
    ck_assert_str_eq(again, text);
    free(text), free(again);
    checkpoint_free(&a), checkpoint_free(&b);
}

/* Under a sanitizer a bit of every byte. */
TEST(every_flipped_bit_of_training_json_is_seen)
{
    struct checkpoint c;
    struct error err;

    char *text = make_checkpoint(&c);
    const size_t n = strlen(text);
    checkpoint_free(&c);
    for (size_t i = 0; i < 8 * n; i += SANITIZED ? 7 : 1) {
        text[i / 8] ^= (char)(1 << i % 8);
        put(CHECKPOINT_TRAINING, text, n);
        const int rc = checkpoint_read(&c, dir, &err);
        ck_assert_msg(rc == -EINVAL || rc == -EPROTONOSUPPORT, "bit %zu: %d", i, rc);
        ck_assert(strncmp(err.text, "training.json", 13) == 0);
        ck_assert_uint_eq(c.n_files, 0);
        text[i / 8] ^= (char)(1 << i % 8);
    }
    for (size_t i = 0; i < n; i++) {
        put(CHECKPOINT_TRAINING, text, i);
        ck_assert_int_eq(checkpoint_read(&c, dir, &err), -EINVAL);
    }
    free(text);
}

TEST(every_flipped_byte_of_a_file_is_seen_and_placed)
{
    char changed[sizeof weights];
    struct checkpoint c;
    struct error err;

    free(make_checkpoint(&c));
    for (size_t i = 0; i < sizeof weights; i++) {
        memcpy(changed, weights, sizeof weights);
        changed[i] ^= 4;
        put(CHECKPOINT_WEIGHTS, changed, sizeof weights);
        ck_assert_int_eq(checkpoint_check(&c, dir, NULL, NULL, NULL, &err), -EINVAL);
        ck_assert_str_eq(
            err.text, i < 7 ? "model.safetensors is not what was written: checksum of its 7 bytes from 0 on differs"
                      : i < 30
                          ? "model.safetensors is not what was written: checksum of its 23 bytes from 7 on differs"
                          : "model.safetensors is not what was written: checksum of its 16 bytes from 30 on differs");
        ck_assert_int_eq(checkpoint_check(&c, dir, CHECKPOINT_MOMENTS, NULL, NULL, &err), 0); /* asked for alone */
    }
    checkpoint_free(&c);
}

TEST(a_file_that_is_short_long_missing_or_no_file_is_refused)
{
    struct checkpoint c;
    struct error err;

    free(make_checkpoint(&c));
    put(CHECKPOINT_MOMENTS, "m and", 5);
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, NULL, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, "optimizer.safetensors has 5 bytes, 7 were written: truncated");
    put(CHECKPOINT_MOMENTS, "m and v.", 8);
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, NULL, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, "optimizer.safetensors has 8 bytes, 7 were written: changed");
    unlinkat(dir, CHECKPOINT_MOMENTS, 0);
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, NULL, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, "optimizer.safetensors is missing");
    ck_assert_int_eq(mkfifoat(dir, CHECKPOINT_MOMENTS, 0666), 0);
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, NULL, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, "optimizer.safetensors: not a regular file");
    ck_assert_int_eq(checkpoint_check(&c, dir, "vocab.json", NULL, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, "training.json: vocab.json is not among its files");
    checkpoint_free(&c);
}

TEST(without_training_json_there_is_no_checkpoint)
{
    struct checkpoint c;
    struct error err;

    ck_assert_int_eq(checkpoint_read(&c, dir, &err), -ENOENT);
    ck_assert_str_eq(err.text, "training.json is missing");
    ck_assert_int_eq(mkdirat(dir, CHECKPOINT_TRAINING, 0777), 0);
    ck_assert_int_eq(checkpoint_read(&c, dir, &err), -EINVAL);
    ck_assert_str_eq(err.text, "training.json: not a regular file");
}

/* Of the three files that must be there, two are as they should be. */
#define GOOD         "\"config.json\":{\"bytes\":0,\"runs\":[]},\"model.safetensors\":{\"bytes\":0,\"runs\":[]}"
#define MOMENTS      "\"optimizer.safetensors\":"
#define HASH         "\"0123456789abcdef\""
#define FILES(entry) "{\"format\":1,\"step\":3,\"options\":{},\"files\":{" GOOD "," entry "}"

static const struct {
    const char *members, *sentence;
    int rc;
} refusals[] = {
    {"{\"format\":2,\"step\":3", "training.json: format 2; this eps reads 1: take the eps that wrote it",
     -EPROTONOSUPPORT},
    {"{\"format\":9223372036854775807", "training.json: format 9223372036854775807; this eps reads 1",
     -EPROTONOSUPPORT},
    {"{\"format\":-1", "training.json: no format in it", -EINVAL},
    {"{\"step\":3", "training.json: no format in it", -EINVAL},
    {"{\"format\":1,\"step\":-3", "training.json: its step is no count", -EINVAL},
    {"{\"format\":1,\"step\":1.5", "training.json: its step is no count", -EINVAL},
    {"{\"format\":1,\"step\":99999999999999999999", "training.json: not JSON at byte", -EINVAL},
    {"{\"format\":1,\"format\":1", "training.json: not JSON at byte", -EINVAL},
    {"{\"format\":1,\"step\":3,\"options\":[]", "training.json: its options are no object", -EINVAL},
    {"{\"format\":1,\"step\":3,\"options\":{},\"files\":[]", "training.json: its files are not a list", -EINVAL},
    {"{\"format\":1,\"step\":3,\"options\":{},\"files\":{}", "training.json: config.json is not among its files",
     -EINVAL},
    {FILES("\"../x\":{\"bytes\":0,\"runs\":[]}"), "training.json: '../x' is no name", -EINVAL},
    {FILES("\"training.json\":{\"bytes\":0,\"runs\":[]}"), "training.json: 'training.json' is no name", -EINVAL},
    {FILES("\"a\":{\"bytes\":0,\"runs\":[]}"), "training.json: optimizer.safetensors is not among its files", -EINVAL},
    {FILES(MOMENTS "7"), "training.json: optimizer.safetensors has no length or no runs", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":-7,\"runs\":[]}"), "training.json: optimizer.safetensors has no length", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":{}}"), "training.json: optimizer.safetensors has no length", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[]}"), "training.json: runs of optimizer.safetensors end at 0 of 7", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[7]}"), "training.json: run 0 of optimizer.safetensors is not [", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,7]]}"), "training.json: run 0 of optimizer.safetensors is not [",
     -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,7,7]]}"), "training.json: run 0 of optimizer.safetensors is not [",
     -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,7,\"0123456789abcdeg\"]]}"),
     "training.json: run 0 of optimizer.safetensors is not [", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,7,\"0123456789abcdef0\"]]}"),
     "training.json: run 0 of optimizer.safetensors is not [", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,-7," HASH "]]}"),
     "training.json: run 0 of optimizer.safetensors is not [", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,8," HASH "]]}"),
     "training.json: run 0 of optimizer.safetensors (8 bytes at 0) leaves a gap, overlaps or passes the end", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,0," HASH "],[0,7," HASH "]]}"),
     "training.json: run 0 of optimizer.safetensors (0 bytes at 0)", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,4," HASH "],[3,4," HASH "]]}"),
     "training.json: run 1 of optimizer.safetensors (4 bytes at 3)", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,3," HASH "],[4,3," HASH "]]}"),
     "training.json: run 1 of optimizer.safetensors (3 bytes at 4)", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,3," HASH "],[3,9223372036854775807," HASH "]]}"),
     "training.json: run 1 of optimizer.safetensors (9223372036854775807 bytes at 3)", -EINVAL},
    {FILES(MOMENTS "{\"bytes\":7,\"runs\":[[0,3," HASH "]]}"),
     "training.json: runs of optimizer.safetensors end at 3 of 7 bytes", -EINVAL},
};

TEST_EACH(what_is_wrong_with_training_json_is_said, COUNT(refusals))
{
    struct checkpoint c;
    struct error err;

    put_training(refusals[_i].members);
    ck_assert_int_eq(checkpoint_read(&c, dir, &err), refusals[_i].rc);
    if (strncmp(err.text, refusals[_i].sentence, strlen(refusals[_i].sentence)) != 0)
        ck_abort_msg("'%s', not '%s...'", err.text, refusals[_i].sentence);
    ck_assert_uint_eq(c.n_files, 0);
}

/* A long list of files is refused as a list; one that is as long as it may be is read. */
TEST(at_most_sixteen_files_are_listed)
{
    char members[4096];
    struct checkpoint c;
    struct error err;

    for (int extra = 13; extra <= 14; extra++) {
        int n = snprintf(members, sizeof members, FILES(MOMENTS "{\"bytes\":0,\"runs\":[]}"));
        n--; /* into the braces again */
        for (int i = 0; i < extra; i++)
            n += snprintf(members + n, sizeof members - (size_t)n, ",\"f%d\":{\"bytes\":0,\"runs\":[]}", i);
        snprintf(members + n, sizeof members - (size_t)n, "}");
        put_training(members);
        ck_assert_int_eq(checkpoint_read(&c, dir, &err), extra == 13 ? 0 : -EINVAL);
        ck_assert_uint_eq(c.n_files, extra == 13 ? 16 : 0);
        checkpoint_free(&c);
    }
}

static int stop_at_once(void *data, uint64_t bytes)
{
    *(uint64_t *)data += bytes;
    return -EINTR;
}

TEST(reading_ends_when_progress_says_so)
{
    struct checkpoint c;
    struct error err;
    uint64_t seen = 0;

    free(make_checkpoint(&c));
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, stop_at_once, &seen, &err), -EINTR);
    ck_assert_uint_eq(seen, 2); /* config.json's one run */
    checkpoint_free(&c);
}

/* A run of several blocks, as those of real weights are. */
TEST(a_run_may_be_longer_than_what_is_read_at_once)
{
    enum { N = (5 << 20) + 3 };
    static char bytes[N];
    struct checkpoint c = {0};
    struct error err;

    for (size_t i = 0; i < N; i++)
        bytes[i] = (char)(i * i >> 7);
    put("tokenizer.json", bytes, N);
    checkpoint_add_run(checkpoint_add_file(&c, "tokenizer.json", N), 0, N, checkpoint_hash(bytes, N));
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, NULL, NULL, &err), 0);
    bytes[N - 1]++;
    put("tokenizer.json", bytes, N);
    ck_assert_int_eq(checkpoint_check(&c, dir, NULL, NULL, NULL, &err), -EINVAL);
    checkpoint_free(&c);
}
