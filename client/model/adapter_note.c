/* Others' adapters have silently been on no experts: so a mixture's run says which maps it adapts, and which not. */
#include "client/model/adapter.h"

#include <stdio.h>
#include <string.h>

enum { NOTE_MAPS = 512 };

struct note {
    const struct model_adapter *adapter;
    char adapted[NOTE_MAPS], others[NOTE_MAPS]; /* "self_attn.q_proj, mlp.gate" */
    uint32_t n_experts, n_mixtures;             /* of the layers that have some; how many these are */
};

static bool note_has(const char *list, const char *stem, size_t n)
{
    for (const char *at = list; *at; at += strspn(at, ", ")) {
        const size_t length = strcspn(at, ",");
        if (length == n && strncmp(at, stem, n) == 0)
            return true;
        at += length;
    }
    return false;
}

static int note_linear(void *data, const struct model_linear *linear)
{
    struct note *note = data;
    const bool adapted = program_adapter_lists(note->adapter->modules, linear->stem, linear->n_stem);
    char *const list = adapted ? note->adapted : note->others;
    const size_t n = strlen(list);

    if (linear->role == LINEAR_EXPERTS && strchr(linear->parts, ','))
        note->n_experts = linear->n_experts, note->n_mixtures++;
    if (!note_has(list, linear->stem, linear->n_stem))
        snprintf(list + n, NOTE_MAPS - n, "%s%.*s", n ? ", " : "", (int)linear->n_stem, linear->stem);
    return 0;
}

int client_adapter_note(char out[CLIENT_ADAPTER_NOTE_BYTES], const struct model_config *config, struct error *err)
{
    struct note note = {.adapter = &config->adapter};
    struct model model;

    out[0] = 0;
    const int rc = config->adapter.rank > 0 ? model_init(&model, config, err) : 0;
    if (rc || config->adapter.rank == 0)
        return rc;
    model_each_linear(&model, note_linear, &note);
    model_free(&model);
    if (note.n_experts > 0)
        snprintf(out, CLIENT_ADAPTER_NOTE_BYTES, "adapted: %s; not adapted: %s; experts: %u in each of %u blocks",
                 note.adapted, *note.others ? note.others : "none", note.n_experts, note.n_mixtures);
    return 0;
}
