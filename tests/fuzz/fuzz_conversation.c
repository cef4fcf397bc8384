/* tests/fuzz/fuzz_conversation.c - a conversation by a chat template: it is refused, or each of its rows is trained
 * somewhere, but not at its first token.
 *
 * The first byte chooses tokenizer and --train-on; the template follows, a zero byte, and an object in any layout. */
#include "client/corpus/layouts.h"
#include "client/text/conversation.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>

enum { VOCABULARY = 4096, TOKENIZERS = 4 };

static char *read_tokenizer(unsigned i)
{
    static const char *const names[TOKENIZERS] = {"qwen", "llama2", "llama2_old", "gemma"};
    char path[300];

    snprintf(path, sizeof path, TESTS_DIR "/fixtures/tokenizers/%s.json", names[i]);
    json_t *whole = json_load_file(path, 0, NULL);
    char *text = json_dumps(whole, 0);
    json_decref(whole);
    return text;
}

static int take(void *user, const uint32_t *ids, size_t n, struct error *err)
{
    (void)user, (void)err;
    for (size_t i = 0; i < n; i++)
        fuzz_demand((ids[i] & ~CLIENT_TOKEN_TRAINED) < VOCABULARY);
    fuzz_demand(n > 1 && !(ids[0] & CLIENT_TOKEN_TRAINED));
    return 0;
}

static void encode(struct client_conversations *c, json_t *object)
{
    const enum client_layout layout = client_layout_of(object);
    struct error err = {""};
    int rc = 0;

    if (layout == CLIENT_LAYOUT_CONVERSATION) {
        json_t *conversation = client_layout_conversation(&rc, object, &err);
        if (fuzz_took(rc, &err))
            fuzz_took(client_conversation_encode(c, conversation, take, NULL, &err), &err);
        json_decref(conversation);
    } else if (layout != CLIENT_LAYOUT_NONE) {
        const char *text = layout == CLIENT_LAYOUT_TEXT ? "text" : "completion";
        fuzz_took(client_conversation_encode_text(c, json_object_get(object, "prompt"), json_object_get(object, text),
                                                  take, NULL, &err),
                  &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static struct client_tokenizer *tokenizers[TOKENIZERS];
    static const enum eps_train_on trains[] = {EPS_TRAIN_ON_ANSWERS, EPS_TRAIN_ON_ALL, EPS_TRAIN_ON_LAST,
                                               EPS_TRAIN_ON_ANSWERS};
    struct client_conversations *c;
    struct error err = {""};
    char *template, *line;
    size_t n_template, n_line;

    if (n == 0)
        return 0;
    const unsigned which = bytes[0] & 3, train_on = bytes[0] >> 2 & 3;
    bytes++, n--;
    if (!tokenizers[which]) {
        char *text = read_tokenizer(which);
        json_t *side = json_pack("{s:s}", "tokenizer.json", text);
        fuzz_demand(client_tokenizer_open(&tokenizers[which], side, NULL, VOCABULARY, &err) == 0);
        json_decref(side);
        free(text);
    }
    if (!fuzz_part(&template, &n_template, &bytes, &n))
        return 0;
    json_t *side = json_object(), *object = NULL;
    if (n_template > 0)
        json_object_set_new(side, "chat_template.jinja", json_stringn(template, n_template));
    if (fuzz_part(&line, &n_line, &bytes, &n)) {
        object = json_loadb(line, n_line, JSON_ALLOW_NUL, NULL);
        free(line);
    }
    if (object &&
        fuzz_took(client_conversations_open(&c, tokenizers[which], side, NULL, trains[train_on], &err), &err)) {
        encode(c, object);
        client_conversations_close(c);
    }
    json_decref(object);
    json_decref(side);
    free(template);
    return 0;
}
