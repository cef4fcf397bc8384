/* client/corpus/documents.h - documents from .jsonl files: conversations, prompts with completions, and texts, each as a
 * row of tokens of its own (client/text/conversation.h).
 *
 * A document of n tokens has n - 1 inputs, each of which predicts the token after it, if that is trained. Documents
 * are tokenised once, into a nameless file; each takes 28 bytes of memory beside that. */
#ifndef CLIENT_CORPUS_DOCUMENTS_H
#define CLIENT_CORPUS_DOCUMENTS_H

#include "client/data/data.h"
#include "client/eps.h"
#include "client/text/tokenizer.h"

#include <jansson.h>

struct client_document {
    uint64_t at;         /* its first token in the file */
    uint32_t n;          /* tokens */
    uint32_t first;      /* the first input that predicts a token; UINT32_MAX: none does */
    uint32_t file, line; /* that it is from, as a number from 0, from 1: a conversation may make several documents */
};

struct client_documents {
    struct client_document *list; /* (n), owned */
    uint32_t *lengths;            /* (n) inputs, owned */
    size_t n, cap;
    size_t n_lines;     /* that made them */
    uint64_t n_spelled; /* special tokens that messages spell, split like any text */
    int fd;             /* tokens, u32, with CLIENT_TOKEN_TRAINED */
    uint64_t n_tokens;
    uint64_t hash; /* xxh3, 64 bits, over tokens and lengths of all documents */
};

struct client_documents_rules {
    struct client_tokenizer *tokenizer; /* borrowed for the call */
    const json_t *side;                 /* the model's side files; may be NULL */
    const char *chat_template;          /* its name, as in client_template_find; may be NULL */
    enum eps_train_on train_on;         /* resolved */
    bool parses;                        /* special tokens that messages spell are tokens */
    bool weighted;                      /* files may have weights */
    bool pairs;                         /* lines are preferences: document 2k is chosen, and 2k + 1 rejected */
    /* Lines are sources with targets: a document is the one, not trained, and then the other. Files of text come in
     * twos, of sources and of their targets, line by line. */
    bool targets;
    /* With targets, of each document: its target as it stands in the file. May be NULL. */
    int (*on_target)(void *user, const char *text, size_t n, struct error *err);
    void *user;
    const struct client_watch *watch; /* as in client_data_rules */
};

/* Appends a source or a target: with what the tokenizer puts around a text, and the token that ends it. */
int client_documents_encode(struct client_tokens *tokens, struct client_tokenizer *tokenizer, const char *text,
                            size_t n_bytes, struct error *err);

enum client_documents_kind { CLIENT_NO_DOCUMENTS, CLIENT_DOCUMENTS, CLIENT_DOCUMENT_PAIRS };

/* What the data are: documents, if the first line of some .jsonl file is a conversation, or has a prompt and a
 * completion; pairs, if it is a preference. Unpacks the files, as client_data_unpack does. Errors as there; a first
 * line that is none is no error here. */
int client_documents_are(enum client_documents_kind *out, struct client_data *data, const struct client_watch *watch,
                         struct error *err);

/* Reads every line of the files (client_data_open). -EINVAL or -errno with a sentence that begins with the file and
 * the line: no JSON object, or of no known layout, or as client_conversation_encode. Undo: client_documents_free, also
 * after a failure. */
int client_documents_read(struct client_documents *out, struct client_data *data,
                          const struct client_documents_rules *rules, struct error *err);
void client_documents_free(struct client_documents *documents); /* safe on a zeroed struct whose fd is -1 */

/* Inputs of document k when it is cut to seq. */
uint32_t client_documents_length(const struct client_documents *documents, size_t k, uint32_t seq);

/* Reads the first n tokens of document k, with CLIENT_TOKEN_TRAINED. -EIO, -errno. */
int client_documents_tokens(const struct client_documents *documents, uint32_t *out, size_t k, uint32_t n,
                            struct error *err);

/* What becomes of document k at seq. */
enum eps_fate client_documents_fate(const struct client_documents *documents, size_t k, uint32_t seq,
                                    enum eps_long long_rows);

/* Refuses a document for its length: -EINVAL. */
int client_documents_refuse(const struct client_documents *documents, const struct client_data *data, size_t k,
                            uint32_t seq, struct error *err);

uint32_t client_documents_longest(const struct client_documents *documents);

#endif
