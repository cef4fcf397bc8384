/* eps models: the families' own tables, so the list is what this build trains. A config.json of a family may still ask
 * for what eps does not do; eps plan then names the key. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* By enum eps_attention_path: in the list, and what it means. */
static const struct {
    const char *name, *meaning;
} attentions[] = {[EPS_PATH_NONE] = {"none", "it has none"},
                  [EPS_PATH_TENSOR] = {"tensor", "on tensor cores"},
                  [EPS_PATH_PLAIN] = {"plain", "by kernels that do not use tensor cores, which take longer"},
                  [EPS_PATH_BOTH] = {"tensor, plain", "partly on tensor cores, partly by slower kernels"}};

/* What is asked for, and what is found. */
struct models {
    const char *name; /* model_type; NULL: all */
    json_t *list;     /* NULL: text is printed */
    size_t n;         /* found */
    char nearest[80]; /* of all names the one that begins most like it; "": none begins so */
    size_t n_common;
};

static void models_print_learns(const struct eps_family *family)
{
    const struct eps_task_facts *task;
    const char *between = "";

    for (size_t i = 0; (task = eps_task_at(i)) != NULL; i++)
        if (family->teaches & task->task) {
            printf("%s%s", between, task->name);
            between = ", ";
        }
}

static void models_print_line(const struct eps_family *family)
{
    printf("%-18s %-40s %-15s ", family->model_type, family->architecture, attentions[family->attention].name);
    models_print_learns(family);
    printf("%s\n", family->is_own ? " (eps's own)" : "");
}

static void models_print_names(const char *title, const char *const *names)
{
    if (!names || !*names)
        return;
    printf("  %-14s", title);
    for (size_t at = 0; *names; names++) {
        if (at > 0 && at + strlen(*names) > 88) {
            printf(",\n  %-14s", "");
            at = 0;
        }
        at += (size_t)printf("%s%s", at > 0 ? ", " : "", *names);
    }
    putchar('\n');
}

static void models_print_all(const struct eps_family *family)
{
    printf("%s%s\n", family->model_type, family->is_own ? " (eps's own: transformers does not read it)" : "");
    printf("  %-14s%s\n", "architecture", family->architecture);
    if (family->classifier && family->classifier != family->architecture)
        printf("  %-14s%s\n", "classifier", family->classifier);
    printf("  %-14s", "learns from");
    models_print_learns(family);
    putchar('\n');
    printf("  %-14s%s\n", "devices", "CPUs, CUDA GPUs");
    printf("  %-14s%s: %s\n", "attention", attentions[family->attention].name, attentions[family->attention].meaning);
    if (!*family->maps)
        printf("  %-14s%s\n", "adapters", "none");
    models_print_names("adapters", family->maps);
    models_print_names("must be off", family->off);
}

static json_t *models_names(const char *const *names)
{
    json_t *list = json_array();

    for (; names && *names; names++)
        json_array_append_new(list, json_string(*names));
    return list;
}

static json_t *models_json(const struct eps_family *family)
{
    const struct eps_task_facts *task;
    json_t *learns = json_array();

    for (size_t i = 0; (task = eps_task_at(i)) != NULL; i++)
        if (family->teaches & task->task)
            json_array_append_new(learns, json_string(task->key));
    return json_pack("{s:s, s:s, s:s?, s:o, s:[s, s], s:s, s:o, s:o, s:b}", "model_type", family->model_type,
                     "architecture", family->architecture, "classifier", family->classifier, "learns", learns,
                     "devices", "cpu", "cuda", "attention", attentions[family->attention].name, "adapters",
                     models_names(family->maps), "off", models_names(family->off), "own", family->is_own);
}

static void models_compare(struct models *m, const char *name)
{
    size_t n = 0;

    while (name[n] && name[n] == m->name[n])
        n++;
    if (n > m->n_common) {
        m->n_common = n;
        snprintf(m->nearest, sizeof m->nearest, "%s", name);
    }
}

static void models_on_family(void *user, const struct eps_family *family)
{
    struct models *m = user;

    if (m->name && strcmp(m->name, family->model_type) != 0) {
        models_compare(m, family->model_type);
        return;
    }
    m->n++;
    if (m->list)
        json_array_append_new(m->list, models_json(family));
    else if (m->name)
        models_print_all(family);
    else
        models_print_line(family);
}

/* Of three letters in common nothing follows. */
static int models_refuse(const struct models *m, const struct command *command)
{
    char said[300];

    snprintf(said, sizeof said, "no family is called %.80s: %s%s%seps models lists those that there are", m->name,
             m->n_common > 3 ? "the nearest name is " : "", m->n_common > 3 ? m->nearest : "",
             m->n_common > 3 ? "; " : "");
    return arguments_fail(command, -EDOM, said);
}

int command_models(int argc, char **argv)
{
    bool json = false;
    struct models m = {.name = NULL};
    struct eps_error error;
    const struct argument arguments[] = {
        {"MODEL_TYPE", NULL, ARGUMENT_POSITIONAL, &m.name,
         "one family alone, with its classifier, the maps that --lora targets may name, and keys of config.json that "
         "must be off (null or false), as what they ask for is not done"},
        {"--json", NULL, ARGUMENT_FLAG, &json,
         "print a list of objects with model_type, architecture, classifier (null: none), learns, devices, attention, "
         "adapters (maps), off (keys), and own: whether transformers does not read it"},
    };
    const struct command command = {
        "eps models",
        "Lists the families of models that eps trains, on CPUs and on CUDA GPUs: the model_type of config.json, the "
        "class in transformers, which kernels compute attention on a GPU, and what they learn from. attention is "
        "tensor (on tensor cores), plain (slower kernels), or both, by block or by pass; it is that of the family's "
        "default config in bf16, without cuDNN, and eps plan --timeline has it for any model. All families take "
        "adapters (--lora) and a base in 4 or 8 bits, but for nets of images.",
        arguments, sizeof arguments / sizeof *arguments};
    const int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    m.list = json ? json_array() : NULL;
    if (!json && !m.name)
        printf("%-18s %-40s %-15s %s\n", "model_type", "architecture", "attention", "learns from");
    const int rc = eps_models(models_on_family, &m, &error);
    if (!rc && m.list && m.n > 0) {
        json_dumpf(m.list, stdout, JSON_INDENT(1));
        putchar('\n');
    }
    json_decref(m.list);
    if (rc)
        return arguments_fail(&command, rc, error.text);
    return m.n > 0 ? 0 : models_refuse(&m, &command);
}
