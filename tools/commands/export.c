/* eps export: options to eps_export, and how to load the result. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/hub.h"
#include "tools/table_options.h"

#include <stdio.h>

static void export_on_note(void *user, const char *sentence)
{
    char text[OPTIONS_TEXT];

    (void)user;
    fprintf(stderr, "eps export: %s\n", arguments_options(text, sentence));
}

int command_export(int argc, char **argv)
{
    struct eps_export_options options = eps_export_defaults();
    static const char *const names[] = {
        [EPS_DTYPE_FP32] = "fp32", [EPS_DTYPE_FP16] = "fp16", [EPS_DTYPE_BF16] = "bf16"};
    struct eps_exported written;
    struct table_options arguments = {.options = &options};
    struct hub hub = {.yes = false};

    table_options_take(&arguments, EPS_COMMAND_EXPORT);
    table_options_add(&arguments, &(struct argument)HUB_YES(&hub), 1);
    const struct command command = {
        "eps export",
        "Writes a model for Hugging Face transformers: config.json, the tokenizer's and generation files if it has "
        "any, and the weights, split into several files above 4 GiB.",
        arguments.arguments, arguments.n};
    struct eps_error error;
    int status = table_options_parse(&arguments, &command, argc, argv);

    table_options_free(&arguments);
    if (status < 0)
        status = hub_find(&hub, &options.model, HUB_MODEL, &command);
    if (status >= 0)
        return status;
    options.on_note = export_on_note;
    int rc = eps_export(&written, &options, &error);
    if (rc)
        return arguments_fail(&command, rc, error.text);
    const char *what = written.adapter ? "adapters" : *written.part ? written.part : "model";
    printf("%s holds the %s in %s", options.out, what, names[written.dtype]);
    if (written.loader)
        printf(". In Python: %s.%s.from_pretrained(\"%s\")", written.adapter ? "peft" : "transformers", written.loader,
               options.out);
    printf("\n");
    if (*written.passed)
        printf("%s: exported as they are\n", written.passed);
    return 0;
}
