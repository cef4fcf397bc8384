/* eps_bias: what approximate gradients are worth, as of a run's checkpoints.
 *
 * A gradient is read from the first moments after the run's next step, done by itself from a checkpoint of the same
 * files and other options: with beta1 = 0 Adam's m is the gradient, in fp32, and so is a momentum of SGD that decays to
 * nothing. So what is compared is what the run's own programs compute and sum, over the run's own next minibatch,
 * whatever the form, device, parts and adapters.
 *
 * Several draws differ in the number that the form gets, and in the random bits that follow from it. Each is a run that
 * is removed once it is compared: of all there stay the sum of the distances, by element, and of their squares, by
 * layer. */
#include "client/eps.h"
#include "client/daemon/observer.h"
#include "client/data/data.h"
#include "client/options/options.h"
#include "client/options/value.h"
#include "client/record/checkpoints.h"
#include "client/record/record.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 4096 }; /* elements that are compared at a time */

/* Sums over a layer's elements. */
struct sums {
    struct eps_bias_layer *layer;
    double product, square, exact_square; /* of the mean draw and the exact gradient */
    double off;                           /* of the mean draw's distance, squares */
    double distance;                      /* of all draws' distances, squares */
};

struct bias {
    const struct eps_bias_options *options;
    const struct eps_bias_events *events;
    void *user;
    char form[256];         /* of the draws, without their number */
    char path[PATH_MAX];    /* of the checkpoint */
    char scratch[PATH_MAX]; /* the directory of both runs; empty: there is none */
    struct checkpoint checkpoint;
    struct client_record record;
    struct eps_bias_layer *layers;
    struct sums *sums;
    size_t n_layers;
};

struct eps_bias_options eps_bias_defaults(void)
{
    return (struct eps_bias_options){.draws = 1};
}

/* The exact gradient, as a file of moments has it, and how far all draws are from it. */
struct gradients {
    int fd;
    struct safetensors exact;
    double *apart; /* for each element the sum; NULL: there is one draw */
    size_t apart_bytes;
};

/* ---- one gradient ---- */

/* The run's next step, after which m is its gradient. Neither rate nor second moments matter. */
static struct eps_train_options step_options(const struct bias *b, const char *approximate)
{
    struct eps_train_options o = b->record.options;

    o.steps = b->checkpoint.step + 1, o.epochs = NAN;
    o.save_every = 0, o.eval_every = 0, o.patience = 0;
    o.moments = EPS_MOMENTS_FP32, o.sums = EPS_FP32, o.commit = o.precision == EPS_FP16 ? EPS_FENCED : EPS_EAGER;
    if (o.optimizer == EPS_SGD) {
        o.momentum = 1e-300, o.nesterov = false, o.weight_decay = 0; /* not 0, which keeps none */
    } else {
        o.beta1 = 0;
        o.optimizer = EPS_ADAMW;
    }
    o.clip_norm = o.clip_update = NAN;
    o.approximate = approximate;
    return o;
}

/* The checkpoint's training.json with these options. Owned; NULL: no memory. */
static char *print_training(const struct bias *b, const struct eps_train_options *options)
{
    struct checkpoint edited = b->checkpoint;
    const struct eps_option *row;
    char key[CLIENT_OPTION_KEY];
    int rc = 0;

    edited.options = json_deep_copy(b->checkpoint.options);
    for (unsigned i = 1; edited.options && (row = client_option_stored(i)); i++) {
        client_option_key(key, row);
        if (row->stored == EPS_STORED_ABSENT && !client_option_is_set(options, row))
            json_object_del(edited.options, key);
        else
            rc |= json_object_set_new(edited.options, key, client_option_to_json(options, row));
    }
    char *text = edited.options && !rc ? checkpoint_print(&edited) : NULL;
    json_decref(edited.options);
    return text;
}

/* A file of that name is not there yet. */
static int bias_put_text(const char *path, const char *text, struct error *err)
{
    FILE *file = fopen(path, "wxe");
    const bool put = file && fputs(text, file) >= 0;

    int rc = put ? 0 : -errno;

    if (file && fclose(file) && !rc)
        rc = -errno;
    return rc ? error_set(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

/* A checkpoint in `directory` that differs from the run's in its options alone; its other files are links. */
static int link_checkpoint(const struct bias *b, const char *directory, const struct eps_train_options *options,
                           struct error *err)
{
    char path[PATH_MAX + 128], target[PATH_MAX + 128], checkpoint[PATH_MAX];
    char *text = print_training(b, options);
    int rc = text ? 0 : error_memory(err);

    if (!rc && mkdir(directory, 0700))
        rc = error_set(err, -errno, "%s: %s", directory, strerror(errno));
    if (!rc && !realpath(b->path, checkpoint))
        rc = error_set(err, -errno, "%s: %s", b->path, strerror(errno));
    for (size_t i = 0; !rc && i < b->checkpoint.n_files; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, b->checkpoint.files[i].name);
        snprintf(target, sizeof target, "%s/%s", checkpoint, b->checkpoint.files[i].name);
        if (symlink(target, path))
            rc = error_set(err, -errno, "%s: %s", path, strerror(errno));
    }
    snprintf(path, sizeof path, "%s/" CHECKPOINT_TRAINING, directory);
    if (!rc)
        rc = bias_put_text(path, text, err);
    free(text);
    return rc;
}

/* With the defaults of eps train; all that matters is in the checkpoint. */
static int train(const struct bias *b, const char *resume, const char *out, struct error *err)
{
    const struct eps_train_events events = {.should_stop = b->events ? b->events->should_stop : NULL};
    struct eps_train_options o = eps_train_defaults();
    struct eps_error error;

    o.resume = resume, o.out = out;
    o.base_model = b->options->base_model;
    o.device = b->options->device, o.device_mem = b->options->device_mem;
    o.programs = b->options->programs;
    const int rc = eps_train(&o, &events, b->user, &error);
    return rc ? error_set(err, rc, "%s", error.text) : 0;
}

/* *fd: the moments after the step, owned. name: of directories in scratch. */
static int make_gradient(struct bias *b, int *fd, const char *name, const char *approximate, struct error *err)
{
    const struct eps_train_options options = step_options(b, approximate);
    char from[PATH_MAX + 64], to[PATH_MAX + 64], path[PATH_MAX + 128];

    snprintf(from, sizeof from, "%s/of-%s", b->scratch, name);
    snprintf(to, sizeof to, "%s/%s", b->scratch, name);
    snprintf(path, sizeof path, "%s/step-%" PRIu64 "/" CHECKPOINT_MOMENTS, to, b->checkpoint.step + 1);
    int rc = mkdir(from, 0700) ? error_set(err, -errno, "%s: %s", from, strerror(errno)) : 0;
    snprintf(from, sizeof from, "%s/of-%s/step-%" PRIu64, b->scratch, name, b->checkpoint.step);
    if (!rc)
        rc = link_checkpoint(b, from, &options, err);
    if (!rc)
        rc = train(b, from, to, err);
    if (rc)
        return rc;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    return *fd < 0 ? error_set(err, -errno, "%s: %s", path, strerror(errno)) : 0;
}

/* ---- comparing ---- */

/* The length of "transformer.h.0" in "transformer.h.0.attn.c_attn.weight": up to its first number. 0: there is none. */
static size_t layer_length(const char *tensor)
{
    for (const char *at = strchr(tensor, '.'); at; at = strchr(at + 1, '.')) {
        const size_t n = strspn(at + 1, "0123456789");
        if (n > 0 && (at[n + 1] == '.' || !at[n + 1]))
            return (size_t)(at - tensor) + 1 + n;
    }
    return 0;
}

static int bias_add_layer(struct bias *b, const char *name, size_t n, struct error *err)
{
    struct eps_bias_layer *layers = realloc(b->layers, (b->n_layers + 1) * sizeof *layers);

    if (!layers)
        return error_memory(err);
    b->layers = layers;
    layers[b->n_layers] = (struct eps_bias_layer){0};
    snprintf(layers[b->n_layers++].name, sizeof layers->name, "%.*s", (int)n, name);
    return 0;
}

/* The number after "transformer.h.", by which layers with the same stem follow each other. */
static int bias_by_number(const void *a, const void *b)
{
    const char *const left = ((const struct eps_bias_layer *)a)->name, *const right =
                                                                           ((const struct eps_bias_layer *)b)->name;
    const char *const left_dot = strrchr(left, '.'), *const right_dot = strrchr(right, '.');
    const ptrdiff_t n = left_dot - left;

    if (n != right_dot - right || strncmp(left, right, (size_t)n) != 0)
        return strcmp(left, right);
    const unsigned long i = strtoul(left_dot + 1, NULL, 10), k = strtoul(right_dot + 1, NULL, 10);
    return (i > k) - (i < k);
}

/* Moments come as "m.NAME". */
static const char *bias_gradient_of(const struct safetensors_entry *entry)
{
    return strncmp(entry->name, "m.", 2) == 0 ? entry->name + 2 : NULL;
}

/* The last two layers are "other" and "all". */
static struct sums *find_sums(const struct bias *b, const char *tensor)
{
    const size_t n = layer_length(tensor);

    for (size_t i = 0; n > 0 && i < b->n_layers - 2; i++)
        if (strncmp(b->layers[i].name, tensor, n) == 0 && !b->layers[i].name[n])
            return &b->sums[i];
    return &b->sums[b->n_layers - 2];
}

/* The layers of a file's tensors, then "other" and "all". */
static int list_layers(struct bias *b, const struct safetensors *file, struct error *err)
{
    int rc = 0;

    b->n_layers = 0;
    for (size_t i = 0; !rc && i < file->n_entries; i++) {
        const char *name = bias_gradient_of(&file->entries[i]);
        const size_t n = name ? layer_length(name) : 0;
        bool known = n == 0 || n >= sizeof b->layers->name;
        for (size_t k = 0; !known && k < b->n_layers; k++)
            known = strncmp(b->layers[k].name, name, n) == 0 && !b->layers[k].name[n];
        if (!known)
            rc = bias_add_layer(b, name, n, err);
    }
    if (!rc && b->n_layers > 0)
        qsort(b->layers, b->n_layers, sizeof *b->layers, bias_by_number);
    if (!rc)
        rc = bias_add_layer(b, "other", 5, err);
    if (!rc)
        rc = bias_add_layer(b, "all", 3, err);
    free(b->sums);
    b->sums = rc ? NULL : calloc(b->n_layers, sizeof *b->sums);
    if (!rc && !b->sums)
        rc = error_memory(err);
    for (size_t i = 0; !rc && i < b->n_layers; i++)
        b->sums[i].layer = &b->layers[i];
    return rc;
}

/* Elements of one tensor, of one draw or, without it, of the mean of all. */
struct piece {
    const float *exact, *draw;
    double *apart; /* sums of all draws' distances; NULL: there is one draw */
    uint64_t n;
};

/* A tensor's elements count for its layer, and for all. */
typedef void visit_piece(const struct bias *b, struct sums *sums, const struct piece *piece);

static void add_distances(const struct bias *b, struct sums *sums, const struct piece *piece)
{
    (void)b;
    for (uint64_t i = 0; i < piece->n; i++)
        sums->distance += pow((double)piece->draw[i] - (double)piece->exact[i], 2);
}

static void add_mean(const struct bias *b, struct sums *sums, const struct piece *piece)
{
    sums->layer->n += piece->n;
    for (uint64_t i = 0; i < piece->n; i++) {
        const double exact = (double)piece->exact[i],
                     mean = piece->apart ? exact + piece->apart[i] / b->options->draws : (double)piece->draw[i];
        sums->product += exact * mean;
        sums->square += mean * mean;
        sums->exact_square += exact * exact;
        sums->off += pow(mean - exact, 2);
    }
}

static int visit_tensor(const struct bias *b, const struct safetensors_entry *exact,
                        const struct safetensors_entry *draw, double *apart, visit_piece *visit, struct error *err)
{
    float left[CHUNK], right[CHUNK];
    int rc = 0;

    if (draw && draw->n != exact->n)
        return error_set(err, -EINVAL, "%.100s is of another size without --approximate", exact->name);
    for (uint64_t done = 0, n; !rc && done < exact->n; done += n) {
        n = exact->n - done < CHUNK ? exact->n - done : CHUNK;
        const struct piece piece = {left, draw ? right : NULL, apart ? apart + done : NULL, n};
        rc = safetensors_read(left, exact, done, n, err);
        if (!rc && draw)
            rc = safetensors_read(right, draw, done, n, err);
        if (rc)
            break;
        for (uint64_t i = 0; draw && apart && i < n; i++)
            piece.apart[i] += (double)right[i] - (double)left[i];
        visit(b, find_sums(b, bias_gradient_of(exact)), &piece);
        visit(b, &b->sums[b->n_layers - 1], &piece);
    }
    return rc;
}

/* draw: NULL: the mean of all. */
static int bias_visit_all(const struct bias *b, const struct gradients *g, const struct safetensors *draw,
                          visit_piece *visit, struct error *err)
{
    double *apart = g->apart;
    int rc = 0;

    for (size_t i = 0; !rc && i < g->exact.n_entries; i++) {
        const struct safetensors_entry *exact = &g->exact.entries[i],
                                       *drawn = draw ? safetensors_find(draw, exact->name) : NULL;
        if (!bias_gradient_of(exact))
            continue;
        rc = draw && !drawn ? error_set(err, -EINVAL, "%.100s is missing with --approximate", exact->name)
                            : visit_tensor(b, exact, drawn, apart, visit, err);
        apart = apart ? apart + exact->n : NULL;
    }
    return rc;
}

/* The draws' distances have a mean and a spread about it: with n draws the spread's square is estimated by (sum of
 * squares - n times the mean's square) / (n - 1). */
static void bias_finish(const struct bias *b)
{
    const double n = b->options->draws;

    for (struct sums *sums = b->sums; sums < b->sums + b->n_layers; sums++) {
        struct eps_bias_layer *layer = sums->layer;
        layer->norm = sqrt(sums->square), layer->exact = sqrt(sums->exact_square), layer->off = sqrt(sums->off);
        layer->cosine = sums->square > 0 && sums->exact_square > 0 ? sums->product / (layer->norm * layer->exact) : NAN;
        layer->noise = n > 1 ? sqrt(fmax(0, (sums->distance - n * sums->off) / (n - 1))) : NAN;
    }
}

/* ---- a checkpoint ---- */

/* Of a file that is removed with the others; as it is shared, memory may be less. */
static int begin_apart(const struct bias *b, struct gradients *g, struct error *err)
{
    char path[PATH_MAX + 64];

    for (size_t i = 0; i < g->exact.n_entries; i++)
        g->apart_bytes += bias_gradient_of(&g->exact.entries[i]) ? g->exact.entries[i].n * sizeof *g->apart : 0;
    snprintf(path, sizeof path, "%s/apart", b->scratch);
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    int rc = -posix_fallocate(fd, 0, (off_t)g->apart_bytes); /* zeros, on a disk that has room */
    void *at = rc ? MAP_FAILED : mmap(NULL, g->apart_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!rc && at == MAP_FAILED)
        rc = -errno;
    close(fd);
    if (rc)
        return error_set(err, rc, "%s: %s", path, strerror(-rc));
    g->apart = at;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    remove(path);
    return 0;
}

/* In the run's directory, whose disk has had room for checkpoints. */
static int make_scratch(struct bias *b, const char *directory, struct error *err)
{
    if (snprintf(b->scratch, sizeof b->scratch, "%s/.bias-XXXXXX", directory) >= (int)sizeof b->scratch)
        return error_set(err, -ENAMETOOLONG, "%.200s: name too long", directory);
    if (mkdtemp(b->scratch))
        return 0;
    b->scratch[0] = 0;
    return error_set(err, -errno, "%s: %s", directory, strerror(errno));
}

/* The form of the draws: the one that is asked for, or the run's. */
static int choose_form(struct bias *b, struct error *err)
{
    const char *form = b->options->approximate ? b->options->approximate : b->record.options.approximate;
    struct client_approximation allowed;
    int rc = client_options_approximate(&allowed, form, err);

    if (rc)
        return rc;
    if (eps_approximate_is_any(form))
        return error_set(err, -EDOM, "--approximate any: a form is needed, as wta=0.3");
    if (b->options->draws > 1 && !client_approximation_draws(&allowed))
        return error_set(err, -EDOM, "--draws %" PRIu32 ": --approximate %.100s draws nothing: once is enough",
                         b->options->draws, form);
    if (snprintf(b->form, sizeof b->form, "%s", form) >= (int)sizeof b->form)
        return error_set(err, -EDOM, "--approximate: %zu characters are too many", strlen(form));
    return 0;
}

static int bias_check_options(const struct bias *b, struct error *err)
{
    const struct eps_train_options *o = &b->record.options;

    if (!b->options->approximate && !o->approximate)
        return error_set(err, -EINVAL,
                         "%s: its run has exact gradients (no --approximate), so there is no bias: name a form by "
                         "--approximate",
                         b->path);
    if (o->momentum == 0)
        return error_set(err, -EINVAL, "%s: its run keeps no momentum (--momentum 0), from which gradients are read",
                         b->path);
    if (!isnan(o->dpo_beta))
        return error_set(err, -EINVAL, "%s: its run learns preferences, beside weights that are not in its checkpoints",
                         b->path);
    for (size_t i = 0; i < o->n_data; i++)
        if (strcmp(o->data[i], CLIENT_DATA_INPUT) == 0)
            return error_set(err, -EINVAL, "%s: the data of its run came from standard input", b->path);
    return 0;
}

static int bias_read_checkpoint(struct bias *b, struct error *err)
{
    const int fd = open(b->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc =
        fd < 0 ? error_set(err, -errno, "%s: %s", b->path, strerror(errno)) : checkpoint_read(&b->checkpoint, fd, err);

    if (!rc)
        rc = client_record_read(&b->record, b->checkpoint.options, err);
    if (rc && fd >= 0)
        error_prefix(err, b->path);
    if (fd >= 0)
        close(fd);
    if (!rc)
        rc = bias_check_options(b, err);
    return rc ? rc : choose_form(b, err);
}

static void discard(const struct bias *b, const char *name)
{
    char path[PATH_MAX + 64];

    snprintf(path, sizeof path, "%s/of-%s", b->scratch, name);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    snprintf(path, sizeof path, "%s/%s", b->scratch, name);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Each draw is removed once it is compared, so that the disk holds one beside the exact gradient. */
static int add_draw(struct bias *b, const struct gradients *g, uint32_t number, struct error *err)
{
    struct safetensors draw = {0};
    char form[sizeof b->form + 32], name[32];
    int fd = -1;

    snprintf(form, sizeof form, number > 0 ? "%s,draw=%" PRIu32 : "%s", b->form, number);
    snprintf(name, sizeof name, "draw-%" PRIu32, number);
    int rc = make_gradient(b, &fd, name, form, err);
    if (!rc)
        rc = safetensors_open(&draw, fd, err);
    if (!rc)
        rc = bias_visit_all(b, g, &draw, g->apart ? add_distances : add_mean, err);
    safetensors_close(&draw);
    if (fd >= 0)
        close(fd);
    discard(b, name);
    return rc;
}

static int bias_measure(struct bias *b, struct error *err)
{
    struct gradients g = {.fd = -1};
    int rc = make_gradient(b, &g.fd, "exact", NULL, err);

    if (!rc)
        rc = safetensors_open(&g.exact, g.fd, err);
    if (!rc)
        rc = list_layers(b, &g.exact, err);
    if (!rc && b->options->draws > 1)
        rc = begin_apart(b, &g, err);
    for (uint32_t i = 0; !rc && i < b->options->draws; i++)
        rc = add_draw(b, &g, i, err);
    if (!rc && g.apart)
        rc = bias_visit_all(b, &g, NULL, add_mean, err);
    if (!rc)
        bias_finish(b);
    if (g.apart)
        munmap(g.apart, g.apart_bytes);
    safetensors_close(&g.exact);
    if (g.fd >= 0)
        close(g.fd);
    return rc;
}

/* Tells of the checkpoint at b->path; `directory` holds its runs. */
static int tell_checkpoint(struct bias *b, const char *directory, struct error *err)
{
    int rc = bias_read_checkpoint(b, err);

    if (!rc)
        rc = make_scratch(b, directory, err);
    if (!rc)
        rc = bias_measure(b, err);
    if (!rc && b->events && b->events->on_bias) {
        const struct eps_bias bias = {b->checkpoint.step, b->form, b->options->draws, b->layers, b->n_layers};
        b->events->on_bias(b->user, &bias);
    }
    if (b->scratch[0])
        nftw(b->scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    b->scratch[0] = 0;
    client_record_free(&b->record);
    checkpoint_free(&b->checkpoint);
    return rc;
}

static int tell_run(struct bias *b, const char *directory, struct error *err)
{
    struct client_checkpoints found = {0};
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? error_set(err, -errno, "%s: %s", directory, strerror(errno))
                    : client_checkpoints_list(&found, fd, err);

    if (!rc && found.n == 0)
        rc = error_set(err, -ENOENT, "%s holds no checkpoint: name a step-N, or the directory of a run", directory);
    for (size_t i = 0; !rc && i < found.n; i++) {
        if (snprintf(b->path, sizeof b->path, "%s/step-%" PRIu64, directory, found.steps[i]) >= (int)sizeof b->path)
            rc = error_set(err, -ENAMETOOLONG, "%.200s: name too long", directory);
        else
            rc = tell_checkpoint(b, directory, err);
    }
    client_checkpoints_free(&found);
    if (fd >= 0)
        close(fd);
    return rc;
}

int eps_bias(const struct eps_bias_options *options, const struct eps_bias_events *events, void *user,
             struct eps_error *error)
{
    struct bias b = {.options = options, .events = events, .user = user};
    char training[PATH_MAX];
    struct error err = {""};
    int rc;

    assert(options->run && options->draws > 0);
    if (snprintf(training, sizeof training, "%s/" CHECKPOINT_TRAINING, options->run) >= (int)sizeof training)
        rc = error_set(&err, -ENAMETOOLONG, "%.200s: name too long", options->run);
    else if (access(training, F_OK) == 0) {
        snprintf(b.path, sizeof b.path, "%s", options->run);
        snprintf(training, sizeof training, "%s/..", options->run);
        rc = tell_checkpoint(&b, training, &err);
    } else {
        rc = tell_run(&b, options->run, &err);
    }
    free(b.layers);
    free(b.sums);
    return client_report(error, &err, rc);
}
