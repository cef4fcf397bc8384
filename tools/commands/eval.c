/* eps eval: a model's loss or scores over files. The file of predictions is opened before anything is computed, so that
 * a wrong path costs no evaluation, but truncated only at the first prediction: a run that fails before leaves an old
 * file whole. A new file is removed after a failure. */
#include "client/eps.h"
#include "tools/commands.h"
#include "tools/hub.h"
#include "tools/table_options.h"
#include "tools/arguments.h"
#include "tools/usual.h"
#include "tools/screen/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* masked: the tokens are those that were masked, and the perplexity is called what it is then. */
static void print_result(double loss, uint64_t tokens, bool masked, bool json)
{
    if (!json && masked) {
        printf("masked loss %.6f nats per masked token over %" PRIu64 " of them (pseudo-perplexity %.4g)\n", loss,
               tokens, exp(loss));
        return;
    }
    if (!json) {
        printf("loss %.6f nats per token over %" PRIu64 " tokens (perplexity %.4g)\n", loss, tokens, exp(loss));
        return;
    }
    json_t *value = json_real(loss); /* NULL if it is not finite */
    json_t *perplexity = json_real(exp(loss));
    json_t *object = json_pack("{s:o, s:I, s:o}", "loss", value ? value : json_null(), "tokens", (json_int_t)tokens,
                               masked ? "pseudo_perplexity" : "perplexity", perplexity ? perplexity : json_null());
    answer_print(object);
}

struct eval {
    struct progress progress;
    struct stopping stopping;
    bool quiet; /* neither progress nor notes */
    bool masked;
    enum eps_task task;
    struct eps_score scores[8];
    size_t n_scores;
    const char *path; /* file of predictions; NULL: none */
    bool made;        /* the file of predictions is new */
    FILE *predictions;
    int failed; /* why they end early: -errno */
    uint64_t n_predictions;
    struct eps_bleu bleu;
    json_t *classes; /* of images: {"name", "rows", "accuracy"} each */
};

static void eval_on_evaluating(void *user, uint64_t n_tokens, uint64_t n_all)
{
    struct eval *e = user;

    if (!e->quiet)
        progress_evaluating(&e->progress, n_tokens, n_all);
}

static int eval_should_stop(void *user)
{
    struct eval *e = user;
    return stopping_observer(&e->stopping);
}

static void eval_on_note(void *user, const char *sentence)
{
    char text[OPTIONS_TEXT];
    struct eval *e = user;

    if (e->quiet)
        return;
    progress_clear(&e->progress);
    fprintf(stderr, "eps eval: %s\n", arguments_options(text, sentence));
}

static void eval_on_start(void *user, const struct eps_eval_options *options)
{
    struct eval *e = user;
    e->masked = !isnan(options->mask_fraction);
    e->task = options->task;
}

static void eval_on_scored(void *user, const struct eps_score *scores, size_t n)
{
    struct eval *e = user;

    for (size_t i = 0; i < n && i < sizeof e->scores / sizeof *e->scores; i++)
        e->scores[e->n_scores++] = scores[i];
}

/* What the file has stays until there is a prediction. */
static void open_predictions(struct eval *e)
{
    int fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    e->made = fd >= 0;
    if (fd < 0 && errno == EEXIST)
        fd = open(e->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    e->predictions = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !e->predictions)
        close(fd);
}

static void eval_on_class(void *user, const char *name, uint64_t n_rows, uint64_t n_right)
{
    struct eval *e = user;
    json_t *accuracy = n_rows ? json_real((double)n_right / (double)n_rows) : json_null();

    if (!e->classes)
        e->classes = json_array();
    json_array_append_new(e->classes,
                          json_pack("{s:s, s:I, s:o}", "name", name, "rows", (json_int_t)n_rows, "accuracy", accuracy));
}

/* An object: its row, what is predicted, and the probability of each class. */
static int print_prediction(struct eval *e, const struct eps_prediction *p)
{
    json_t *line = json_pack("{s:I}", "row", (json_int_t)p->row), *all = json_object();

    for (uint32_t i = 0; i < p->n_classes; i++)
        json_object_set_new(all, p->names[i], json_real(p->probability[i]));
    json_object_set_new(line, "prediction", p->n_classes ? json_string(p->names[p->likeliest]) : json_real(p->number));
    if (p->n_classes)
        json_object_set(line, "probability", all);
    json_decref(all);
    const int rc = json_dumpf(line, e->predictions, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(line);
    putc('\n', e->predictions);
    e->n_predictions++;
    return e->failed = rc || ferror(e->predictions) ? -errno : 0;
}

/* TSV: what is predicted, then the probability of each class; or JSON lines, if the file is called so. */
static int on_prediction(void *user, const struct eps_prediction *p)
{
    struct eval *e = user;
    FILE *out = e->predictions;
    const size_t n = strlen(e->path);
    const bool lines = n > 6 && strcmp(e->path + n - 6, ".jsonl") == 0;

    if (p->row == 0) {
        if (ftruncate(fileno(out), 0) && errno != EINVAL) /* EINVAL: it is no regular file */
            return e->failed = -errno;
    }
    if (lines)
        return print_prediction(e, p);
    if (p->row == 0) {
        fprintf(out, "prediction");
        for (uint32_t i = 0; i < p->n_classes; i++)
            fprintf(out, "\t%s", p->names[i]);
        fprintf(out, "\n");
    }
    if (p->n_classes == 0)
        fprintf(out, "%.9g", p->number);
    else
        fprintf(out, "%s", p->names[p->likeliest]);
    for (uint32_t i = 0; i < p->n_classes; i++)
        fprintf(out, "\t%.6g", p->probability[i]);
    fprintf(out, "\n");
    e->n_predictions++;
    return e->failed = ferror(out) ? -errno : 0;
}

static void on_bleu(void *user, const struct eps_bleu *bleu)
{
    struct eval *e = user;
    e->bleu = *bleu;
}

/* A line for each source: its target, of which a line end is a blank. */
static int on_hypothesis(void *user, uint64_t row, const char *text, size_t n)
{
    struct eval *e = user;

    if (row == 0 && ftruncate(fileno(e->predictions), 0) && errno != EINVAL)
        return e->failed = -errno;
    for (size_t i = 0; i < n; i++)
        putc(text[i] == '\n' || text[i] == '\r' ? ' ' : text[i], e->predictions);
    putc('\n', e->predictions);
    e->n_predictions++;
    return e->failed = ferror(e->predictions) ? -errno : 0;
}

static void print_bleu(const struct eval *e, uint64_t n_tokens, bool json)
{
    const struct eps_bleu *b = &e->bleu;

    if (json) {
        answer_print(json_pack("{s:f, s:[f,f,f,f], s:f, s:I, s:I, s:I, s:I, s:s}", "bleu", b->score, "precisions",
                               b->precisions[0], b->precisions[1], b->precisions[2], b->precisions[3],
                               "brevity_penalty", b->brevity_penalty, "hypothesis_tokens",
                               (json_int_t)b->n_hypothesis_tokens, "reference_tokens",
                               (json_int_t)b->n_reference_tokens, "segments", (json_int_t)b->n_segments, "tokens",
                               (json_int_t)n_tokens, "signature", b->signature));
        return;
    }
    printf("BLEU %.2f over %" PRIu64 " targets (precisions %.1f/%.1f/%.1f/%.1f, brevity penalty %.3f, %s)\n", b->score,
           b->n_segments, b->precisions[0], b->precisions[1], b->precisions[2], b->precisions[3], b->brevity_penalty,
           b->signature);
    if (e->path)
        printf("%" PRIu64 " targets in %s\n", e->n_predictions, e->path);
}

/* Closes the file of predictions: 0, or -errno if they are not all in it. */
static int close_predictions(struct eval *e)
{
    const bool failed = e->predictions && ferror(e->predictions);
    const int rc = e->predictions && fclose(e->predictions) ? -errno : 0;

    e->predictions = NULL;
    return e->failed ? e->failed : rc ? rc : failed ? -EIO : 0;
}

/* Adds the classes to the object; without json, prints the accuracy of each. */
static void print_classes(const struct eval *e, json_t *object, bool json)
{
    size_t i;
    json_t *class;

    if (!e->classes)
        return;
    json_object_set(object, "classes", e->classes);
    json_array_foreach(e->classes, i, class) if (!json)
        printf("%10.4f of %6" JSON_INTEGER_FORMAT "  %s\n", json_number_value(json_object_get(class, "accuracy")),
               json_integer_value(json_object_get(class, "rows")), json_string_value(json_object_get(class, "name")));
}

static void print_task(const struct eval *e, double loss, uint64_t n_rows, bool json)
{
    json_t *object = json_object();

    if (!json && n_rows > 0)
        printf("loss %.6f per row over %" PRIu64 " rows\n", loss, n_rows);
    json_object_set_new(object, "loss", n_rows ? json_real(loss) : json_null());
    json_object_set_new(object, "rows", json_integer((json_int_t)n_rows));
    for (size_t i = 0; i < e->n_scores; i++) {
        json_t *value = json_real(e->scores[i].value); /* NULL if it is undefined */
        if (!json)
            printf("%s%s %.6f", i ? ", " : "", e->scores[i].name, e->scores[i].value);
        json_object_set_new(object, e->scores[i].name, value ? value : json_null());
    }
    if (!json && e->n_scores > 0)
        putchar('\n');
    print_classes(e, object, json);
    if (!json && e->path)
        printf("%" PRIu64 " predictions in %s\n", e->n_predictions, e->path);
    if (json)
        answer_print(object);
    else
        json_decref(object);
}

static int eval_run(const struct command *command, const struct eps_eval_options *options, bool json, bool quiet)
{
    const char *predictions = options->predictions;
    const struct eps_eval_events events = {.on_evaluating = eval_on_evaluating,
                                           .should_stop = eval_should_stop,
                                           .on_note = eval_on_note,
                                           .on_start = eval_on_start,
                                           .on_scored = eval_on_scored,
                                           .on_prediction = predictions && !options->bleu ? on_prediction : NULL,
                                           .on_class = eval_on_class,
                                           .on_hypothesis = predictions && options->bleu ? on_hypothesis : NULL,
                                           .on_bleu = on_bleu};
    struct eps_error error;
    struct eval e = {.path = predictions, .quiet = quiet};
    uint64_t tokens;
    double loss;

    if (predictions)
        open_predictions(&e);
    if (predictions && !e.predictions) {
        snprintf(error.text, sizeof error.text, "--predictions %.200s: %s", predictions, strerror(errno));
        return arguments_fail(command, -errno, error.text);
    }
    stopping_init(&e.stopping);
    progress_init(&e.progress, stderr);
    int rc = eps_eval(&loss, &tokens, options, &events, &e, &error);
    progress_clear(&e.progress);
    const int written = close_predictions(&e);
    if (written && (!rc || e.failed)) {
        rc = written;
        snprintf(error.text, sizeof error.text, "--predictions %.200s: %s", predictions, strerror(-written));
    }
    if (rc && e.made)
        unlink(predictions);
    if (!rc && options->bleu)
        print_bleu(&e, tokens, json);
    else if (!rc && e.task)
        print_task(&e, loss, tokens, json);
    else if (!rc)
        print_result(loss, tokens, e.masked, json);
    json_decref(e.classes);
    if (!rc)
        return 0;
    int status = arguments_fail(command, rc, error.text);
    return rc == -EINTR ? stopping_status(&e.stopping, status) : status;
}

int command_eval(int argc, char **argv)
{
    struct eps_eval_options asked = eps_eval_defaults();
    struct table_options options = {.options = &asked};
    struct usual usual = {.threads = 0};
    bool json = false;
    struct hub hub = {.yes = false};
    const struct argument own[] = {
        {"--json", NULL, ARGUMENT_FLAG, &json,
         "print an object with loss, tokens and perplexity (masked tokens: pseudo_perplexity); for a classifier with "
         "loss, rows and the metrics; with --bleu with bleu, precisions, brevity_penalty, hypothesis_tokens, "
         "reference_tokens, segments, tokens and signature"},
        HUB_YES(&hub),
    };

    table_options_take(&options, EPS_COMMAND_EVAL);
    table_options_add(&options, own, sizeof own / sizeof *own);
    usual_add(&options, &usual, "print the result and errors alone");
    const struct command command = {
        "eps eval",
        "Prints the mean loss (nats per token) and the perplexity of a model over files. For a model that predicts "
        "masked tokens, tokens are masked as in training. Of a classifier: the mean loss of a row, accuracy, with two "
        "classes F1 and Matthews' correlation, with more the mean F1; of a regression the correlations of Pearson and "
        "Spearman.",
        options.arguments, options.n};
    int status = table_options_parse(&options, &command, argc, argv);

    if (status < 0)
        status = usual_apply(&usual, &command, asked.model ? asked.connect : NULL);
    if (status < 0)
        status = hub_find(&hub, &asked.model, HUB_MODEL, &command);
    if (status < 0)
        status = eval_run(&command, &asked, json, usual.quiet);
    table_options_free(&options);
    return status;
}
