#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <stdio.h>

static void on_note(void *user, const char *sentence)
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
    unsigned type = 0;
    const struct argument arguments[] = {
        {"--model", "DIR", ARGUMENT_TEXT, &options.model,
         "a checkpoint, a run's directory (its latest checkpoint), or any directory with config.json and "
         "*.safetensors; default: the current model of a live daemon"},
        {"--base-model", "DIR", ARGUMENT_TEXT, &options.base_model,
         "where the base of an adapter is, if its adapter_config.json names another place"},
        {"--connect", "ADDRESS", ARGUMENT_TEXT, &options.connect,
         "that daemon, by name or directory; default: your only daemon"},
        {"--out", "DIR", ARGUMENT_TEXT, &options.out, "new directory to write"},
        {"--merge", NULL, ARGUMENT_FLAG, &options.merge,
         "of a model with adapters (eps train --lora, PEFT): add them to the weights, and write the whole model; "
         "default: "
         "the adapters alone, which PEFT loads"},
        {"--average", "N", ARGUMENT_COUNT, &options.average,
         "the mean of the weights of the N newest checkpoints of the run that --model names"},
        {"--dtype", "fp32|fp16|bf16", ARGUMENT_CHOICE, &type,
         "type of the weights; default: the type in which the model came, also after training; fp32 if it had several, "
         "and of adapters alone. fp16 and bf16 are rounded to nearest"},
    };
    const struct command command = {
        "eps export",
        "Writes a model for Hugging Face transformers: config.json, the tokenizer's and generation files if it has "
        "any, and the weights, split into several files above 4 GiB.",
        arguments, sizeof arguments / sizeof *arguments};
    struct eps_error error;
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    options.dtype = (enum eps_dtype)type;
    options.on_note = on_note;
    int rc = eps_export(&written, &options, &error);
    if (rc)
        return arguments_fail(&command, rc, error.text);
    const char *what = written.adapter ? "adapters" : *written.part ? written.part : "model";
    printf("%s holds the %s in %s", options.out, what, names[written.dtype]);
    if (written.loader)
        printf(". In Python: %s.%s.from_pretrained(\"%s\")", written.adapter ? "peft" : "transformers", written.loader,
               options.out);
    printf("\n");
    return 0;
}
