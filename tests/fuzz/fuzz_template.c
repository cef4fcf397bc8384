/* tests/fuzz/fuzz_template.c - a chat template: it is rendered, or refused with a sentence, and changes no variable;
 * with labels its text is the same. */
#include "client/text/template.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct client_template *t;
    struct client_rendering labelled;
    struct error err = {""};
    char *text;

    if (!fuzz_took(client_template_open(&t, (const char *)bytes, n, &err), &err))
        return 0;
    json_t *variables = json_loads(
               "{\"messages\": [{\"role\": \"system\", \"content\": \" S\\u00e9\"}, {\"role\": \"user\", "
               "\"content\": \"{{ x }}\\n\"}, {\"role\": \"assistant\", \"content\": \"<think>a</think>b\"}],"
               " \"bos_token\": \"<s>\", \"add_generation_prompt\": true, \"tools\": null}",
               0, NULL),
           *before = json_deep_copy(variables);
    if (fuzz_took(client_template_render(&text, &n, t, variables, 0, &err), &err))
        fuzz_demand(strlen(text) <= n && !text[n]);
    else
        fuzz_demand(!text);
    if (fuzz_took(client_template_render_labelled(&labelled, t, variables, 0, &err), &err))
        fuzz_demand(text && labelled.n == n && memcmp(labelled.text, text, n) == 0);
    free(labelled.text);
    free(labelled.labels);
    fuzz_demand(json_equal(variables, before));
    free(text);
    json_decref(variables);
    json_decref(before);
    client_template_close(t);
    return 0;
}
