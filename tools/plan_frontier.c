#include "tools/plan_frontier.h"

#include "tools/screen/text.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Sums over tokens are estimated without bias; what is computed from coded activations is not linear in them. */
static const struct form {
    const char *approximate; /* NULL: exact */
    const char *kind;
} forms[] = {{NULL, "exact"},       {"wta=0.3", "unbiased"},       {"wta=0.1", "unbiased"},      {"coded=8", "biased"},
             {"coded=4", "biased"}, {"wta=0.3,coded=8", "biased"}, {"wta=0.3,coded=4", "biased"}};
enum { N_FORMS = sizeof forms / sizeof *forms };

struct line {
    bool is_there;
    uint64_t device, kept; /* bytes of a worker */
    double ms, exact_ms;   /* a step; an exact one in as many bytes, -1: none fits */
};

static uint64_t bytes_of(const struct eps_plan_side *side, const char *category)
{
    for (size_t i = 0; i < side->n_terms; i++)
        if (strcmp(side->terms[i].category, category) == 0)
            return side->terms[i].bytes;
    return 0;
}

static int find(struct line *out, const struct eps_train_options *options, const struct form *form,
                struct eps_error *error)
{
    struct eps_train_options asked = *options;
    struct eps_plan plan, rival;

    *out = (struct line){0};
    asked.approximate = form->approximate;
    int rc = eps_plan(&plan, &asked, error);
    if (rc)
        return rc;
    asked.approximate = NULL;
    asked.device_mem = plan.worker.bytes;
    rc = form->approximate ? eps_plan(&rival, &asked, error) : 0;
    if (!form->approximate)
        rival = plan;
    if (rc || !plan.fits)
        return rc;
    *out = (struct line){true, plan.worker.bytes, bytes_of(&plan.worker, "kept"), plan.step_ms,
                         rival.fits ? rival.step_ms : -1};
    return 0;
}

static void print_line(const struct line *line, const struct form *form)
{
    char device[24], kept[24], step[32], exact[32];

    printf("%-17s%-12s%-12s%-10s%-20s%s\n", form->approximate ? form->approximate : "-",
           eps_format_bytes(device, line->device), eps_format_bytes(kept, line->kept), text_ms(step, line->ms),
           line->exact_ms < 0 ? "none fits" : text_ms(exact, line->exact_ms), form->kind);
}

static json_t *line_to_json(const struct line *line, const struct form *form)
{
    return json_pack("{s:s?, s:s, s:I, s:I, s:f, s:o}", "approximate", form->approximate, "kind", form->kind, "device",
                     (json_int_t)line->device, "kept", (json_int_t)line->kept, "step_ms", line->ms, "exact_step_ms",
                     line->exact_ms < 0 ? json_null() : json_real(line->exact_ms));
}

int plan_frontier(const struct command *command, const struct eps_train_options *options, bool json)
{
    struct line lines[N_FORMS];
    struct eps_error error;
    json_t *list = json_array();
    unsigned n = 0;

    for (int i = 0; i < N_FORMS; i++) {
        const int rc = find(&lines[i], options, &forms[i], &error);
        if (rc && !(i > 0 && rc == -EDOM)) { /* what some models have no use for is left out */
            json_decref(list);
            return arguments_fail(command, rc, error.text);
        }
        n += lines[i].is_there;
    }
    if (n > 0 && !json)
        printf("--approximate    device      kept        a step    exact in the same   gradients\n");
    for (int i = 0; i < N_FORMS; i++)
        if (lines[i].is_there && json)
            json_array_append_new(list, line_to_json(&lines[i], &forms[i]));
        else if (lines[i].is_there)
            print_line(&lines[i], &forms[i]);
    if (json) {
        json_dumpf(list, stdout, 0);
        putchar('\n');
    }
    json_decref(list);
    return n > 0 ? 0 : arguments_fail(command, 1, "nothing fits, exact or not: see eps plan without --approximate any");
}
