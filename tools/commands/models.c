/* eps models: the families' own tables, so the list is what this build trains. A config.json of a family may still ask
 * for what eps does not do; eps plan then names the key. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <jansson.h>
#include <stdio.h>

static void models_print(void *user, const struct eps_family *family)
{
    const struct eps_task_facts *task;
    const char *between = "";

    (void)user;
    printf("%-18s %-40s ", family->model_type, family->architecture);
    for (size_t i = 0; (task = eps_task_at(i)) != NULL; i++)
        if (family->teaches & task->task) {
            printf("%s%s", between, task->name);
            between = ", ";
        }
    printf("%s\n", family->is_own ? " (eps's own)" : "");
}

static void models_add(void *user, const struct eps_family *family)
{
    json_t *learns = json_array(), *all = user;
    const struct eps_task_facts *task;

    for (size_t i = 0; (task = eps_task_at(i)) != NULL; i++)
        if (family->teaches & task->task)
            json_array_append_new(learns, json_string(task->key));
    json_array_append_new(all, json_pack("{s:s, s:s, s:s?, s:o, s:b}", "model_type", family->model_type, "architecture",
                                         family->architecture, "classifier", family->classifier, "learns", learns,
                                         "own", family->is_own));
}

int command_models(int argc, char **argv)
{
    bool json = false;
    const struct argument arguments[] = {
        {"--json", NULL, ARGUMENT_FLAG, &json,
         "print a list of objects with model_type, architecture, classifier (null: none), learns, and own: whether "
         "transformers does not read it"},
    };
    const struct command command = {
        "eps models",
        "Lists the families of models that eps trains: the model_type of config.json, the class in transformers, and "
        "what they learn from. All of them take adapters (--lora) and a base in 4 or 8 bits, but for nets of images.",
        arguments, sizeof arguments / sizeof *arguments};
    const int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    if (!json) {
        printf("%-18s %-40s %s\n", "model_type", "architecture", "learns from");
        eps_models(models_print, NULL);
        return 0;
    }
    json_t *all = json_array();
    eps_models(models_add, all);
    json_dumpf(all, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(all);
    return 0;
}
