/* client/data/data.h - tokens from files, as one stream.
 *
 * The files form one stream, in the order given. The suffix of a name selects the format: .bin holds u16 ids (u32 for
 * vocabularies over 65,536), .npy a one-dimensional array of integers, .jsonl one object per line with its text
 * (conversations: client/corpus/documents.h); any other file is UTF-8 text. Each may also be compressed, as .gz or
 * .zst. "-" is standard input: text or JSON lines, compressed or plain. A file whose first bytes reveal another format
 * is refused.
 *
 * The model's tokenizer turns text into a nameless file of ids, on all processors. Without a tokenizer, a model with a
 * vocabulary of 256 takes each byte as a token. The tokenizer's end token separates files of text and the texts within
 * a .jsonl file; without one, each text of .jsonl ends with a newline. Tokens stay in files, and each window is read
 * when it is needed (client/order/windows.h). That takes no memory, and next to no time compared with a step. */
#ifndef CLIENT_DATA_DATA_H
#define CLIENT_DATA_DATA_H

#include "client/daemon/link.h"
#include "client/data/npy.h"
#include "client/data/unread.h"
#include "client/eps.h"
#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum client_data_kind { CLIENT_DATA_TEXT, CLIENT_DATA_LINES, CLIENT_DATA_BIN, CLIENT_DATA_NPY };
enum client_compression { CLIENT_PLAIN, CLIENT_GZIP, CLIENT_ZSTD };

#define CLIENT_DATA_INPUT "-" /* standard input, as a file name */

struct client_data_file {
    char *path;    /* owned */
    double weight; /* how often an epoch takes its rows; 1, unless the name ends in =WEIGHT */
    int fd;
    enum client_data_kind kind;
    enum client_compression packing; /* according to the name */
    bool stream;                     /* standard input that has not been read yet */
    bool unpacked;                   /* read and expanded */
    bool is_folder;                  /* of images: one folder for each class, and fd is the directory */
    bool blank;                      /* a text of white space alone: set by client_data_check */
    bool marked;                     /* marks separate documents: JSON lines, and a tokenizer with an end token */
    enum client_integer type;
    uint64_t bytes;              /* size of the tokens: without the header, and before tokenisation */
    uint64_t offset;             /* of the first token in the file, in bytes */
    uint64_t first;              /* position of the file's first token in the stream */
    uint64_t n;                  /* tokens; 0 for text and .bin until client_data_check */
    struct client_unread unread; /* counted as it is read; owned */
};

struct client_data {
    struct client_data_file *files;
    size_t n_files;
    bool has_text; /* at least one file holds text */
    bool rows;     /* opened by client_data_open_rows */
    bool images;   /* opened by client_data_open_images */
    struct client_unread
        passed;         /* suffixes of files in directories that were skipped because of them, and other files */
    uint64_t n_passed;  /* all of these */
    uint64_t n_folders; /* directories in directories, which were skipped */
    char *folder;       /* the first of them, owned; NULL: none */
    /* Set by client_data_check: */
    bool separated; /* an end token separates documents of text */
    uint64_t n;     /* tokens in all files */
    uint32_t vocabulary;
    uint32_t largest; /* largest token id */
    /* xxh3, 64 bits, over the stored tokens of all files in order: the bytes of a text, or its ids once tokenised. */
    uint64_t hash;
};

/* Opens the files and reads sizes and headers, but no tokens. If a name does not exist and holds *, ? or [, it is a
 * glob(7) pattern for at least one file; matches are sorted. A directory gives its own files (no subdirectories),
 * sorted by their bytes, whose suffix is .txt, .md, .jsonl, .bin or .npy, optionally followed by .gz or .zst. A name
 * that does not exist and ends in = and a number above 0, such as chat.jsonl=2 or talks/=0.5, gives its files that
 * weight. Returns -ENOENT, -EINVAL or -errno with a sentence that begins with the name; *out is then zeroed. Undo:
 * client_data_free. */
int client_data_open(struct client_data *out, const char *const *names, size_t n_names, struct error *err);
/* Opens labelled rows (client/corpus/labelled.h) as client_data_open: the suffixes are .tsv, .jsonl and .ndjson. */
int client_data_open_rows(struct client_data *out, const char *const *names, size_t n_names, struct error *err);
/* Opens images (client/images/images.h) as client_data_open. A directory with directories in it is a folder for each
 * class. One without gives its files of training data: CIFAR's .bin, and those with "images" in their name; not those
 * that begin with test or t10k, which must be named. Standard input is refused. */
int client_data_open_images(struct client_data *out, const char *const *names, size_t n_names, struct error *err);
void client_data_free(struct client_data *data); /* safe on a zeroed struct */

/* ".tsv or .jsonl": the suffixes that a directory's files have. */
const char *client_data_suffixes(const struct client_data *data);

/* Refuses files with a weight, if rows are of a kind that has none. -EINVAL. */
int client_data_refuse_weights(const struct client_data *data, struct error *err);

/* The name that opens a file again with its weight, as an absolute path if it exists. Owned: free. NULL: no memory. */
char *client_data_name(const struct client_data_file *file);

/* True if every file is text. */
bool client_data_is_text(const struct client_data *data);

struct client_tokenizer;

struct client_data_rules {
    uint32_t vocabulary;
    struct client_tokenizer *tokenizer; /* for text; NULL if the model has none; borrowed for the call */
    const json_t *side;                 /* the model's side files, to say why it has none; may be NULL */
    enum eps_separator separator;       /* EPS_SEPARATOR_DEFAULT: the end token, if the tokenizer has one */
    const struct client_watch *watch;   /* asked every few MiB; its error ends the check; NULL: never asked */
};

/* Reads every token once and tokenises text; call it once. It refuses ids outside the vocabulary, invalid UTF-8 and
 * truncated files, naming the file, the position and the value. It also refuses text for a model with neither a
 * tokenizer nor a vocabulary of 256. A text may begin or end inside a character, as split and head cut it. Returns
 * -EINVAL or -errno; -EDOM for EPS_SEPARATOR_EOS with a tokenizer that has no end token. */
int client_data_check(struct client_data *data, const struct client_data_rules *rules, struct error *err);

/* Reads tokens first .. first+n-1 of the stream; the range must exist. -EIO if a file changed since it was checked. */
int client_data_read(const struct client_data *data, uint32_t *out, uint64_t first, uint64_t n, struct error *err);

/* Opens an empty nameless file for reading and writing, for large data that ends with the run. It lies in $TMPDIR or
 * /var/tmp, where it occupies page cache; if neither directory accepts it, it lies in memory. -errno; the sentence says
 * what the file was for. */
int client_data_nameless(const char *what, struct error *err);

/* Reads tokens first .. first+n-1 of such a file that holds tokens. -EIO: it ends before; -errno. */
int client_data_reread(int fd, uint32_t *out, uint64_t first, size_t n, struct error *err);

#endif
