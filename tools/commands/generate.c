/* eps generate: prints the text on stdout as it is generated, and nothing else there. */
#include "client/eps.h"
#include "tools/commands.h"
#include "tools/hub.h"
#include "tools/table_options.h"
#include "tools/arguments.h"
#include "tools/usual.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPT = 64 << 20 };

struct generate {
    struct hub hub;
    struct eps_generate_options options;
    struct argument_texts texts, files, ids_texts; /* as given */
    struct eps_prompt *prompts;                    /* (options.n_prompts), of one of these */
    struct text *contents;                         /* (files.n) */
    uint32_t **ids;                                /* (ids_texts.n) */
    bool json;
    struct usual usual;
    bool targets; /* prompts are sources, which are not printed */
    bool begun;   /* something of the text was printed */
    struct printed printed;
    struct stopping stopping;
    /* The current text: */
    size_t prompt;
    uint32_t sample;
    struct text continuation; /* collected for JSON, as new_ids */
    json_t *new_ids;
    json_t *answers; /* a list of objects, one for each text */
};

static void print_ids(struct generate *g, const uint32_t *ids, size_t n)
{
    char text[16];

    for (size_t i = 0; i < n; i++)
        printed_put(&g->printed, text,
                    (size_t)snprintf(text, sizeof text, "%s%" PRIu32, g->begun || i > 0 ? " " : "", ids[i]));
}

static const struct eps_prompt no_prompt;

static const struct eps_prompt *generate_prompt_of(const struct generate *g)
{
    return g->options.n_prompts > 0 ? &g->prompts[g->prompt] : &no_prompt;
}

static bool is_single(const struct generate *g)
{
    return g->options.n_prompts <= 1 && g->options.n_samples <= 1;
}

static void on_targets(void *user)
{
    struct generate *g = user;
    g->targets = true;
}

/* A line of three hyphens stands between two texts. */
static void generate_on_begin(void *user, size_t prompt, uint32_t sample)
{
    struct generate *g = user;

    if (!g->json && (prompt > 0 || sample > 0))
        printed_text(&g->printed, g->printed.last == '\n' ? "---\n" : "\n---\n", g->printed.last == '\n' ? 4 : 5);
    g->prompt = prompt, g->sample = sample;
    g->begun = false;
    g->continuation.n = 0;
    json_array_clear(g->new_ids);
}

static void generate_on_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct generate *g = user;
    const struct eps_prompt *prompt = g->targets ? &no_prompt : generate_prompt_of(g);

    if (g->json) {
        json_array_append_new(g->new_ids, json_integer(id));
        if (text && text_add(&g->continuation, text, n))
            g->printed.error = ENOMEM;
        return;
    }
    if (!g->begun && prompt->text)
        printed_text(&g->printed, prompt->text, prompt->n_bytes);
    else if (!g->begun && !text)
        print_ids(g, prompt->ids, prompt->n_ids);
    g->begun = g->begun || text || prompt->n_ids > 0;
    if (text)
        printed_text(&g->printed, text, n);
    else
        print_ids(g, &id, 1);
    g->begun = true;
    printed_flush(&g->printed);
}

static int generate_should_stop(void *user)
{
    struct generate *g = user;
    return g->printed.error || stopping_observer(&g->stopping);
}

static void generate_on_note(void *user, const char *sentence)
{
    const struct generate *g = user;
    char text[OPTIONS_TEXT];

    if (!g->usual.quiet)
        fprintf(stderr, "eps generate: %s\n", arguments_options(text, sentence));
}

static double tokens_per_s(const struct eps_generated *out)
{
    return out->tokens_ms > 0 ? (out->n_tokens - out->n_texts) * 1000. / out->tokens_ms : NAN;
}

static void generate_on_end(void *user, const struct eps_generated *out)
{
    struct generate *g = user;
    const struct eps_prompt *prompt = generate_prompt_of(g);
    json_t *object = json_object();
    const double rate = tokens_per_s(out);
    const uint64_t seed = g->options.sampling.seed + g->sample;

    if (!g->json) {
        json_decref(object);
        return;
    }
    json_object_set_new(object, "prompt", prompt->text ? json_stringn(prompt->text, prompt->n_bytes) : json_null());
    json_object_set_new(object, "text",
                        g->continuation.bytes ? json_stringn(g->continuation.bytes, g->continuation.n) : json_null());
    json_object_set_new(object, "ids", json_copy(g->new_ids));
    json_object_set_new(object, "seed", json_integer((json_int_t)seed));
    json_object_set_new(object, "prompt_tokens", json_integer(out->n_prompt));
    json_object_set_new(object, "tokens", json_integer(out->n_tokens));
    if (g->options.n_beams > 0)
        json_object_set_new(object, "score", json_real(out->score));
    json_object_set_new(object, "slides", json_integer(out->n_slides));
    json_object_set_new(object, "ended", json_boolean(out->ended));
    json_object_set_new(object, "stopped", json_boolean(out->stopped));
    json_object_set_new(object, "prompt_ms", json_real(out->prompt_ms));
    json_object_set_new(object, "tokens_ms", json_real(out->tokens_ms));
    json_object_set_new(object, "tokens_per_s", isnan(rate) ? json_null() : json_real(rate));
    json_object_set_new(object, "weight_bytes", json_integer((json_int_t)out->weight_bytes));
    json_object_set_new(object, "token_bytes", json_integer((json_int_t)out->token_bytes));
    json_object_set_new(object, "resident_bytes", json_integer((json_int_t)out->resident_bytes));
    json_array_append_new(g->answers, object);
}

static void print_figures(const struct command *command, const struct eps_generated *out)
{
    const double rate = tokens_per_s(out);
    char resident[24], visited[24];

    if (out->n_slides > 0)
        fprintf(stderr,
                "%s: the text is longer than the model's positions: %" PRIu32 " time%s the context was cut to "
                "its last half\n",
                command->name, out->n_slides, out->n_slides == 1 ? "" : "s");
    fprintf(stderr, "%s: %" PRIu32 " token%s after %" PRIu32, command->name, out->n_tokens,
            out->n_tokens == 1 ? "" : "s", out->n_prompt);
    if (out->n_texts > 1)
        fprintf(stderr, " in %" PRIu32 " texts", out->n_texts);
    if (!isnan(rate))
        fprintf(stderr, ", %.1f tokens/s", rate);
    fprintf(stderr, "; %s of the %s of weights that a token visits stayed on the device\n",
            eps_format_bytes(resident, out->resident_bytes < out->token_bytes ? out->resident_bytes : out->token_bytes),
            eps_format_bytes(visited, out->token_bytes));
}

/* Reports the result; returns the exit status. */
static int generate_end(struct generate *g, const struct command *command, int rc, const struct eps_generated *out,
                        const struct eps_error *error)
{
    if (g->json && json_array_size(g->answers) > 0)
        answer_print(json_incref(is_single(g) ? json_array_get(g->answers, 0) : g->answers));
    else if (g->printed.terminal && g->begun && g->printed.last != '\n')
        putchar('\n');
    fflush(stdout);
    if (g->printed.error)
        return output_status(command->name, g->printed.error);
    if (rc == 0 && !g->json && !g->usual.quiet)
        print_figures(command, out);
    if (rc == 0)
        return 0;
    int status = arguments_fail(command, rc, error->text);
    return rc == -EINTR ? stopping_status(&g->stopping, status) : status;
}

static int generate_run(struct generate *g, const struct command *command)
{
    const struct eps_generate_events events = {.on_targets = on_targets,
                                               .on_begin = generate_on_begin,
                                               .on_token = generate_on_token,
                                               .on_end = generate_on_end,
                                               .should_stop = generate_should_stop,
                                               .on_note = generate_on_note};
    struct eps_generated out;
    struct eps_error error;

    printed_init(&g->printed);
    stopping_init(&g->stopping);
    return generate_end(g, command, eps_generate(&out, &g->options, &events, g, &error), &out, &error);
}

static int __attribute__((format(printf, 3, 4)))
generate_fail(const struct command *command, int rc, const char *format, ...)
{
    char sentence[600];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return arguments_fail(command, rc, sentence);
}

/* Returns -1 to continue, as arguments_parse. */
static int generate_read_file(struct text *out, const char *path, const struct command *command)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char bytes[65536];
    int status = -1;
    size_t n;

    if (!file)
        return generate_fail(command, -errno, "--prompt-file %s: %s", path, strerror(errno));
    while (status < 0 && (n = fread(bytes, 1, sizeof bytes, file)) > 0) {
        if (out->n + n > MAX_PROMPT)
            status = generate_fail(command, -EFBIG, "--prompt-file %s: more than %d MiB: shorten it", path,
                                   MAX_PROMPT >> 20);
        else if (text_add(out, bytes, n))
            status = generate_fail(command, -ENOMEM, "--prompt-file %s: out of memory", path);
    }
    if (status < 0 && ferror(file))
        status = generate_fail(command, -errno, "--prompt-file %s: %s", path, strerror(errno));
    else if (status < 0 && out->n == 0)
        status = generate_fail(command, -EINVAL, "--prompt-file %s is empty", path);
    if (file != stdin)
        fclose(file);
    return status;
}

/* Parses "464,2068" into *ids (*n), owned. */
static int parse_ids(uint32_t **ids, size_t *n, const char *text, const struct command *command)
{
    const char *at = text;

    *n = 0;
    *ids = malloc((strlen(text) / 2 + 1) * sizeof **ids);
    if (!*ids)
        return generate_fail(command, -ENOMEM, "--ids: out of memory");
    for (;; at++) {
        char *end_of;
        errno = 0;
        const unsigned long long id = strtoull(at, &end_of, 10);
        if (*at < '0' || *at > '9' || errno || id > UINT32_MAX || (*end_of && *end_of != ','))
            return generate_fail(command, -EDOM,
                                 "--ids '%.80s': token ids with commas between are needed, as in 464,2068", text);
        (*ids)[(*n)++] = (uint32_t)id;
        at = end_of;
        if (!*at)
            break;
    }
    return -1;
}

static int find_prompts(struct generate *g, const struct command *command)
{
    const size_t n = g->texts.n + g->files.n + g->ids_texts.n;
    int status = -1;

    if ((g->texts.n > 0) + (g->files.n > 0) + (g->ids_texts.n > 0) > 1)
        return generate_fail(command, -EDOM, "give one of --prompt, --prompt-file and --ids, not several");
    g->prompts = calloc(n + 1, sizeof *g->prompts);
    g->contents = calloc(n + 1, sizeof *g->contents);
    g->ids = calloc(n + 1, sizeof *g->ids);
    if (!g->prompts || !g->contents || !g->ids)
        return generate_fail(command, -ENOMEM, "out of memory");
    g->options.prompts = g->prompts, g->options.n_prompts = n;
    for (size_t i = 0; i < n && status < 0; i++) {
        struct eps_prompt *prompt = &g->prompts[i];
        if (g->files.n > 0) {
            status = generate_read_file(&g->contents[i], g->files.items[i], command);
            prompt->text = g->contents[i].bytes, prompt->n_bytes = g->contents[i].n;
        } else if (g->ids_texts.n > 0) {
            status = parse_ids(&g->ids[i], &prompt->n_ids, g->ids_texts.items[i], command);
            prompt->ids = g->ids[i];
        } else {
            prompt->text = g->texts.items[i], prompt->n_bytes = strlen(prompt->text);
        }
    }
    return status;
}

static void generate_free_all(struct generate *g)
{
    for (size_t i = 0; g->prompts && i < g->options.n_prompts; i++) {
        free(g->contents[i].bytes);
        free(g->ids[i]);
    }
    free(g->prompts);
    free(g->contents);
    free(g->ids);
    free(g->texts.items);
    free(g->files.items);
    free(g->ids_texts.items);
    free(g->continuation.bytes);
    json_decref(g->new_ids);
    json_decref(g->answers);
}

int command_generate(int argc, char **argv)
{
    struct generate g = {.options = eps_generate_defaults(), .new_ids = json_array(), .answers = json_array()};
    struct table_options options = {.options = &g.options};
    const struct argument prompts[] = {
        {"Text", .kind = ARGUMENT_HEADING},
        {"--prompt", "TEXT", ARGUMENT_EACH, &g.texts,
         "text to continue; of an encoder-decoder the source whose target is written. Default: begin a new text. Given "
         "several times: several texts, with a line --- between"},
        {"--prompt-file", "FILE|-", ARGUMENT_EACH, &g.files,
         "text to continue, from a file or standard input. Can be given several times"},
        {"--ids", "N,N,...", ARGUMENT_EACH, &g.ids_texts, "token ids to continue. Can be given several times"},
    };
    const struct argument output[] = {
        {"Output", .kind = ARGUMENT_HEADING},
        {"--json", NULL, ARGUMENT_FLAG, &g.json,
         "print an object at the end, of several texts a list of them: prompt, text, ids, seed, prompt_tokens, tokens, "
         "slides, ended, stopped, prompt_ms, tokens_ms, tokens_per_s, weight_bytes, token_bytes, resident_bytes"},
        HUB_YES(&g.hub),
    };

    table_options_add(&options, prompts, sizeof prompts / sizeof *prompts);
    table_options_take(&options, EPS_COMMAND_GENERATE);
    table_options_add(&options, output, sizeof output / sizeof *output);
    usual_add(&options, &g.usual, "print the text and errors alone, not the speed");
    const struct command command = {
        "eps generate", "Continues texts with a model and prints them token by token. Prints the speed on stderr.",
        options.arguments, options.n};
    int status = table_options_parse(&options, &command, argc, argv);

    if (status < 0)
        status = usual_apply(&g.usual, &command, g.options.model ? g.options.connect : NULL);
    if (status < 0)
        status = hub_find(&g.hub, &g.options.model, HUB_MODEL, &command);
    if (status < 0)
        status = find_prompts(&g, &command);
    if (status < 0)
        status = generate_run(&g, &command);
    generate_free_all(&g);
    table_options_free(&options);
    return status;
}
