/* One step in a long run, simulated: its bottleneck is the queue that never waits, so what each waits for is told. */
#include "tools/commands/plan/timeline.h"

#include "tools/commands.h"
#include "tools/commands/plan/plan.h"
#include "tools/screen/text.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *key, *name;
} queues[EPS_QUEUES + 1] = {
    [EPS_DOWN] = {"down", "copies down"},
    [EPS_COMPUTE] = {"compute", "computing"},
    [EPS_UP] = {"up", "copies up"},
    [EPS_OPTIMIZER] = {"optimizer", "optimizer"},
    [EPS_MESSAGES] = {"messages", "messages"},
};

/* "device      works 68 %, waits 6.25 ms for optimizer, 0.55 ms for copies down" */
static void print_device(const struct eps_timeline *line)
{
    const double least = line->step_ms / 1e4; /* shorter waits are left out */
    const char *between = ", waits";
    char text[32];

    printf("device      works %.0f %%", 100 * line->busy_ms[EPS_COMPUTE] / line->step_ms);
    for (int i = 0; i <= EPS_QUEUES; i++)
        if (line->waited_ms[EPS_COMPUTE][i] > least) {
            printf("%s %s for %s", between, text_ms(text, line->waited_ms[EPS_COMPUTE][i]), queues[i].name);
            between = ",";
        }
    putchar('\n');
}

/* "paths       products: cublaslt at 640 TFLOP/s, 83 % of computing; attention: tensor at 300 TFLOP/s, 4 %; ..." */
static void plan_print_paths(const struct eps_timeline *line)
{
    static const struct {
        const char *key, *name;
    } kinds[] = {{"convolutions_input", "their inputs' gradients"},
                 {"convolutions_weights", "their weights'"},
                 {"attention_backward", "its gradient"},
                 {"rest", "the rest"}};

    printf("paths       ");
    for (uint32_t i = 0; i < line->n_paths; i++) {
        const struct eps_path *p = &line->paths[i];
        const char *kind = p->kind;
        for (size_t j = 0; j < sizeof kinds / sizeof *kinds; j++)
            kind = strcmp(kinds[j].key, kind) == 0 ? kinds[j].name : kind;
        printf("%s%s: %s", i ? "; " : "", kind, p->path);
        if (p->tflops > 0)
            printf(" at %.3g TFLOP/s", p->tflops);
        printf(", %.0f %%%s", 100 * p->ms / line->busy_ms[EPS_COMPUTE], i ? "" : " of computing");
    }
    putchar('\n');
}

static void print_timeline(const struct eps_timeline *line)
{
    char text[32];

    printf("a step      %s%s: ", text_ms(text, line->step_ms), plan_assumed(line->measured));
    if (line->pixels)
        printf("%.0f images/s", line->tokens_per_s / line->pixels);
    else
        printf("%.0f tokens/s, %.3g TFLOP/s at 6 operations a parameter and token", line->tokens_per_s, line->tflops);
    printf("%s\n", line->n_workers > 1 ? ", of all workers" : "");
    printf("binds       %s\n", queues[line->binds].name);
    print_device(line);
    printf("busy        ");
    for (int i = 0; i < EPS_QUEUES; i++)
        printf("%s%s %.0f %%", i ? ", " : "", queues[i].name, 100 * line->busy_ms[i] / line->step_ms);
    putchar('\n');
    plan_print_paths(line);
    if (!line->measured)
        printf("%s", plan_not_measured);
}

static json_t *queue_to_json(const struct eps_timeline *line, int queue)
{
    json_t *waits = json_object();

    for (int i = 0; i <= EPS_QUEUES; i++)
        if (i != queue)
            json_object_set_new(waits, queues[i].key, json_real(line->waited_ms[queue][i]));
    return json_pack("{s:f, s:f, s:o}", "busy_ms", line->busy_ms[queue], "share", line->busy_ms[queue] / line->step_ms,
                     "waits_ms", waits);
}

static json_t *paths_to_json(const struct eps_timeline *line)
{
    json_t *list = json_array();

    for (const struct eps_path *p = line->paths; p < line->paths + line->n_paths; p++) {
        json_t *object = json_pack("{s:s, s:s, s:f, s:f}", "kind", p->kind, "path", p->path, "busy_ms", p->ms, "share",
                                   p->ms / line->busy_ms[EPS_COMPUTE]);
        if (p->tflops > 0)
            json_object_set_new(object, "tflops", json_real(p->tflops));
        json_array_append_new(list, object);
    }
    return list;
}

static void print_timeline_json(const struct eps_timeline *line)
{
    json_t *each = json_object();
    char why[OPTIONS_TEXT];

    for (int i = 0; i < EPS_QUEUES; i++)
        json_object_set_new(each, queues[i].key, queue_to_json(line, i));
    json_t *all = json_pack("{s:b, s:o, s:b, s:b, s:f, s:f, s:f, s:s, s:f, s:o, s:o}", "fits", line->fits, "why",
                            text_json(arguments_options(why, line->why)), "measured", line->measured, "assumed",
                            !line->measured, "step_ms", line->step_ms, "tokens_per_s", line->tokens_per_s, "tflops",
                            line->tflops, "binds", queues[line->binds].key, "device_waits_ms",
                            line->step_ms - line->busy_ms[EPS_COMPUTE], "queues", each, "paths", paths_to_json(line));

    assert(all); /* all finite: a profile's numbers are checked */
    answer_write(stdout, all, 0);
    putchar('\n');
    json_decref(all);
}

int plan_timeline(const struct command *command, const struct eps_train_options *options, bool json)
{
    struct eps_timeline line;
    struct eps_error error;
    const int rc = eps_plan_timeline(&line, options, &error);

    if (rc)
        return arguments_fail(command, rc, error.text);
    if (json)
        print_timeline_json(&line);
    else
        print_timeline(&line);
    return line.fits ? 0 : arguments_fail(command, 1, line.why);
}
