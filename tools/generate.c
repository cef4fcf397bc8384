/* eps generate: prints the text on stdout as it is generated, and nothing else there. */
#include "client/eps.h"
#include "tools/commands.h"
#include "tools/arguments.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPT = 64 << 20 };

struct generate {
    struct eps_generate_options options;
    const char *prompt, *prompt_file, *ids_text; /* as given */
    struct text file;                            /* content of prompt_file */
    uint32_t *ids;                               /* (options.n_prompt_ids), parsed from ids_text */
    struct argument_texts stops;
    bool json;
    bool begun; /* something was printed */
    struct printed printed;
    struct stopping stopping;
    struct text continuation; /* collected for JSON */
    json_t *new_ids;
};

static void print_ids(struct generate *g, const uint32_t *ids, size_t n)
{
    char text[16];

    for (size_t i = 0; i < n; i++)
        printed_put(&g->printed, text,
                    (size_t)snprintf(text, sizeof text, "%s%" PRIu32, g->printed.last ? " " : "", ids[i]));
}

static void on_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct generate *g = user;
    const struct eps_generate_options *o = &g->options;

    if (g->json) {
        json_array_append_new(g->new_ids, json_integer(id));
        if (text && text_add(&g->continuation, text, n))
            g->printed.error = ENOMEM;
        return;
    }
    if (!g->begun && o->prompt)
        printed_text(&g->printed, o->prompt, o->prompt_bytes);
    else if (!g->begun && !text)
        print_ids(g, o->prompt_ids, o->n_prompt_ids);
    g->begun = true;
    if (text)
        printed_text(&g->printed, text, n);
    else
        print_ids(g, &id, 1);
    printed_flush(&g->printed);
}

static int should_stop(void *user)
{
    struct generate *g = user;
    return g->printed.error || stopping_look(&g->stopping);
}

static void on_note(void *user, const char *sentence)
{
    (void)user;
    fprintf(stderr, "eps generate: %s\n", sentence);
}

static double tokens_per_s(const struct eps_generated *out)
{
    return out->n_tokens > 1 && out->tokens_ms > 0 ? (out->n_tokens - 1) * 1000. / out->tokens_ms : NAN;
}

static void print_json(const struct generate *g, const struct eps_generated *out)
{
    const struct eps_generate_options *o = &g->options;
    json_t *object = json_object();
    const double rate = tokens_per_s(out);

    json_object_set_new(object, "prompt", o->prompt ? json_stringn(o->prompt, o->prompt_bytes) : json_null());
    json_object_set_new(object, "text",
                        g->continuation.bytes ? json_stringn(g->continuation.bytes, g->continuation.n) : json_null());
    json_object_set(object, "ids", g->new_ids);
    json_object_set_new(object, "prompt_tokens", json_integer(out->n_prompt));
    json_object_set_new(object, "tokens", json_integer(out->n_tokens));
    json_object_set_new(object, "slides", json_integer(out->n_slides));
    json_object_set_new(object, "ended", json_boolean(out->ended));
    json_object_set_new(object, "stopped", json_boolean(out->stopped));
    json_object_set_new(object, "prompt_ms", json_real(out->prompt_ms));
    json_object_set_new(object, "tokens_ms", json_real(out->tokens_ms));
    json_object_set_new(object, "tokens_per_s", isnan(rate) ? json_null() : json_real(rate));
    json_object_set_new(object, "weight_bytes", json_integer((json_int_t)out->weight_bytes));
    json_object_set_new(object, "token_bytes", json_integer((json_int_t)out->token_bytes));
    json_object_set_new(object, "resident_bytes", json_integer((json_int_t)out->resident_bytes));
    answer_print(object);
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
    if (!isnan(rate))
        fprintf(stderr, ", %.1f tokens/s", rate);
    fprintf(stderr, "; %s of the %s of weights that a token visits stayed on the device\n",
            eps_format_bytes_like(resident, out->resident_bytes, out->token_bytes),
            eps_format_bytes(visited, out->token_bytes));
}

/* Reports the result; returns the exit status. */
static int end(struct generate *g, const struct command *command, int rc, const struct eps_generated *out,
               const struct eps_error *error)
{
    if (g->json && (rc == 0 || rc == -EINTR))
        print_json(g, out);
    else if (g->printed.terminal && g->begun && g->printed.last != '\n')
        putchar('\n');
    fflush(stdout);
    if (g->printed.error)
        return output_status(command->name, g->printed.error);
    if (rc == 0 && !g->json)
        print_figures(command, out);
    if (rc == 0)
        return 0;
    int status = arguments_fail(command, rc, error->text);
    return rc == -EINTR ? stopping_status(&g->stopping, status) : status;
}

static int run(struct generate *g, const struct command *command)
{
    const struct eps_generate_events events = {on_token, should_stop, on_note};
    struct eps_generated out;
    struct eps_error error;

    printed_init(&g->printed);
    stopping_init(&g->stopping);
    g->options.stops = g->stops.items, g->options.n_stops = g->stops.n;
    return end(g, command, eps_generate(&out, &g->options, &events, g, &error), &out, &error);
}

static int __attribute__((format(printf, 3, 4))) fail(const struct command *command, int rc, const char *format, ...)
{
    char sentence[600];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return arguments_fail(command, rc, sentence);
}

/* Returns -1 to continue, as arguments_parse. */
static int read_prompt(struct generate *g, const struct command *command)
{
    FILE *file = strcmp(g->prompt_file, "-") == 0 ? stdin : fopen(g->prompt_file, "rb");
    char bytes[65536];
    int status = -1;
    size_t n;

    if (!file)
        return fail(command, -errno, "--prompt-file %s: %s", g->prompt_file, strerror(errno));
    while (status < 0 && (n = fread(bytes, 1, sizeof bytes, file)) > 0) {
        if (g->file.n + n > MAX_PROMPT)
            status = fail(command, -EFBIG, "--prompt-file %s: more than %d MiB: shorten it", g->prompt_file,
                          MAX_PROMPT >> 20);
        else if (text_add(&g->file, bytes, n))
            status = fail(command, -ENOMEM, "--prompt-file %s: out of memory", g->prompt_file);
    }
    if (status < 0 && ferror(file))
        status = fail(command, -errno, "--prompt-file %s: %s", g->prompt_file, strerror(errno));
    else if (status < 0 && g->file.n == 0)
        status = fail(command, -EINVAL, "--prompt-file %s is empty", g->prompt_file);
    if (file != stdin)
        fclose(file);
    g->options.prompt = g->file.bytes;
    g->options.prompt_bytes = g->file.n;
    return status;
}

static int parse_ids(struct generate *g, const struct command *command)
{
    const char *at = g->ids_text;
    size_t n = 0;

    g->ids = malloc((strlen(at) / 2 + 1) * sizeof *g->ids);
    if (!g->ids)
        return fail(command, -ENOMEM, "--ids: out of memory");
    for (;; at++) {
        char *end_of;
        errno = 0;
        const unsigned long long id = strtoull(at, &end_of, 10);
        if (*at < '0' || *at > '9' || errno || id > UINT32_MAX || (*end_of && *end_of != ','))
            return fail(command, -EDOM, "--ids '%.80s': token ids with commas between are needed, as in 464,2068",
                        g->ids_text);
        g->ids[n++] = (uint32_t)id;
        at = end_of;
        if (!*at)
            break;
    }
    g->options.prompt_ids = g->ids;
    g->options.n_prompt_ids = n;
    return -1;
}

static int find_prompt(struct generate *g, const struct command *command)
{
    if (!!g->prompt + !!g->prompt_file + !!g->ids_text > 1)
        return fail(command, -EDOM, "give one of --prompt, --prompt-file and --ids, not several");
    if (g->prompt_file)
        return read_prompt(g, command);
    if (g->ids_text)
        return parse_ids(g, command);
    g->options.prompt = g->prompt;
    g->options.prompt_bytes = g->prompt ? strlen(g->prompt) : 0;
    return -1;
}

int command_generate(int argc, char **argv)
{
    struct generate g = {.options = {.temperature = NAN, .top_p = NAN}};
    struct eps_generate_options *o = &g.options;
    const struct argument arguments[] = {
        {"Model and text", .kind = ARGUMENT_HEADING},
        {"--model", "DIR", ARGUMENT_TEXT, &o->model,
         "a directory with config.json, *.safetensors and a tokenizer, a run's directory (its latest checkpoint) or a "
         "step-N; default: the current model of your only live run"},
        {"--prompt", "TEXT", ARGUMENT_TEXT, &g.prompt, "text to continue; default: begin a new text"},
        {"--prompt-file", "FILE|-", ARGUMENT_TEXT, &g.prompt_file, "text to continue, from a file or standard input"},
        {"--ids", "N,N,...", ARGUMENT_TEXT, &g.ids_text, "token ids to continue"},
        {"--tokens", "N", ARGUMENT_COUNT, &o->n_tokens,
         "maximum number of new tokens; default 200. A text may exceed the model's positions: whenever they are used "
         "up, its last half becomes the context"},
        {"--stop", "TEXT...", ARGUMENT_TEXTS, &g.stops,
         "end before the first of these in the new text; it is not printed. Can be given several times"},
        ARGUMENTS_SAMPLING(o),
        ARGUMENTS_MACHINE(o),
        {"Output", .kind = ARGUMENT_HEADING},
        {"--json", NULL, ARGUMENT_FLAG, &g.json,
         "print an object at the end: prompt, text, ids, prompt_tokens, tokens, slides, ended, stopped, prompt_ms, "
         "tokens_ms, tokens_per_s, weight_bytes, token_bytes, resident_bytes"},
    };
    const struct command command = {
        "eps generate", "Continues a text with a model and prints it token by token. Prints the speed on stderr.",
        arguments, sizeof arguments / sizeof *arguments};
    int status = arguments_parse(&command, argc, argv);

    if (status < 0)
        status = find_prompt(&g, &command);
    if (status < 0) {
        g.new_ids = json_array();
        status = run(&g, &command);
    }
    json_decref(g.new_ids);
    free(g.stops.items);
    free(g.continuation.bytes);
    free(g.file.bytes);
    free(g.ids);
    return status;
}
