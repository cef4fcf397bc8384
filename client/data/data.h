/* client/data/data.h - tokens from files, cut into windows.
 *
 * Several files are one stream, in their order. By the name's end: .bin is u16 (u32 for vocabularies over 65,536), .npy
 * one dimension of integers, .jsonl an object a line with its text, anything else UTF-8 text; each also .gz and .zst.
 * "-" is standard input, text or JSON lines, compressed or not. What its first bytes show to be another format is
 * refused, never trained on as text.
 *
 * Text is tokenised by the model's tokenizer, into a nameless file of its own; for a vocabulary of 256 without one a
 * byte is a token. Two files of text, and two texts of .jsonl, are separated by the tokenizer's end token; texts of
 * .jsonl end with a new line where there is none. Tokens stay in files: a window is read when it is needed, which costs
 * nothing beside a step and no memory.
 *
 * A stream of T tokens gives floor((T-1)/seq) windows: window k reads tokens k*seq .. k*seq+seq-1 and predicts each
 * one's successor. */
#ifndef CLIENT_DATA_DATA_H
#define CLIENT_DATA_DATA_H

#include "client/daemon/link.h"
#include "client/data/npy.h"
#include "client/eps.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum client_data_kind { CLIENT_DATA_TEXT, CLIENT_DATA_LINES, CLIENT_DATA_BIN, CLIENT_DATA_NPY };
enum client_packing { CLIENT_PLAIN, CLIENT_GZIP, CLIENT_ZSTD };

#define CLIENT_DATA_INPUT "-" /* the name of standard input */

struct client_data_file {
    char *path; /* owned */
    int fd;
    enum client_data_kind kind;
    enum client_packing packing; /* as the name says */
    bool stream;                 /* standard input, until it was read */
    bool unpacked;               /* read, and expanded */
    bool marked;                 /* documents are told apart by a mark: JSON lines for a tokenizer with an end token */
    enum client_integer type;
    uint64_t bytes;  /* of tokens: behind a header, and before text is tokenised */
    uint64_t offset; /* of its first token in the file, bytes */
    uint64_t first;  /* its first token's place in the stream */
    uint64_t n;      /* tokens; of text and .bin 0 until they are checked */
};

struct client_data {
    struct client_data_file *files;
    size_t n_files;
    bool has_text;     /* among the files */
    uint64_t n_passed; /* files of directories that were passed over: their names' ends are not known */
    /* From here on known when checked: */
    bool separated; /* documents of text, by an end token */
    uint64_t n;     /* tokens of all files */
    uint32_t vocabulary;
    uint32_t largest; /* token */
    /* xxh3, 64 bits, of the tokens as they are stored, file after file: of a text its bytes, or, tokenised, its ids. */
    uint64_t hash;
};

/* Opens the files and reads sizes and headers, no tokens. A name that is not there and holds *, ? or [ is a pattern as
 * of glob(7): the files that match, sorted; one at least. A directory stands for its files whose names end in .txt, .md,
 * .jsonl, .bin or .npy, or in one of these and .gz or .zst, sorted by their bytes; not for directories in it. -ENOENT,
 * -EINVAL, -errno with a sentence that begins with the name. Undo: client_data_free; after a failure *out is zeroed. */
int client_data_open(struct client_data *out, const char *const *names, size_t n_names, struct error *err);
void client_data_free(struct client_data *data); /* safe on a zeroed one */

/* All files are text. */
bool client_data_is_text(const struct client_data *data);

struct client_tokenizer;

struct client_data_rules {
    uint32_t vocabulary;
    struct client_tokenizer *tokenizer; /* the model's, for text; NULL: none. Borrowed for the call */
    enum eps_separator separator;       /* EPS_SEPARATOR_DEFAULT: the end token where the tokenizer has one */
    const struct client_watch *watch;   /* asked every few MiB; NULL: nobody. What it says ends the check */
};

/* Reads every token once, and tokenises text: what is outside the vocabulary, not UTF-8 or truncated is refused with the
 * file, the position and the value, and text for a model that has neither tokenizer nor a vocabulary of 256. A text may
 * begin or end inside a character, as split and head leave it. Once. -EINVAL, -errno; -EDOM: EPS_SEPARATOR_EOS, and the
 * tokenizer has no end token. */
int client_data_check(struct client_data *data, const struct client_data_rules *rules, struct error *err);

/* Tokens first .. first+n-1 of the stream, which must be there. -EIO if a file changed since it was checked. */
int client_data_read(const struct client_data *data, uint32_t *out, uint64_t first, uint64_t n, struct error *err);

/* Part of a stream as windows. */
struct client_windows {
    const struct client_data *data; /* borrowed */
    uint64_t first;                 /* token */
    uint32_t seq;
    uint64_t n;    /* windows; 0 where n_tokens <= seq */
    uint64_t of;   /* that the stream gives: the n are spread over them */
    uint32_t last; /* tokens that the last of those predicts, seq or fewer */
};

struct client_windows client_windows_of(const struct client_data *data, uint64_t first, uint64_t n_tokens,
                                        uint32_t seq);

/* To measure on: with the rest of the stream, beyond the last whole window, as a window that is not full; and of all of
 * them as many as make most_tokens (one at least; 0: all), at equal distances. None where n_tokens <= seq. */
struct client_windows client_windows_held_out(const struct client_data *data, uint64_t first, uint64_t n_tokens,
                                              uint32_t seq, uint64_t most_tokens);

/* Tokens that windows first .. first+n-1 predict. */
uint64_t client_windows_tokens(const struct client_windows *windows, uint64_t first, uint64_t n);

/* ids (seq) and labels (seq) of window k; where a window is not full, ids of 0, and MESSAGE_NO_LABEL. As
 * client_data_read. */
int client_windows_read(const struct client_windows *windows, uint32_t *ids, uint32_t *labels, uint64_t k,
                        struct error *err);

/* The window that is row `row` of the run, step * batch + i. Sequential: row modulo n. Shuffled: each epoch of n rows
 * is a permutation of its own, drawn from the seed. n >= 1. */
uint64_t client_windows_pick(const struct client_windows *windows, enum eps_order order, uint64_t seed, uint64_t row);

#endif
