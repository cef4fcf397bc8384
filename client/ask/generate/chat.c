/* eps_chat_*: a conversation. Each turn renders the template over all messages, encodes the text, and runs the tokens
 * from the first one on that the worker has not run at this place; so a turn computes its own message only, unless the
 * template changes what stands before it. */
#include "client/ask/generate/sampling.h"
#include "client/ask/generate/writer.h"
#include "client/daemon/observer.h"
#include "client/eps.h"
#include "client/text/rendered.h"
#include "client/text/template.h"
#include "client/text/utf8.h"
#include "proto/base/json.h"
#include "proto/model/family.h"
#include "proto/plan/memory/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEFAULT_CONTEXT = 4096 };

struct eps_chat {
    struct eps_chat_options options; /* with context and n_tokens resolved */
    struct eps_chat_events events;
    void *user;
    struct client_forward forward;
    struct client_writer writer;
    struct client_template *template;
    json_t *variables; /* of the template, with "messages" */
    json_t *messages;  /* borrowed from it */
    uint32_t *row;     /* (n_row of context), owned: tokens of which the worker has keys and values */
    uint32_t n_row;
    struct client_text answer;
};

static int ask_chat_ask(const struct eps_chat *chat)
{
    return chat->events.should_stop ? chat->events.should_stop(chat->user) : 0;
}

/* While the worker computes, only the end of all can interrupt. */
static int should_end(void *user)
{
    return ask_chat_ask(user) > 1;
}

static void pass_note(void *user, const char *sentence)
{
    struct eps_chat *chat = user;

    if (chat->events.on_note)
        chat->events.on_note(chat->user, sentence);
}

static int chat_add_message(struct eps_chat *chat, const char *role, const char *text, size_t n, struct error *err)
{
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", n > 0 ? text : "", n);

    return message && json_array_append_new(chat->messages, message) == 0
               ? 0
               : error_set(err, -ENOMEM, "out of memory for a message");
}

static int open_template(struct eps_chat *chat, struct error *err)
{
    const json_t *side = chat->forward.model.side;
    const char *system = chat->options.system;

    client_forward_follow_training(&chat->forward, &chat->options.chat_template, &chat->options.split_special_tokens);
    int rc = client_template_find(&chat->template, side, chat->options.chat_template, false, err);

    if (rc)
        return rc;
    if (!chat->writer.tokenizer && (rc = client_tokenizer_refuse_unread(side, err)) != 0)
        return rc;
    if (!chat->writer.tokenizer)
        return error_set(
            err, -EINVAL,
            "the model has no tokenizer (tokenizer.json, or vocab.json and merges.txt), so it cannot chat");
    if (!chat->template)
        return error_set(err, -EINVAL,
                         "the model has no chat template (chat_template.jinja, or chat_template in "
                         "tokenizer_config.json); a base model continues texts: use eps generate");
    chat->variables = json_pack("{s:[], s:b, s:n, s:n}", "messages", "add_generation_prompt", 1, "tools", "documents");
    chat->messages = json_object_get(chat->variables, "messages");
    if (!chat->messages)
        return error_set(err, -ENOMEM, "out of memory for a conversation");
    rc = client_tokenizer_names(chat->variables, chat->writer.tokenizer, side, err);
    if (rc || !system)
        return rc;
    if (client_utf8_whole((const uint8_t *)system, strlen(system)) < strlen(system))
        return error_set(err, -EDOM, "--system is not UTF-8 text");
    return chat_add_message(chat, "system", system, strlen(system), err);
}

/* A default context is less than all positions, as keys and values of all of them are kept. */
static int chat_resolve(struct eps_chat *chat, struct error *err)
{
    const uint32_t n_positions = chat->forward.model.config.n_positions;
    struct eps_chat_options *o = &chat->options;

    if (o->context > n_positions)
        return error_set(err, -EDOM, "--context %" PRIu32 " is more than the model's %" PRIu32 " positions", o->context,
                         n_positions);
    if (o->context == 0)
        o->context = n_positions < DEFAULT_CONTEXT ? n_positions : DEFAULT_CONTEXT;
    if (o->n_tokens == 0 || o->n_tokens > o->context)
        o->n_tokens = o->context;
    chat->row = malloc(o->context * sizeof *chat->row);
    return chat->row ? 0 : error_set(err, -ENOMEM, "out of memory for %" PRIu32 " ids", o->context);
}

/* Opens the writer, which draws as the model's files say where nothing else was asked for. */
static int chat_open_writer(struct eps_chat *chat, struct error *err)
{
    const struct eps_chat_options *o = &chat->options;
    struct client_sample_options sample;
    struct error note;
    const int rc = client_sampling_resolve(&sample, &note, &o->sampling, chat->forward.model.side, err);

    if (rc)
        return rc;
    if (note.text[0])
        pass_note(chat, note.text);
    return client_writer_open(&chat->writer, &chat->forward, &sample, o->stops, o->n_stops, false, err);
}

static int open_chat(struct eps_chat *chat, struct error *err)
{
    const struct eps_chat_options *o = &chat->options;
    const struct client_forward_options forward = {.model = o->model,
                                                   .base_model = o->base_model,
                                                   .connect = o->connect,
                                                   .wait = o->wait,
                                                   .programs = o->programs,
                                                   .device = o->device,
                                                   .device_mem = o->device_mem,
                                                   .should_stop = should_end,
                                                   .on_note = pass_note,
                                                   .user = chat};
    int rc = client_forward_open(&chat->forward, &forward, err);

    if (!rc && model_has_source(&chat->forward.model.config))
        rc =
            error_set(err, -EINVAL, "a %s model writes the target of a source, and does not converse: use eps generate",
                      chat->forward.model.config.family->model_type);
    if (!rc) /* before the template is missed, which such a model rarely has */
        rc = plan_check_generates(&chat->forward.model.config, err);
    if (!rc)
        rc = chat_open_writer(chat, err);
    if (!rc)
        rc = open_template(chat, err);
    if (!rc)
        rc = chat_resolve(chat, err);
    return rc ? rc : client_writer_start(&chat->writer, o->context, 1, err);
}

struct eps_chat_options eps_chat_defaults(void)
{
    return (struct eps_chat_options){.wait = NAN, .sampling = eps_generate_defaults().sampling};
}

int eps_chat_open(struct eps_chat **out, const struct eps_chat_options *options, const struct eps_chat_events *events,
                  void *user, struct eps_error *error)
{
    const struct client_sample_options sample = client_sampling_of(&options->sampling);
    struct error err = {""};
    int rc = client_sample_check(&sample, &err);
    struct eps_chat *chat = rc ? NULL : calloc(1, sizeof *chat);

    *out = NULL;
    if (!rc && !chat)
        rc = error_memory(&err);
    if (rc)
        return client_report(error, &err, rc);
    chat->options = *options;
    if (events)
        chat->events = *events;
    chat->user = user;
    rc = open_chat(chat, &err);
    if (rc)
        eps_chat_close(chat);
    else
        *out = chat;
    return client_report(error, &err, rc);
}

void eps_chat_close(struct eps_chat *chat)
{
    if (!chat)
        return;
    client_writer_close(&chat->writer);
    client_forward_close(&chat->forward);
    client_template_close(chat->template);
    json_decref(chat->variables);
    free(chat->row);
    free(chat->answer.bytes);
    free(chat);
}

struct eps_chat_facts eps_chat_facts(const struct eps_chat *chat)
{
    return (struct eps_chat_facts){.model_type = chat->forward.model.config.family->model_type,
                                   .n_parameters = chat->writer.job.n_parameters,
                                   .context = chat->options.context};
}

/* ---- Messages ---- */

static bool is_role(const json_t *messages, size_t i, const char *role)
{
    const char *is = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return is && strcmp(is, role) == 0;
}

void eps_chat_clear(struct eps_chat *chat)
{
    const size_t n_kept = is_role(chat->messages, 0, "system") ? 1 : 0;

    while (json_array_size(chat->messages) > n_kept)
        json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
}

int eps_chat_set_system(struct eps_chat *chat, const char *text, size_t n, struct eps_error *error)
{
    const bool has_system = is_role(chat->messages, 0, "system");
    struct error err = {""};
    int rc = 0;

    if (client_utf8_whole((const uint8_t *)text, n) < n)
        rc = error_set(&err, -EINVAL, "the system message is not UTF-8 text");
    json_t *message = rc || n == 0 ? NULL : json_pack("{s:s, s:s%}", "role", "system", "content", text, n);
    if (!rc && n > 0 && (!message || json_array_insert_new(chat->messages, 0, message)))
        rc = error_memory(&err);
    if (!rc && has_system)
        json_array_remove(chat->messages, n > 0 ? 1 : 0);
    return client_report(error, &err, rc);
}

/* ---- A turn ---- */

/* The tokens of the conversation, up to where the answer begins. */
static int chat_encode(struct client_tokens *out, struct eps_chat *chat, struct error *err)
{
    struct client_rendering text;
    uint64_t n_spelled = 0;
    int rc = client_template_render_labelled(&text, chat->template, chat->variables, time(NULL), err);

    out->n = 0;
    if (rc) {
        error_prefix(err, "the chat template");
        return rc;
    }
    rc = client_rendered_encode(out, NULL, &n_spelled, chat->writer.tokenizer, &text, NULL, 0,
                                chat->options.split_special_tokens == EPS_SPLIT_NO, err);
    free(text.text);
    free(text.labels);
    if (!rc && out->n == 0)
        rc = error_set(err, -EINVAL, "the chat template makes no text of this conversation");
    return rc;
}

/* Drops the oldest message of the user, and what follows it up to the next one. Returns how many; 0: there is only the
 * last one. */
static uint32_t drop_turn(struct eps_chat *chat)
{
    const size_t first = is_role(chat->messages, 0, "system") ? 1 : 0;
    uint32_t n = 0;

    if (first + 1 >= json_array_size(chat->messages))
        return 0;
    do {
        json_array_remove(chat->messages, first);
        n++;
    } while (!is_role(chat->messages, first, "user"));
    return n;
}

/* Encodes the conversation, with as many old turns as leave room for the answer. */
static int chat_fit(struct client_tokens *out, struct eps_answer *answer, struct eps_chat *chat, struct error *err)
{
    const uint32_t context = chat->options.context, quarter = context / 4 > 0 ? context / 4 : 1;
    const uint32_t room = chat->options.n_tokens < quarter ? chat->options.n_tokens : quarter;

    for (;;) {
        int rc = chat_encode(out, chat, err);
        if (rc || (room < context && out->n <= context - room))
            return rc;
        const uint32_t n = drop_turn(chat);
        if (n == 0 && out->n >= context)
            return error_set(err, -E2BIG,
                             "the message makes %zu tokens, and the context has %" PRIu32
                             ": shorten it, or give a larger --context",
                             out->n, context);
        if (n == 0)
            return 0;
        answer->n_dropped += n;
    }
}

/* The answer is kept as a message of its own for the next turn, whose template renders it again. */
static int take_text(struct eps_chat *chat, const char *text, size_t n, struct error *err)
{
    int rc = client_text_add(&chat->answer, text, n, err);

    if (!rc && n > 0 && chat->events.on_text)
        chat->events.on_text(chat->user, text, n);
    return rc;
}

/* Writes the answer after the conversation's tokens, of which the first `reused` are the row's. */
static int write_answer(struct eps_answer *out, struct eps_chat *chat, const struct client_tokens *tokens,
                        uint32_t reused, struct error *err)
{
    const uint32_t context = chat->options.context;
    uint32_t first = reused, n_all = (uint32_t)tokens->n;
    int rc = client_writer_begin(&chat->writer, 0, tokens->ids, tokens->n, err);

    memcpy(chat->row, tokens->ids, tokens->n * sizeof *chat->row);
    while (!rc && !out->ended && !out->stopped && !out->full && !out->interrupted &&
           out->n_tokens < chat->options.n_tokens) {
        const uint64_t since_ns = uv_hrtime();
        const char *text;
        uint32_t id = 0;
        size_t n;
        rc = client_writer_draw(&id, &out->ended, &chat->writer, chat->row, first, n_all - first, n_all, err);
        if (rc)
            break;
        chat->n_row = first = n_all;
        *(out->n_tokens == 0 ? &out->prompt_ms : &out->tokens_ms) += (double)(uv_hrtime() - since_ns) / 1e6;
        out->n_tokens++;
        out->interrupted = ask_chat_ask(chat) > 0;
        out->full = !out->ended && n_all == context;
        if (n_all < context)
            chat->row[n_all++] = id;
        rc = client_writer_read(&text, &n, &chat->writer, 0, id, false, out->ended,
                                out->ended || out->full || out->interrupted || out->n_tokens == chat->options.n_tokens,
                                err);
        out->stopped = client_writer_has_stopped(&chat->writer, 0);
        if (!rc)
            rc = take_text(chat, text, n, err);
    }
    return rc;
}

/* A person may think for as long as they like. If others wait meanwhile, their jobs come first: then all of the
 * conversation is run again. */
static int chat_answer(struct eps_answer *out, struct eps_chat *chat, const struct client_tokens *tokens,
                       uint32_t reused, struct error *err)
{
    int rc = write_answer(out, chat, tokens, reused, err);

    if (!rc || out->n_tokens > 0 || !client_writer_gave_way(&chat->writer))
        return rc;
    chat->n_row = out->n_reused = 0;
    rc = client_writer_renew(&chat->writer, err);
    return rc ? rc : write_answer(out, chat, tokens, 0, err);
}

static int chat_say(struct eps_answer *out, struct eps_chat *chat, const char *text, size_t n, struct error *err)
{
    struct client_tokens tokens = {0};
    const size_t at = client_utf8_whole((const uint8_t *)text, n);
    uint32_t reused = 0;

    if (at < n)
        return error_set(err, -EINVAL, "the message is not UTF-8 text: byte %zu is 0x%02X", at,
                         (unsigned char)text[at]);
    json_t *before = json_copy_whole(chat->messages);
    int rc = before ? chat_add_message(chat, "user", text, n, err) : error_memory(err);
    if (!rc)
        rc = chat_fit(&tokens, out, chat, err);
    /* At least one token is run: the logits after the last one are needed. */
    while (!rc && reused < chat->n_row && reused + 1 < tokens.n && chat->row[reused] == tokens.ids[reused])
        reused++;
    chat->answer.n = 0;
    if (!rc) {
        out->n_prompt = (uint32_t)tokens.n, out->n_reused = reused;
        rc = chat_answer(out, chat, &tokens, reused, err);
    }
    if (!rc)
        rc = chat_add_message(chat, "assistant", chat->answer.bytes, chat->answer.n, err);
    if (rc && before) { /* as if it had not been said; takes no memory, as a cleared array keeps its room */
        json_array_clear(chat->messages);
        json_array_extend(chat->messages, before);
    }
    json_decref(before);
    free(tokens.ids);
    return rc;
}

int eps_chat_say(struct eps_answer *out, struct eps_chat *chat, const char *text, size_t n, struct eps_error *error)
{
    struct error err = {""};

    *out = (struct eps_answer){0};
    return client_report(error, &err, chat_say(out, chat, text, n, &err));
}
