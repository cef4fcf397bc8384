#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/memory.h"

#include <jansson.h>
#include <stdio.h>

static void print_side(void *user, const struct eps_memory *side)
{
    (void)user;
    if (side->worker > 0)
        putchar('\n');
    memory_print(stdout, side);
}

static json_t *sizes(uint64_t current, uint64_t peak)
{
    return json_pack("{s:I, s:I}", "current", (json_int_t)current, "peak", (json_int_t)peak);
}

static json_t *side_to_json(const struct eps_memory *side)
{
    json_t *object = sizes(side->current, side->peak), *categories = json_object();

    for (size_t i = 0; i < side->n_rows; i++)
        json_object_set_new(categories, side->rows[i].category, sizes(side->rows[i].current, side->rows[i].peak));
    json_object_set_new(object, "categories", categories);
    return object;
}

static void add_side(void *user, const struct eps_memory *side)
{
    json_t *all = user, *object = side_to_json(side);

    if (side->worker == 0) {
        json_object_set_new(all, "host", object);
        return;
    }
    json_object_set_new(object, "id", json_integer(side->worker));
    json_object_set_new(object, "device", json_string(side->device));
    json_object_set_new(object, "budget", json_integer((json_int_t)side->budget));
    json_array_append_new(json_object_get(all, "workers"), object);
}

int command_mem(int argc, char **argv)
{
    const char *address = NULL;
    bool json = false;
    const struct argument arguments[] = {
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &address, "the daemon's name or directory; yours, if you run only one"},
        {"--json", NULL, ARGUMENT_FLAG, &json,
         "{\"host\": {\"current\", \"peak\", \"categories\": {NAME: {\"current\", \"peak\"}}},\n"
         "\"workers\": [{\"id\", \"device\", \"budget\", \"current\", \"peak\", \"categories\"}]}, in bytes"},
    };
    const struct command command = {"eps mem",
                                    "Memory of a live daemon and of its workers, by category, now and at most.",
                                    arguments, sizeof arguments / sizeof *arguments};
    json_t *all = json_pack("{s:[]}", "workers");
    struct eps_error error;
    int status = arguments_parse(&command, argc, argv);

    if (status < 0) {
        int rc = eps_mem(address, json ? add_side : print_side, all, &error);
        status = rc ? arguments_fail(&command, rc, error.text) : 0;
        if (!rc && json) {
            json_dumpf(all, stdout, JSON_INDENT(2));
            putchar('\n');
        }
    }
    json_decref(all);
    return status;
}
