/* `take` is called on the caller's thread, in the text's order, once all threads are done with a block: so tokens, and
 * the first fault, are those of one thread. p->kept belongs to the place where the tokens that were given end; joining
 * a piece puts there what its thread kept. The watch is asked on the caller's thread; the others see its code
 * (ended). */
#include "client/data/pieces.h"

#include "client/text/utf8.h"
#include "proto/base/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct piece {
    size_t from, to; /* in the block; `to` lies behind the overlap with the next piece */
    struct client_tokens tokens;
    /* After the overlap with the piece before: the next byte, tokens that are that piece's, and what is kept. */
    size_t joint, n_before;
    struct client_text at_joint;
    size_t used; /* the next byte after all */
    struct client_text at_end;
    int rc;
};

struct client_pieces {
    struct client_pieces_options options;
    struct client_tokenizer *tokenizers[CLIENT_PIECES_MOST_THREADS]; /* the first is the caller's */
    unsigned n_threads;
    struct client_text kept;     /* when a block begins, and where its tokens were joined last */
    struct client_tokens tokens; /* one thread's */

    struct piece pieces[CLIENT_PIECES_MOST_THREADS * CLIENT_PIECES_OF_A_THREAD];
    size_t n_pieces;
    const char *text; /* (n) the block, which begins at byte `at` of the file */
    size_t n;
    uint64_t at;
    bool last;
    atomic_size_t next; /* piece */
    uint64_t n_alone;   /* bytes tokenised by encode_alone */

    struct client_watch watches[2]; /* [0]: asked on the caller's thread; [1]: on the others */
    atomic_int ended;               /* error of the options' watch, with the sentence `why` */
    struct error why;
};

/* ---- The end of a block before its time ---- */

static int pieces_ask(void *data, struct error *err)
{
    struct client_pieces *p = data;
    const int rc = p->ended ? p->ended : client_watch_ask(p->options.watch, &p->why);

    p->ended = rc;
    return rc ? error_set(err, rc, "%s", p->why.text) : 0;
}

static int ask_caller(void *data, struct error *err)
{
    const struct client_pieces *p = data;

    (void)err;
    return p->ended;
}

/* ---- Text, on any thread ---- */

static int pieces_encode_word(const struct client_pieces *p, struct client_tokenizer *t, struct client_tokens *out,
                              const char *bytes, size_t n, struct error *err)
{
    int rc = client_tokenizer_encode_word(out, t, bytes, n, err);

    if (rc)
        error_prefix(err, p->options.file->path);
    return rc;
}

/* Tokenises from byte *from of the block to byte `to` and sets *from to the next byte. last: a document ends there. */
static int pieces_encode_text(const struct client_pieces *p, struct client_tokenizer *t, struct client_tokens *out,
                              size_t *from, size_t to, bool last, struct error *err)
{
    const char *text = p->text + *from;
    const size_t n = to - *from, whole = client_utf8_whole((const uint8_t *)text, n);
    size_t used;

    if (whole < n && client_utf8_character((const uint8_t *)text + whole, n - whole) < 0)
        return client_data_not_text(p->options.file, p->at + *from + whole, (uint8_t)text[whole], err);
    int rc = client_tokenizer_encode(out, &used, t, text, whole, last, err);
    if (rc) {
        char place[40];
        snprintf(place, sizeof place, "near byte %" PRIu64, p->at + *from + used);
        if (rc == -EINVAL)
            error_prefix(err, place);
        error_prefix(err, p->options.file->path);
        return rc;
    }
    *from = last ? to : *from + used;
    if (last && whole < n)
        client_tokenizer_restart(t); /* the text does not end with the tokens of what is whole */
    return last ? pieces_encode_word(p, t, out, text + whole, n - whole, err) : 0; /* part of a character may be left */
}

/* Encodes text in which marks separate documents. */
static int encode_documents(const struct client_pieces *p, struct client_tokenizer *t, struct client_tokens *out,
                            size_t *from, size_t to, bool last, struct error *err)
{
    const char *mark;
    int rc = 0;

    while (!rc && p->options.file->marked && (mark = memchr(p->text + *from, CLIENT_DATA_MARK, to - *from))) {
        rc = pieces_encode_text(p, t, out, from, (size_t)(mark - p->text), true, err);
        if (!rc)
            rc = client_tokenizer_trail(out, t, p->options.end, err);
        if (!rc)
            rc = client_tokenizer_lead(out, t, err);
        ++*from;
    }
    return rc ? rc : pieces_encode_text(p, t, out, from, to, last, err);
}

/* ---- Pieces, each on one thread ---- */

static int encode_piece(struct client_pieces *p, struct piece *piece, struct client_tokenizer *t)
{
    const bool final = piece + 1 == p->pieces + p->n_pieces;
    int rc = 0;

    piece->tokens.n = 0;
    piece->joint = piece->from;
    if (piece == p->pieces) {
        rc = client_tokenizer_restore(t, &p->kept, NULL);
    } else {
        client_tokenizer_restart(t);
        rc = encode_documents(p, t, &piece->tokens, &piece->joint, piece[-1].to, false, NULL);
    }
    if (!rc)
        rc = client_tokenizer_save(&piece->at_joint, t, NULL);
    piece->n_before = piece->tokens.n;
    piece->used = piece->joint;
    if (!rc)
        rc = encode_documents(p, t, &piece->tokens, &piece->used, piece->to, final && p->last, NULL);
    return rc ? rc : client_tokenizer_save(&piece->at_end, t, NULL);
}

struct thread {
    struct client_pieces *p;
    struct client_tokenizer *tokenizer;
    pthread_t id;
};

static void *encode_pieces(void *argument)
{
    const struct thread *thread = argument;
    struct client_pieces *p = thread->p;

    for (size_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n_pieces;)
        p->pieces[i].rc = encode_piece(p, &p->pieces[i], thread->tokenizer);
    return NULL;
}

static void cut_block(struct client_pieces *p)
{
    const size_t most = p->n / p->options.piece_bytes, n_most = (size_t)p->n_threads * CLIENT_PIECES_OF_A_THREAD;

    p->n_pieces = p->n_threads == 1 || most == 0 ? 1 : most < n_most ? most : n_most;
    for (size_t i = 0; i < p->n_pieces; i++) {
        size_t from = p->n / p->n_pieces * i;
        from += client_data_cut((const uint8_t *)p->text + from, i > 0 ? p->n - from : 0);
        p->pieces[i].from = from;
        p->pieces[i].to = p->n;
        if (i > 0)
            p->pieces[i - 1].to = from + p->options.overlap_bytes;
    }
}

/* Joins a thread, and asks the watch ten times a second. */
static void await_thread(struct client_pieces *p, pthread_t id)
{
    struct timespec until;

    do {
        pieces_ask(p, NULL);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    } while (pthread_timedjoin_np(id, NULL, &until) == ETIMEDOUT);
}

/* The threads begin here and end here: they would cost a thousandth of a block's time. */
static void pieces_run_threads(struct client_pieces *p)
{
    struct thread threads[CLIENT_PIECES_MOST_THREADS];
    const unsigned n_wanted = p->n_pieces < p->n_threads ? (unsigned)p->n_pieces : p->n_threads;
    unsigned n = 1;

    p->next = 0;
    threads[0] = (struct thread){.p = p, .tokenizer = p->tokenizers[0]};
    for (; n < n_wanted; n++) {
        threads[n] = (struct thread){.p = p, .tokenizer = p->tokenizers[n]};
        if (thread_begin(&threads[n].id, encode_pieces, &threads[n]))
            break; /* the others take its pieces */
    }
    encode_pieces(&threads[0]);
    while (--n > 0)
        await_thread(p, threads[n].id);
}

/* ---- Joining ---- */

static bool same(const struct client_text *a, const struct client_text *b)
{
    return a->n == b->n && memcmp(a->bytes, b->bytes, a->n) == 0;
}

/* Goes on from byte *done, where p->kept was kept, to byte `to`, on this thread. */
static int encode_alone(struct client_pieces *p, size_t *done, size_t to, struct error *err)
{
    struct client_tokenizer *t = p->tokenizers[0];
    int rc = client_tokenizer_restore(t, &p->kept, err);

    p->tokens.n = 0;
    if (!rc)
        rc = encode_documents(p, t, &p->tokens, done, to, to == p->n && p->last, err);
    return rc ? rc : client_tokenizer_save(&p->kept, t, err);
}

/* A piece whose thread failed is tokenised again, too: if what it began with was wrong, so may be the fault. */
static int pieces_join(struct client_pieces *p, size_t *done, client_pieces_take *take, void *data, struct error *err)
{
    size_t i = 0, n_stuck = 1;
    int rc = 0;

    *done = 0;
    while (!rc && i < p->n_pieces) {
        struct piece *piece = &p->pieces[i];
        const size_t before = *done;
        if (piece->rc == 0 && piece->joint == *done && same(&piece->at_joint, &p->kept)) {
            const struct client_text kept = p->kept;
            p->kept = piece->at_end, piece->at_end = kept;
            *done = piece->used;
            if (piece->tokens.n > piece->n_before)
                rc = take(data, piece->tokens.ids + piece->n_before, piece->tokens.n - piece->n_before, err);
            i++;
            continue;
        }
        const size_t end = p->n_pieces - i < n_stuck ? p->n_pieces : i + n_stuck;
        rc = encode_alone(p, done, p->pieces[end - 1].to, err);
        if (!rc)
            rc = take(data, p->tokens.ids, p->tokens.n, err);
        p->n_alone += *done - before;
        n_stuck = *done == before ? 2 * n_stuck : 1; /* a long word is not read again for each piece */
        i = end;
    }
    return rc;
}

int client_pieces_encode(struct client_pieces *p, size_t *used, const char *text, size_t n, uint64_t at, bool last,
                         client_pieces_take *take, void *data, struct error *err)
{
    p->text = text, p->n = n, p->at = at, p->last = last;
    cut_block(p);
    pieces_run_threads(p);
    const int rc = p->ended ? p->ended : pieces_join(p, used, take, data, err);
    return p->ended ? error_set(err, p->ended, "%s", p->why.text) : rc;
}

/* ---- A file ---- */

static int take_alone(struct client_pieces *p, client_pieces_take *take, void *data, struct error *err)
{
    return take(data, p->tokens.ids, p->tokens.n, err);
}

int client_pieces_begin(struct client_pieces *p, const char *head, size_t n, client_pieces_take *take, void *data,
                        struct error *err)
{
    p->tokens.n = 0;
    client_tokenizer_restart(p->tokenizers[0]);
    int rc = client_tokenizer_lead(&p->tokens, p->tokenizers[0], err);
    if (!rc)
        rc = client_tokenizer_save(&p->kept, p->tokenizers[0], err);
    if (!rc)
        rc = pieces_encode_word(p, p->tokenizers[0], &p->tokens, head, n, err);
    return rc ? rc : take_alone(p, take, data, err);
}

int client_pieces_end(struct client_pieces *p, bool followed, client_pieces_take *take, void *data, struct error *err)
{
    p->tokens.n = 0;
    int rc = client_tokenizer_restore(p->tokenizers[0], &p->kept, err);
    if (!rc)
        rc = client_tokenizer_trail(&p->tokens, p->tokenizers[0], followed ? p->options.end : CLIENT_NO_TOKEN, err);
    return rc ? rc : take_alone(p, take, data, err);
}

uint64_t client_pieces_alone(const struct client_pieces *p)
{
    return p->n_alone;
}

unsigned client_pieces_threads(void)
{
    const char *wanted = getenv("OMP_NUM_THREADS");
    long n = wanted ? strtol(wanted, NULL, 10) : 0;
    cpu_set_t set;

    if (n <= 0)
        n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < CLIENT_PIECES_MOST_THREADS ? (unsigned)n : CLIENT_PIECES_MOST_THREADS;
}

int client_pieces_open(struct client_pieces **out, const struct client_pieces_options *options, struct error *err)
{
    struct client_pieces *p = calloc(1, sizeof *p);
    int rc = 0;

    *out = NULL;
    if (!p)
        return error_memory(err);
    p->options = *options;
    p->watches[0] = (struct client_watch){pieces_ask, p}, p->watches[1] = (struct client_watch){ask_caller, p};
    p->tokenizers[0] = options->tokenizer;
    client_tokenizer_watch(p->tokenizers[0], &p->watches[0]);
    for (p->n_threads = 1; !rc && p->n_threads < options->n_threads; p->n_threads += rc == 0) {
        rc = client_tokenizer_share(&p->tokenizers[p->n_threads], options->tokenizer, NULL);
        if (!rc)
            client_tokenizer_watch(p->tokenizers[p->n_threads], &p->watches[1]);
    }
    *out = p;
    return 0;
}

void client_pieces_close(struct client_pieces *p)
{
    if (!p)
        return;
    client_tokenizer_restart(p->tokenizers[0]); /* it may hold the middle of a text */
    client_tokenizer_watch(p->tokenizers[0], NULL);
    for (unsigned i = 1; i < p->n_threads; i++)
        client_tokenizer_close(p->tokenizers[i]);
    for (size_t i = 0; i < sizeof p->pieces / sizeof *p->pieces; i++) {
        free(p->pieces[i].tokens.ids);
        free(p->pieces[i].at_joint.bytes);
        free(p->pieces[i].at_end.bytes);
    }
    free(p->kept.bytes);
    free(p->tokens.ids);
    free(p);
}
