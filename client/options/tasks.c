/* Options that a task has no use for are refused, by the column `tasks` of the table: nothing that is asked for is
 * ignored. What is said of one option, or differs by command, stands here; what a task says of all others, with the
 * task. */
#include "client/options/options.h"
#include "client/options/value.h"
#include "client/task/source.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

enum {
    TRAIN = 1 << EPS_COMMAND_TRAIN | 1 << EPS_COMMAND_PLAN,
    EVAL = 1 << EPS_COMMAND_EVAL,
    DATA = 1 << EPS_COMMAND_DATA,
    STREAMS = EPS_OF_TEXT | EPS_OF_MASKED | EPS_OF_SPANS,
    TOKENS = STREAMS | EPS_OF_DOCUMENTS,
    PREDICTIONS = TOKENS | EPS_OF_TARGETS | EPS_OF_LABELS | EPS_OF_IMAGES, /* all but texts that are written */
};

/* What is said of an option: the first that fits. */
static const struct refusal {
    unsigned commands, tasks;
    const char *names[2]; /* NULL: all */
    const char *format;   /* of the option's name, and its value */
} refusals[] = {
    {EVAL, EPS_OF_ALL, {"--image"}, "%s is for nets of images: leave it out"},
    {TRAIN, EPS_OF_IMAGES, {"--attention"}, "%s is for models that have it, and nets of images do not: leave it out"},
    {TRAIN, EPS_OF_ALL, {"--image", "--augment"}, "%s is for images, and the model does not see any: leave it out"},
    {TRAIN, TOKENS, {"--columns"}, "%s is for labelled rows: add --task classify or --task regress"},
    {EVAL,
     TOKENS,
     {"--columns", "--predictions"},
     "%s is for classifiers, and this model predicts tokens: leave it out"},
    {TRAIN,
     TOKENS | EPS_OF_LABELS,
     {"--dpo-beta", "--dpo-smoothing"},
     "%s is for preferences, and --data has none: lines of .jsonl with prompt, chosen and rejected"},
    {TRAIN,
     EPS_OF_ALL,
     {"--dpo-smoothing"},
     "%s is for preferences, and --data has none: lines of .jsonl with prompt, chosen and rejected"},
    {TRAIN, EPS_OF_ALL, {"--label-smoothing"}, "%s is for tokens and classes, not for preferences: leave it out"},
    {TRAIN | EVAL,
     PREDICTIONS,
     {"--source-seq"},
     "%s %s is for encoder-decoders, whose rows have a source: leave it out"},
    {TRAIN | EVAL,
     EPS_OF_TEXT,
     {"--mask-fraction"},
     "%s %s is for models that predict masked tokens; this one predicts the next token: leave it out"},
    {EVAL, PREDICTIONS, {"--seed"}, "%s %s is of masks, and here no tokens are masked: leave it out"},
    {EVAL,
     EPS_OF_MASKED,
     {"--stride"},
     "%s %s: the model predicts masked tokens, each from its whole sequence: leave it out"},
    {EVAL, EPS_OF_SPANS, {"--stride"}, "%s %s: the model restores spans, each from its whole sequence: leave it out"},
    {EVAL,
     EPS_OF_LABELS,
     {"--separator"},
     "%s %s is for models that predict tokens, and this one classifies whole rows: leave it out"},
    {EVAL,
     EPS_OF_LABELS,
     {NULL},
     "%s is for models that predict tokens, and this one classifies whole rows: leave it out"},
    {TRAIN,
     EPS_OF_LABELS,
     {"--separator"},
     "%s %s is for models that predict tokens: leave it out, as rows are classified whole"},
    {DATA, EPS_OF_IMAGES, {NULL}, "%s is for text, and --images are read without a model: leave it out"},
    {EVAL, EPS_OF_HYPOTHESES, {NULL}, "%s is not for --bleu: leave it out"},
};

static bool refusal_fits(const struct refusal *refusal, const char *name, enum eps_command command, unsigned tasks)
{
    const char *const *names = refusal->names;

    return refusal->commands >> command & 1 && client_source_expand(refusal->tasks) & tasks &&
           (!names[0] || strcmp(names[0], name) == 0 || (names[1] && strcmp(names[1], name) == 0));
}

static int tasks_refuse(const char *name, const char *value, enum eps_command command, unsigned tasks,
                        struct error *err)
{
    const size_t n = sizeof refusals / sizeof *refusals;
    size_t i = 0;

    while (i < n && !refusal_fits(&refusals[i], name, command, tasks))
        i++;
    const char *format = i < n ? refusals[i].format : client_source_refusal(tasks);
    assert(format); /* each task has one */
    return error_set(err, -EDOM, format, name, value);
}

bool eps_option_of(struct eps_option *out, const struct eps_option *row, enum eps_command command)
{
    const struct eps_option_column *column = &row->columns[command];

    *out = *row;
    out->tasks = client_source_expand(row->tasks);
    if (command == EPS_COMMAND_TRAIN || command == EPS_COMMAND_PLAN) {
        out->train = command == EPS_COMMAND_PLAN ? row->plan : row->train;
        return row->train || row->plan;
    }
    out->offset = column->offset;
    out->tasks = client_source_expand(column->tasks ? column->tasks : row->tasks);
    out->train = column->help;
    for (unsigned before = command; out->train && !*out->train;) /* eps data comes behind eps train */
        out->train = --before <= EPS_COMMAND_PLAN ? row->train
                     : row->columns[before].help  ? row->columns[before].help
                                                  : "";
    return column->help;
}

int client_options_check_tasks(const void *options, enum eps_command command, unsigned tasks, bool continued,
                               struct error *err)
{
    char value[CLIENT_OPTION_TEXT];
    struct eps_option row;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        if (!eps_option_of(&row, &rows[i], command) || row.tasks == 0 || row.tasks & tasks ||
            !client_option_is_set(options, &row))
            continue;
        if (continued && row.key > 0 && row.resume != EPS_RESUME_TAKES) /* stored, and compared with what is given */
            continue;
        client_option_print(value, options, &row);
        if (row.kind != EPS_OPTION_NUMBER || strcmp(value, "0") != 0)
            return tasks_refuse(row.name, value, command, tasks, err);
    }
    return 0;
}
