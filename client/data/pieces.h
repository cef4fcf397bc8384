/* client/data/pieces.h - text into tokens on several threads: the ids and the order of one thread.
 *
 * A block of text is cut into pieces, anywhere between two characters; each thread takes the next piece that none has
 * taken. All pieces but the first begin in the middle of the text as if it began there, so their first tokens may be
 * wrong. Therefore each piece also reads the overlap: the first bytes of the next piece. Behind the overlap the two
 * tokenizers are compared. If they have used the same bytes and kept the same (client/text/tokenizer.h), both go on to
 * the same tokens, and the pieces are joined there. Words are short, so nearly all pieces join. Where two do not, one
 * thread goes on from the last right token until it meets a piece that it joins.
 *
 * A block may hold documents that CLIENT_DATA_MARK separates. */
#ifndef CLIENT_DATA_PIECES_H
#define CLIENT_DATA_PIECES_H

#include "client/data/data_file.h"
#include "client/text/tokenizer.h"

enum { CLIENT_PIECES_MOST_THREADS = 32, CLIENT_PIECES_OF_A_THREAD = 4 };

struct client_pieces_options {
    struct client_tokenizer *tokenizer;  /* borrowed */
    const struct client_data_file *file; /* marked or not, and named by errors; borrowed */
    uint32_t end;                        /* token between two documents; CLIENT_NO_TOKEN: none */
    unsigned n_threads;                  /* at most CLIENT_PIECES_MOST_THREADS; 0 is 1 */
    const struct client_watch *watch;    /* asked on the caller's thread; borrowed; NULL: never asked */
    size_t piece_bytes, overlap_bytes;   /* a piece has at least piece_bytes, and these exceed the overlap by 4 */
};

struct client_pieces;

/* Computing threads of this process: OMP_NUM_THREADS, else its processors; at most CLIENT_PIECES_MOST_THREADS. */
unsigned client_pieces_threads(void);

/* Copies the options. Threads without memory of their own are done without. -ENOMEM. */
int client_pieces_open(struct client_pieces **out, const struct client_pieces_options *options, struct error *err);
/* NULL is safe. The caller's tokenizer then begins a new text. */
void client_pieces_close(struct client_pieces *pieces);

/* Takes tokens in their order; it may overwrite them. */
typedef int client_pieces_take(void *data, uint32_t *ids, size_t n, struct error *err);

/* Begins a file: gives the tokens that precede a document. head: the first bytes, in which no character begins. */
int client_pieces_begin(struct client_pieces *p, const char *head, size_t n, client_pieces_take *take, void *data,
                        struct error *err);

/* Gives the tokens of text (n bytes), whose first byte is byte `at` of the file. last: the file ends here and all of
 * it is used. Otherwise *used is where the next call's text begins. Blocks until all threads are done. -EINVAL for the
 * first fault in the text; -ENOMEM; what take returns; the watch's error. */
int client_pieces_encode(struct client_pieces *p, size_t *used, const char *text, size_t n, uint64_t at, bool last,
                         client_pieces_take *take, void *data, struct error *err);

/* Ends a file: gives the tokens that follow a document; then, if another one comes, the end token, unless it is there
 * already. */
int client_pieces_end(struct client_pieces *p, bool followed, client_pieces_take *take, void *data, struct error *err);

/* Bytes that one thread tokenised since pieces could not be joined. */
uint64_t client_pieces_alone(const struct client_pieces *p);

#endif
