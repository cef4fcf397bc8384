/* client/text/turns.h - a conversation's messages, as its template gets them, and which of them are trained. */
#ifndef CLIENT_TEXT_TURNS_H
#define CLIENT_TEXT_TURNS_H

#include "client/eps.h"
#include "client/text/template.h"

struct client_turns {
    const struct client_template *template; /* borrowed */
    enum eps_train_on train_on;
    json_t *variables; /* of the template, with the messages */
    json_t *messages;  /* borrowed from it */
    bool *trained;     /* (n) */
    size_t n, n_trained;
};

/* Takes a conversation, as client_conversation_encode has it; variables: the template's others, borrowed. Errors as
 * there. Undo, also after an error: client_turns_close. */
int client_turns_open(struct client_turns *t, const struct client_template *template, const json_t *variables,
                      enum eps_train_on train_on, const json_t *conversation, struct error *err);
void client_turns_close(struct client_turns *t);

/* Renders the first n messages, with a prompt for an answer or without. Errors as client_template_render_labelled. */
int client_turns_render(struct client_rendering *out, const struct client_turns *t, size_t n, bool prompts,
                        struct error *err);

bool client_turns_is_role(const json_t *message, const char *role);

#endif
