/* eps pull: the download alone, for machines on which the run is to start without a network. Whoever types it has
 * agreed to the download, so it does not ask. */
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/hub.h"

#include <errno.h>
#include <stddef.h>

int command_pull(int argc, char **argv)
{
    const char *name = NULL;
    struct hub hub = {.yes = true};
    const struct argument arguments[] = {
        {"ORG/NAME", NULL, ARGUMENT_POSITIONAL, &name, "the model's name on the hub, as in Qwen/Qwen3-0.6B"},
    };
    const struct command command = {
        "eps pull",
        "Downloads what eps needs of a model of the Hugging Face hub, by hf download: config, tokenizer and "
        "safetensors. They go into the hub's own cache ($HF_HOME, or ~/.cache/huggingface), whose directory is "
        "printed; "
        "--model ORG/NAME of all commands then finds them.",
        arguments, sizeof arguments / sizeof *arguments};
    const int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    return name ? hub_pull(&hub, name, &command)
                : arguments_fail(&command, -EDOM, "ORG/NAME is missing: a model's name on the hub");
}
