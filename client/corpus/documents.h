/* client/corpus/documents.h - documents from .jsonl files: conversations, prompts with completions, and texts, each as a
 * row of tokens of its own (client/text/conversation.h).
 *
 * A document of n tokens has n - 1 inputs, each of which predicts the token after it, if that is trained. Its first part
 * (struct client_example) is what precedes the first token that is predicted: of n[0] = n tokens none is. Tokens in the
 * corpus have CLIENT_TOKEN_TRAINED; its checksum covers that, and the number of each document's tokens. */
#ifndef CLIENT_CORPUS_DOCUMENTS_H
#define CLIENT_CORPUS_DOCUMENTS_H

#include "client/corpus/corpus.h"
#include "client/eps.h"
#include "client/text/tokenizer.h"

#include <jansson.h>

/* A line and its documents: first .. n-1 of the corpus. */
struct client_documents_line {
    json_t *object;     /* what is taken out of it counts as read; NULL: it is a line of two files of text */
    const char *target; /* as it stands in the file, of n_target bytes; NULL: it is no source with a target */
    size_t n_target;
    struct client_corpus *documents;
    size_t first;
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
    /* Each line, once its documents are there. May be NULL. */
    int (*on_line)(void *user, const struct client_documents_line *line, struct error *err);
    void *user;
    const struct client_watch *watch; /* as in client_data_rules */
};

/* Appends a source or a target: with what the tokenizer puts around a text, and the token that ends it. */
int client_documents_encode(struct client_tokens *tokens, struct client_tokenizer *tokenizer, const char *text,
                            size_t n_bytes, struct error *err);

/* Asks what data are, by the first line of each .jsonl file, until `is` says true: *out. line: NULL if it is no JSON.
 * Unpacks the files, as client_data_unpack does. Errors as there. */
int client_documents_ask(bool *out, struct client_data *data, bool (*is)(void *user, const json_t *line), void *user,
                         const struct client_watch *watch, struct error *err);

/* Reads every line of the files (client_data_open). -EINVAL or -errno with a sentence that begins with the file and
 * the line: no JSON object, or of no known layout, or as client_conversation_encode. Undo: client_corpus_free, also
 * after a failure. */
int client_documents_read(struct client_corpus *out, struct client_data *data,
                          const struct client_documents_rules *rules, struct error *err);

/* Inputs of a document. */
static inline uint32_t client_document_inputs(const struct client_example *document)
{
    return document->n[0] + document->n[1] - 1;
}

/* Inputs of document k when it is cut to seq. */
uint32_t client_documents_length(const struct client_corpus *documents, size_t k, uint32_t seq);

/* What becomes of document k at seq. */
enum eps_fate client_documents_fate(const struct client_corpus *documents, size_t k, uint32_t seq,
                                    enum eps_long long_rows);

/* Refuses a document for its length: -EINVAL. */
int client_documents_refuse(const struct client_corpus *documents, const struct client_data *data, size_t k,
                            uint32_t seq, struct error *err);

uint32_t client_documents_longest(const struct client_corpus *documents);

#endif
