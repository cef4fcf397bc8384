/* client/corpus/corpus.h - samples from files: where each has its tokens, and what is known of it beside them.
 *
 * Readers (client/corpus/documents.h, client/corpus/labelled.h) tokenise files once, into one nameless file of ids. A
 * sample takes 32 bytes of memory beside that. What is learned from a sample is the task's (client/task/source.h). */
#ifndef CLIENT_CORPUS_CORPUS_H
#define CLIENT_CORPUS_CORPUS_H

#include "client/data/data.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_example {
    uint64_t at;         /* its first token in the file */
    uint32_t n[2];       /* tokens of its two parts, which follow each other; the reader says what they are */
    uint32_t label;      /* a class, the bits of a number, or PLAN_NO_LABEL */
    uint32_t is_paired;  /* of labelled rows: there is a second text, maybe an empty one */
    uint32_t file, line; /* that it is from, as a number from 0, from 1: a line may make several samples */
};

struct client_corpus {
    struct client_example *list; /* (n), owned */
    size_t n, cap;
    size_t n_lines;     /* of documents: that made them */
    uint64_t n_spelled; /* special tokens that messages spell, split like any text */
    int fd;             /* tokens, u32 */
    uint64_t n_tokens;
    uint64_t hash; /* xxh3, 64 bits, over all that is learned from; the reader says of what */
};

/* An empty one. -errno. Undo: client_corpus_free, also after a failure. */
int client_corpus_init(struct client_corpus *out, struct error *err);
void client_corpus_free(struct client_corpus *corpus); /* safe on a zeroed struct whose fd is -1 */

/* Adds a sample with its ids, as many as both parts have; sets `at`. file stands in a sentence about a failed write.
 * -E2BIG, -ENOMEM, -errno. */
int client_corpus_add(struct client_corpus *corpus, struct client_example example, const uint32_t *ids,
                      const struct client_data_file *file, struct error *err);

/* Reads the first n tokens of sample k. -EIO, -errno. */
int client_corpus_tokens(const struct client_corpus *corpus, uint32_t *out, size_t k, size_t n, struct error *err);

#endif
