/* tools/bench/bench_tokens.c - a model's tokenizer over a file: its speed, and for tests/oracle/tokens.py what it makes
 * of it.
 *
 * The file's texts are separated by the byte 0xFF, which UTF-8 does not have. Each thread takes the next text that none
 * has taken, and tokenises it. With --ids, writes for each text the number of its tokens and the tokens, all u32,
 * without what the tokenizer puts before and after a text; with --texts, each text decoded from those tokens, and 0xFF.
 * With --stream yes the time is that of client/data/pieces.h, which training data passes; its ids must be the same. */
#include "client/data/pieces.h"
#include "client/text/tokenizer.h"
#include "client/text/utf8.h"
#include "proto/model/file/model_files.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct text {
    const char *bytes;
    size_t n;
    struct client_tokens tokens;
    int rc;
};

struct work {
    struct text *texts;
    size_t n;
    size_t piece; /* bytes given to the tokenizer at once; 0: all of a text */
    atomic_size_t next;
};

struct thread {
    struct work *work;
    struct client_tokenizer *tokenizer;
    pthread_t id;
};

static void bench_tokens_fail(const char *what, const char *why)
{
    fprintf(stderr, "bench_tokens: %s: %s\n", what, why);
    exit(1);
}

static char *bench_tokens_read_file(const char *name, size_t *n)
{
    FILE *file = fopen(name, "rb");
    char *text = NULL;

    *n = 0;
    for (size_t got = 1; file && got > 0; *n += got) {
        text = realloc(text, *n + (1 << 20));
        if (!text)
            bench_tokens_fail(name, "out of memory");
        got = fread(text + *n, 1, 1 << 20, file);
    }
    if (!file || ferror(file))
        bench_tokens_fail(name, strerror(errno));
    fclose(file);
    return text;
}

static void bench_tokens_split(struct work *work, const char *bytes, size_t n)
{
    for (const char *at = bytes, *end = bytes + n; at <= end;) {
        const char *mark = memchr(at, 0xFF, (size_t)(end - at));
        if (work->n % 1024 == 0)
            work->texts = realloc(work->texts, (work->n + 1024) * sizeof *work->texts);
        if (!work->texts)
            bench_tokens_fail("texts", "out of memory");
        work->texts[work->n++] = (struct text){.bytes = at, .n = (size_t)((mark ? mark : end) - at)};
        if (!mark)
            return;
        at = mark + 1;
    }
}

static int bench_tokens_encode(struct client_tokenizer *t, struct text *text, size_t piece)
{
    size_t at = 0, end, used;
    int rc;

    do {
        end = piece == 0 || text->n - at <= piece ? text->n : at + piece;
        do {
            rc = client_tokenizer_encode(&text->tokens, &used, t, text->bytes + at, end - at, end == text->n, NULL);
            at += used;
            end = end + piece < text->n ? end + piece : text->n; /* a piece that was too short to cut grows */
        } while (!rc && used == 0 && at < text->n);
    } while (!rc && at < text->n);
    return rc;
}

static void *bench_tokens_run(void *argument)
{
    struct thread *thread = argument;
    struct work *work = thread->work;

    for (size_t i; (i = atomic_fetch_add(&work->next, 1)) < work->n;) {
        work->texts[i].tokens.n = 0;
        work->texts[i].rc = bench_tokens_encode(thread->tokenizer, &work->texts[i], work->piece);
    }
    return NULL;
}

static double bench_tokens_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double bench_tokens_run_threads(struct work *work, const struct client_tokenizer *t, size_t n_threads)
{
    struct thread *threads = calloc(n_threads, sizeof *threads);

    if (!threads)
        bench_tokens_fail("threads", "out of memory");
    work->next = 0;
    for (size_t i = 0; i < n_threads; i++) {
        threads[i].work = work;
        if (client_tokenizer_share(&threads[i].tokenizer, t, NULL))
            bench_tokens_fail("tokenizer", "out of memory");
    }
    const double since = bench_tokens_now();
    for (size_t i = 1; i < n_threads; i++) {
        if (pthread_create(&threads[i].id, NULL, bench_tokens_run, &threads[i]))
            bench_tokens_fail("threads", "cannot be started");
    }
    bench_tokens_run(&threads[0]);
    for (size_t i = 1; i < n_threads; i++)
        pthread_join(threads[i].id, NULL);
    const double seconds = bench_tokens_now() - since;
    for (size_t i = 0; i < n_threads; i++)
        client_tokenizer_close(threads[i].tokenizer);
    free(threads);
    return seconds;
}

/* ---- As training data ---- */

static int bench_tokens_take(void *data, uint32_t *ids, size_t n, struct error *err)
{
    return client_tokens_add(data, ids, n, err);
}

/* In blocks of 1 MiB a thread, as client/data/data_text.c reads a file. */
static double run_stream(struct client_tokens *out, struct client_tokenizer *t, const char *bytes, size_t n,
                         size_t n_threads)
{
    const struct client_data_file file = {.path = (char[]){"stream"}, .marked = true};
    const struct client_pieces_options options = {.tokenizer = t,
                                                  .file = &file,
                                                  .end = CLIENT_NO_TOKEN,
                                                  .n_threads = (unsigned)n_threads,
                                                  .piece_bytes = 256 << 10,
                                                  .overlap_bytes = 4 << 10};
    const double since = bench_tokens_now();
    struct client_pieces *p;
    struct error err = {""};
    size_t used = 0, block = n_threads << 20;

    out->n = 0;
    int rc = client_pieces_open(&p, &options, &err);
    if (!rc)
        rc = client_pieces_begin(p, bytes, 0, bench_tokens_take, out, &err);
    for (size_t at = 0; !rc && at < n; at += used) {
        const size_t now = n - at < block ? n - at : block;
        rc = client_pieces_encode(p, &used, bytes + at, now, at, at + now == n, bench_tokens_take, out, &err);
        block = used > 0 ? n_threads << 20 : 2 * block;
    }
    if (!rc)
        rc = client_pieces_end(p, false, bench_tokens_take, out, &err);
    if (rc)
        bench_tokens_fail("stream", err.text);
    fprintf(stderr, "bench_tokens: %.2f %% by one thread alone\n", 100 * (double)client_pieces_alone(p) / (double)n);
    client_pieces_close(p);
    return bench_tokens_now() - since;
}

/* The stream's ids are those of the texts, each whole between what the tokenizer puts before and after it: a text that
 * spells that itself gets no second one. */
static void check_stream(const struct client_tokens *stream, const struct work *work, struct client_tokenizer *t)
{
    struct client_tokens want = {0};
    size_t at = 0, used;

    for (size_t i = 0; i < work->n; i++, at += want.n) {
        const struct text *text = &work->texts[i];
        want.n = 0;
        client_tokenizer_restart(t);
        if (client_tokenizer_lead(&want, t, NULL) ||
            client_tokenizer_encode(&want, &used, t, text->bytes, text->n, true, NULL) ||
            client_tokenizer_trail(&want, t, CLIENT_NO_TOKEN, NULL))
            bench_tokens_fail("text", "cannot be tokenised");
        if (stream->n - at < want.n ||
            (want.n > 0 && memcmp(stream->ids + at, want.ids, want.n * sizeof *want.ids) != 0))
            bench_tokens_fail("stream", "other ids than those of the texts");
    }
    if (at != stream->n)
        bench_tokens_fail("stream", "more ids than those of the texts");
    free(want.ids);
}

static void bench_tokens_write_ids(const struct work *work, const char *name)
{
    FILE *file = fopen(name, "wb");

    for (size_t i = 0; file && i < work->n; i++) {
        const struct text *text = &work->texts[i];
        const uint32_t n = text->rc ? UINT32_MAX : (uint32_t)text->tokens.n;
        fwrite(&n, sizeof n, 1, file);
        if (!text->rc && n > 0)
            fwrite(text->tokens.ids, sizeof n, n, file);
    }
    if (!file || fclose(file))
        bench_tokens_fail(name, strerror(errno));
}

/* Decodes one token at a time, as they come when a text is generated. */
static void bench_tokens_write_texts(const struct work *work, const struct client_tokenizer *t, const char *name)
{
    FILE *file = fopen(name, "wb");

    for (size_t i = 0; file && i < work->n; i++) {
        const struct client_tokens *tokens = &work->texts[i].tokens;
        struct client_decoder *decoder;
        const char *bytes;
        size_t n;
        if (client_decoder_open(&decoder, t, NULL))
            bench_tokens_fail("decoder", "out of memory");
        for (size_t k = 0; k <= tokens->n; k++) {
            const bool last = k == tokens->n;
            if (client_decoder_push(decoder, &bytes, &n, last ? NULL : &tokens->ids[k], !last, true, last, NULL))
                bench_tokens_fail("decoder", "out of memory");
            if (n > 0)
                fwrite(bytes, 1, n, file);
        }
        fputc(0xFF, file);
        client_decoder_close(decoder);
    }
    if (!file || fclose(file))
        bench_tokens_fail(name, strerror(errno));
}

int main(int argc, char **argv)
{
    static const char usage[] =
        "usage: bench_tokens MODEL FILE [--threads N] [--rounds N] [--piece BYTES] [--stream yes] "
        "[--ids OUT] [--texts OUT]";
    size_t n_threads = 1, rounds = 1, n = 0, n_tokens = 0;
    const char *ids = NULL, *texts = NULL;
    struct client_tokenizer *t = NULL;
    struct work work = {0};
    struct error err = {""};
    json_t *side = NULL;
    struct client_tokens stream = {0};
    bool streams = false;
    double best = 0;

    if (argc < 3)
        bench_tokens_fail("misuse", usage);
    for (int i = 3; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            n_threads = strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0)
            rounds = strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--piece") == 0)
            work.piece = strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--stream") == 0)
            streams = strcmp(argv[i + 1], "yes") == 0;
        else if (strcmp(argv[i], "--ids") == 0)
            ids = argv[i + 1];
        else if (strcmp(argv[i], "--texts") == 0)
            texts = argv[i + 1];
        else
            bench_tokens_fail("misuse", usage);
    }
    if (n_threads == 0 || model_files_read(&side, argv[1], &err) ||
        client_tokenizer_open(&t, side, NULL, UINT32_MAX - 1, &err) || !t)
        bench_tokens_fail(argv[1], err.text[0] ? err.text : "no tokenizer");
    json_decref(side);
    char *bytes = bench_tokens_read_file(argv[2], &n);
    bench_tokens_split(&work, bytes, n);
    if (streams)
        bench_tokens_run_threads(&work, t, n_threads);
    for (size_t i = 0; i < rounds; i++) {
        const double seconds =
            streams ? run_stream(&stream, t, bytes, n, n_threads) : bench_tokens_run_threads(&work, t, n_threads);
        best = i == 0 || seconds < best ? seconds : best;
    }
    if (streams)
        check_stream(&stream, &work, t);
    for (size_t i = 0; i < work.n; i++)
        n_tokens += work.texts[i].tokens.n;
    printf("{\"bytes\": %zu, \"texts\": %zu, \"tokens\": %zu, \"threads\": %zu, \"seconds\": %.6f}\n", n, work.n,
           n_tokens, n_threads, best);
    if (ids)
        bench_tokens_write_ids(&work, ids);
    if (texts)
        bench_tokens_write_texts(&work, t, texts);
    for (size_t i = 0; i < work.n; i++)
        free(work.texts[i].tokens.ids);
    free(stream.ids);
    free(work.texts);
    free(bytes);
    client_tokenizer_close(t);
    return 0;
}
