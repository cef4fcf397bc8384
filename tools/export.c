#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <stdio.h>

int command_export(int argc, char **argv)
{
    struct eps_export_options options = {0};
    unsigned type = 0;
    const struct argument arguments[] = {
        {"--model", "DIR", ARGUMENT_TEXT, &options.model,
         "a checkpoint, a run's directory (its latest checkpoint), or any directory with config.json and "
         "*.safetensors; default: the model that a live daemon trains, while its training goes on"},
        {"--connect", "ADDRESS", ARGUMENT_TEXT, &options.connect,
         "that daemon, by name or directory; default: your only one"},
        {"--out", "DIR", ARGUMENT_TEXT, &options.out, "new directory to write"},
        {"--dtype", "fp32|bf16", ARGUMENT_CHOICE, &type,
         "type of the weights; default fp32. bf16 takes half the space, rounded to nearest"},
    };
    const struct command command = {"eps export",
                                    "Writes a model for Hugging Face transformers to load: config.json, the "
                                    "tokenizer's files if there are any, and "
                                    "the weights, in several files where they take over 4 GiB.",
                                    arguments, sizeof arguments / sizeof *arguments};
    struct eps_error error;
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    options.bf16 = type == 2;
    int rc = eps_export(&options, &error);
    if (rc)
        return arguments_fail(&command, rc, error.text);
    printf("%s holds the model in %s. In Python: transformers.AutoModelForCausalLM.from_pretrained(\"%s\")\n",
           options.out, options.bf16 ? "bf16" : "fp32", options.out);
    return 0;
}
