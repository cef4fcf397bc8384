/* client/eps_texts.h - texts that a model writes: continuations of prompts, targets of sources, conversations.
 *
 * Included by eps.h. */
#ifndef CLIENT_EPS_TEXTS_H
#define CLIENT_EPS_TEXTS_H

#include "eps_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libeps.so */

struct eps_error; /* eps.h */

/* How tokens are drawn, in the order of transformers: repetition_penalty, temperature, top_k, top_p, min_p.
 * Temperature, top_k and top_p that are unset are those of the model's generation_config.json, which may also say that
 * the likeliest token is always taken (do_sample false); that holds unless one of these or min_p is set. on_note says
 * what was taken; a beam search takes nothing, and says so. */
struct eps_sampling {
    double repetition_penalty; /* divides positive logits of tokens in the text, multiplies negative ones; NAN: 1 */
    double temperature;        /* 0: greedy, always the likeliest token; NAN: the model's, else 1 */
    uint32_t top_k;            /* draw among the k likeliest; 0: all; UINT32_MAX: the model's, else all */
    double top_p; /* draw among the likeliest that together have this probability; NAN: the model's, else 1, all */
    double min_p; /* draw among tokens with this fraction of the likeliest one's probability or more; NAN: 0, all */
    uint64_t seed;
};

/* A text to continue: UTF-8, or token ids. With neither, generation begins after the tokens that the tokenizer puts
 * before a text, else after an end-of-text token, or after a newline if the tokens are bytes. Those tokens also precede
 * a text. */
struct eps_prompt {
    const char *text; /* (n_bytes) */
    size_t n_bytes;
    const uint32_t *ids; /* (n_ids) */
    size_t n_ids;
};

/* Continues texts, token by token. Start from eps_generate_defaults(). */
struct eps_generate_options {
    const char *model, *base_model; /* as in eps_eval_options */
    const char *connect, *programs;
    double wait; /* as in eps_eval_options */
    const char *device;
    uint64_t device_mem;
    const struct eps_prompt *prompts; /* (n_prompts) */
    size_t n_prompts;                 /* 0: one empty prompt */
    /* Continuations of each prompt; 0: 1. The k-th, from 0, is drawn with seed + k. Each text is the one that a call of
     * its own would give. Texts advance together, as many as device_mem has room for, and share the run of a prompt. */
    uint32_t n_samples;
    /* Maximum of new tokens; 0: 200. When prompt and new tokens exceed the model's positions, the model sees only the
     * last ones: the last half of them moves to the first positions. */
    uint32_t n_tokens;
    struct eps_sampling sampling;
    /* The likeliest text that a beam search finds, instead of a drawn one: as transformers' with early_stopping=False.
     * 0: none; then neither samples, sampling nor stops are of use. A text's score is the sum of its tokens' log p,
     * divided by their number to the power of length_penalty (NAN: 1). */
    uint32_t n_beams;
    double length_penalty;
    /* (n_stops) The text ends before the first of these that it holds, wherever tokens begin and end. As stop_strings
     * in transformers, except that the stop string itself is left out, and that only new text is searched. */
    const char *const *stops;
    size_t n_stops;
};
struct eps_generate_options eps_generate_defaults(void); /* all options unset */

/* Figures of one text; or of all, added up. */
struct eps_generated { /* also set after a failure, as far as known */
    uint32_t n_texts;  /* with a new token */
    uint32_t n_prompt, n_tokens;
    /* Until the first new token was drawn, without loading; little if the prompt had been run; and for the other
     * tokens, without callbacks. Of all texts: the time of passes that drew first tokens alone, and of the others. */
    double prompt_ms, tokens_ms;
    uint64_t weight_bytes; /* of the whole model */
    uint64_t token_bytes;  /* weight bytes that each token reads */
    /* Weight bytes that stayed on the device. The others are relayed for each token, or once for a token of each text
     * that advances, except the token and position tables, which are looked up in host memory. */
    uint64_t resident_bytes;
    double score;      /* of a beam search's text; NAN: of none, or of several */
    uint32_t n_slides; /* how often the window slid because all positions were used */
    bool ended;   /* by one of the model's end tokens: eos_token_id of generation_config.json, else of config.json */
    bool stopped; /* by a stop string; of several texts: each ended so */
};

struct eps_generate_events {
    void (*on_targets)(
        void *user); /* before all texts, of an encoder-decoder: the prompts are sources, and these targets */
    /* Texts come one after another: all samples of the first prompt, then those of the next. */
    void (*on_begin)(void *user, size_t prompt, uint32_t sample);
    /* Each token as it is drawn, or once the texts before have ended: its id, and the text that it completes, valid
     * UTF-8 and maybe empty. Invalid bytes become U+FFFD. An end token has an empty text. Text that may belong to a
     * stop string comes with a later token. text is NULL if the model has no tokenizer. */
    void (*on_token)(void *user, uint32_t id, const char *text, size_t n);
    /* After a text's last token, also of one that was interrupted. */
    void (*on_end)(void *user, const struct eps_generated *text);
    int (*should_stop)(void *user); /* asked several times a second and between two passes; not 0: -EINTR */
    void (*on_note)(void *user, const char *sentence); /* what it waits for, or took from the model's files */
};
/* *out: of all texts. */
int eps_generate(struct eps_generated *out, const struct eps_generate_options *options,
                 const struct eps_generate_events *events, void *user, struct eps_error *error);

/* A conversation with a model, in the format of its own chat template: chat_template.jinja, or chat_template of
 * tokenizer_config.json. Special tokens that messages spell are text, as split_special_tokens says.
 * Start from eps_chat_defaults(). */
struct eps_chat_options {
    const char *model, *base_model; /* as in eps_eval_options */
    const char *connect, *programs;
    double wait; /* as in eps_eval_options */
    const char *device;
    uint64_t device_mem;
    const char *chat_template; /* the name of one of several templates; NULL: as the model was trained, or `default` */
    const char *system;        /* the system message; NULL: none, or the template's own */
    enum eps_split split_special_tokens; /* as in eps_train_options; unset: as the model was trained */
    /* Tokens that the model sees of the conversation, answers included; 0: 4096, or the model's positions if they are
     * fewer. The cache of keys and values has this size. When a message leaves less than a quarter of them for the
     * answer (or than n_tokens, if that is less), the oldest messages but the system's are dropped. */
    uint32_t context;
    uint32_t n_tokens; /* maximum of an answer's tokens; 0: the context's */
    struct eps_sampling sampling;
    const char *const *stops; /* (n_stops) as in eps_generate_options; they end an answer */
    size_t n_stops;
};
struct eps_chat_options eps_chat_defaults(void); /* all options unset */
struct eps_answer {                              /* also set after a failure, as far as known */
    uint32_t n_prompt;                           /* tokens of the conversation before the answer */
    uint32_t n_reused;  /* of them: not computed again, since the conversation began with the same tokens before */
    uint32_t n_tokens;  /* of the answer, an end token included */
    uint32_t n_dropped; /* messages dropped before it */
    double prompt_ms, tokens_ms; /* as in eps_generated */
    bool ended;                  /* by an end token */
    bool stopped;                /* by a stop string */
    bool interrupted;            /* by should_stop */
    bool full;                   /* because the context was full */
};
struct eps_chat_events {
    /* Text of an answer as it is written: whole characters, without special tokens. */
    void (*on_text)(void *user, const char *text, size_t n);
    /* Asked several times a second and between two tokens. 1: the answer ends here, and stays in the conversation. 2:
     * the call ends with -EINTR. 0: it goes on. */
    int (*should_stop)(void *user);
    void (*on_note)(void *user, const char *sentence); /* what it waits for, or took from the model's files */
};
struct eps_chat;
/* Opens the model and starts its worker. The options' texts are borrowed until close; events may be NULL, and so may
 * each callback. -EINVAL: the model has no tokenizer, or no template, or one that is not supported. Undo:
 * eps_chat_close. */
int eps_chat_open(struct eps_chat **out, const struct eps_chat_options *options, const struct eps_chat_events *events,
                  void *user, struct eps_error *error);
/* Adds a user's message (n bytes of UTF-8) to the conversation, and the answer. After an error the conversation is as
 * it was before; after others than -EINVAL and -E2BIG (the message alone fills the context) the chat can only be
 * closed. */
int eps_chat_say(struct eps_answer *out, struct eps_chat *chat, const char *text, size_t n, struct eps_error *error);
/* Forgets all messages but the system's. */
void eps_chat_clear(struct eps_chat *chat);
/* Sets the system message (n bytes of UTF-8) from the next answer on; 0 bytes: there is none, or the template's own.
 * Other messages stay. -EINVAL: not UTF-8; -ENOMEM. On failure the conversation is as it was. */
int eps_chat_set_system(struct eps_chat *chat, const char *text, size_t n, struct eps_error *error);
void eps_chat_close(struct eps_chat *chat); /* NULL is safe */

/* What a conversation is with. */
struct eps_chat_facts {
    const char *model_type; /* as config.json says: "llama"; constant */
    uint64_t n_parameters;
    uint32_t context; /* tokens of the conversation that the model sees */
};
struct eps_chat_facts eps_chat_facts(const struct eps_chat *chat);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
