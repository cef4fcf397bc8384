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
