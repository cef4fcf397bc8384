/* Names that other programs have for our options: TRL and transformers, axolotl, LLaMA-Factory, Unsloth, llama.cpp,
 * torchrun, nanoGPT. Whoever comes from there types them, and letters alone would name the wrong option: --n-gpu-layers
 * is near --drop-layers, and means --device-mem. So a row says what the option is called here, or why there is none.
 * tests/fixtures/foreign.txt has the programs' true lists. */
#include "client/eps.h"

#include "client/member.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define EPS_FOREIGN_LORA    "all of an adapter is one option: --lora rank=16,alpha=32,targets=q_proj,v_proj,dropout=0.05"
#define EPS_FOREIGN_ADAPTER "--model takes an adapter's directory, and finds its base"
#define EPS_FOREIGN_TRACKERS                                                                                           \
    "--tensorboard writes event files; W&B is in the Python package: eps.train(..., wandb=\"PROJECT\"); every step "   \
    "is in metrics.jsonl (--out)"
#define EPS_FOREIGN_GGUF                                                                                               \
    "eps export writes safetensors; of these llama.cpp's convert_hf_to_gguf.py makes a GGUF file, and llama-quantize " \
    "a smaller one"

enum { NAME_BYTES = 80 };

/* Of several rows with a name, the first counts whose option there is. */
static const struct foreign {
    const char *theirs; /* names with blanks between; an asterisk at a name's end stands for any ending */
    const char *ours;   /* NULL: whatever options there are. A space and a value may follow */
    const char *why;    /* NULL: "it is called OURS here" */
} foreigns[] = {
#include "client/options/foreign_names.inc"
};

/* "--Batch_Size=8" and "-batch-size" are batch-size. */
static void foreign_normalise(char out[NAME_BYTES], const char *word)
{
    const size_t n_first = strspn(word, "-_");

    snprintf(out, NAME_BYTES, "%.*s", (int)strcspn(word + n_first, "="), word + n_first);
    for (char *c = out; *c; c++) {
        if (*c == '_')
            *c = '-';
        else if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    }
}

static bool foreign_matches(const char *theirs, const char *name)
{
    for (const char *at = theirs; *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " ");
        if (at[n - 1] == '*' ? strncmp(name, at, n - 1) == 0 : strlen(name) == n && memcmp(name, at, n) == 0)
            return true;
        at += n;
    }
    return false;
}

/* option: "--device cuda" is there if --device is. */
static bool foreign_has(const char *const *names, size_t n_names, const char *option)
{
    const size_t n = option ? strcspn(option, " ") : 0;
    bool found = !option;

    for (size_t i = 0; i < n_names && !found; i++)
        found = strlen(names[i]) == n && memcmp(names[i], option, n) == 0;
    return found;
}

bool eps_foreign(char out[EPS_FOREIGN_TEXT], const char *word, const char *const *names, size_t n_names)
{
    char name[NAME_BYTES];

    foreign_normalise(name, word);
    for (size_t i = 0; *name && i < sizeof foreigns / sizeof *foreigns; i++) {
        const struct foreign *row = &foreigns[i];
        if (!foreign_matches(row->theirs, name) || !foreign_has(names, n_names, row->ours))
            continue;
        if (row->why)
            snprintf(out, EPS_FOREIGN_TEXT, "%s", row->why);
        else
            snprintf(out, EPS_FOREIGN_TEXT, "it is called %s here", row->ours);
        client_name_members(out);
        return true;
    }
    return false;
}
