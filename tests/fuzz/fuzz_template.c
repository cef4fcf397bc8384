/* tests/fuzz/fuzz_template.c - client_template_open takes any bytes, and what it takes is rendered or refused with a word.
 *
 * Built by the fuzz preset: build/fuzz/bin/fuzz_template -max_total_time=60. tests/fixtures/templates.json has words to
 * begin with. */
#include "client/text/template.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct client_template *t;
    struct error err = {""};
    char *text;

    if (client_template_open(&t, (const char *)bytes, n, &err) < 0) {
        if (!err.text[0])
            abort();
        return 0;
    }
    json_t *variables = json_loads(
               "{\"messages\": [{\"role\": \"system\", \"content\": \" S\\u00e9\"}, {\"role\": \"user\", "
               "\"content\": \"{{ x }}\\n\"}, {\"role\": \"assistant\", \"content\": \"<think>a</think>b\"}],"
               " \"bos_token\": \"<s>\", \"add_generation_prompt\": true, \"tools\": null}",
               0, NULL),
           *before = json_deep_copy(variables);
    const int rc = client_template_render(&text, &n, t, variables, 0, &err);
    if (rc < 0 ? !err.text[0] || text : strlen(text) > n || text[n])
        abort();
    if (!json_equal(variables, before))
        abort();
    free(text);
    json_decref(variables);
    json_decref(before);
    client_template_close(t);
    return 0;
}
