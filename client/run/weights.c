/* A tensor gets room once, for as many pieces as its units have (divide). Each look fills it anew, and may take less:
 * rows that follow each other in memory are one piece, which depends on the buffers that their units are in. */
#include "client/run/weights.h"

#include "client/options/options.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int weights_describe(struct client_weights *w, const struct client_run *run, const struct client_job *job,
                            struct error *err)
{
    const struct eps_train_options options = client_run_job_options(run);
    const int rc = client_options_model(&w->model, &run->model.config, &options, err);

    if (rc)
        return rc;
    plan_own(&w->own, &w->model, job->goal.precision, 0, 0);
    w->second = calloc(w->model.n_units, sizeof *w->second);
    w->tensors = calloc(w->model.n_tensors, sizeof *w->tensors);
    w->pieces = calloc(w->model.n_pieces, sizeof *w->pieces);
    w->names = calloc(w->model.n_tensors, sizeof *w->names);
    return w->second && w->tensors && w->pieces && w->names ? 0 : error_memory(err);
}

/* Takes fd. A second descriptor stays for the program's own mappings: segment_attach takes the first. */
static int weights_map(struct client_weights *w, int fd, uint64_t bytes, struct error *err)
{
    w->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    int rc = w->fd < 0 ? error_set(err, -errno, "the daemon's weights: %s", strerror(errno)) : 0;

    if (rc) {
        close(fd);
        return rc;
    }
    rc = segment_attach(&w->segment, fd, (size_t)bytes, SEGMENT_READ, err);
    if (rc)
        close(w->fd);
    return rc;
}

/* A page of units, from `first` on. */
static int take_page(struct client_weights *w, uint32_t first, const struct message *m, int fd, uint64_t step,
                     struct error *err)
{
    const uint32_t n_units = w->model.n_units;
    uint64_t bytes = plan_weights_bytes(&w->own, 0);
    bool in_second = false;

    for (uint32_t i = 0; i < m->mapped.n && i < n_units - first; i++) {
        w->second[first + i] = m->mapped.second[i / 8] >> i % 8 & 1;
        in_second |= w->second[first + i];
    }
    bytes += in_second ? plan_replay_bytes(&w->own) : 0;
    if (fd < 0 || m->mapped.step != step || m->mapped.n_units != n_units || m->mapped.first != first ||
        m->mapped.n == 0 || m->mapped.n > n_units - first || m->mapped.weights_bytes < bytes ||
        (w->segment.base && m->mapped.weights_bytes != w->segment.bytes)) {
        if (fd >= 0)
            close(fd);
        return error_set(err, -EPROTO, "the daemon's weights after step %" PRIu64 " are not those of this run", step);
    }
    if (!w->segment.base)
        return weights_map(w, fd, m->mapped.weights_bytes, err);
    close(fd);
    return 0;
}

/* Asks where each unit is. */
static int run_weights_locate(struct client_weights *w, const struct client_job *job, uint64_t step, struct error *err)
{
    struct message m = {.kind = MESSAGE_MAPPED};
    int rc = 0, fd;

    for (uint32_t first = 0; !rc && first < w->model.n_units; first += m.mapped.n) {
        client_link_send(job->link, &(struct message){.kind = MESSAGE_MAP, .map.first = first});
        rc = client_link_expect(job->link, MESSAGE_MAPPED, &m, &fd, err);
        if (!rc)
            rc = take_page(w, first, &m, fd, step, err);
    }
    return rc;
}

/* Why a piece has no elements that could be pointed to; NULL: it has. */
static const char *coded(const struct model_piece *piece)
{
    if (piece->dense > 0)
        return "is sparse: a checkpoint has all of it";
    return piece->form == FORM_INT8  ? "is coded in int8, as base says: the base's own files have it"
           : piece->form == FORM_NF4 ? "is coded in nf4, as base says: the base's own files have it"
                                     : NULL;
}

/* Adds the rows of a piece to its tensor, behind those that it has. Rows that follow in memory become one piece. */
static void weights_add(struct client_weights *w, uint32_t unit, const struct model_piece *piece)
{
    const struct model_tensor *t = &w->model.tensors[piece->tensor];
    struct eps_tensor *tensor = &w->tensors[piece->tensor];
    struct eps_tensor_piece *pieces = &w->pieces[tensor->pieces - w->pieces];
    const uint64_t offset = plan_weights_at(&w->own, &w->model, unit, !t->frozen && w->second[unit]) +
                            model_piece_at(&w->model.units[unit], piece, w->own.precision);
    struct eps_tensor_piece *last = tensor->n_pieces > 0 ? &pieces[tensor->n_pieces - 1] : NULL;
    const uint64_t row_bytes = t->shape[1] * (tensor->type == EPS_FP32 ? 4 : 2);

    if (last && last->offset + last->n_rows * row_bytes == offset) {
        last->n_rows += piece->n_rows;
        return;
    }
    pieces[tensor->n_pieces++] = (struct eps_tensor_piece){.at = (const char *)w->segment.base + offset,
                                                           .offset = offset,
                                                           .first_row = piece->first_row,
                                                           .n_rows = piece->n_rows};
}

/* Filters lie in memory as [out][row][column][channel], and the shape is that of files, which have channels second: the
 * strides tell. */
static void weights_name(struct client_weights *w, uint32_t i)
{
    static const enum eps_number types[NUMBER_TYPES] = {EPS_FP32, EPS_BF16, EPS_FP16};
    const struct model_tensor *t = &w->model.tensors[i];
    struct eps_tensor *tensor = &w->tensors[i];
    uint64_t stride = 1;

    *tensor = (struct eps_tensor){.pieces = tensor->pieces, .type = types[w->own.precision], .frozen = t->frozen};
    tensor->name = t->saved ? checkpoint_tensor_name(w->names[i], &w->model, t) : t->name;
    tensor->n_dims = model_file_shape(tensor->shape, t);
    for (uint32_t d = tensor->n_dims; d-- > 0; stride *= tensor->shape[d])
        tensor->strides[d] = stride;
    if (t->over_tokens) {
        tensor->strides[0] = 1, tensor->strides[2] = tensor->shape[0];
    } else if (model_is_filter(t)) {
        const uint64_t n_channels = tensor->shape[1];
        tensor->strides[1] = 1, tensor->strides[2] = t->width * n_channels, tensor->strides[3] = n_channels;
    }
}

/* Gives each tensor room for its pieces. */
static void weights_divide(struct client_weights *w)
{
    struct eps_tensor_piece *next = w->pieces;

    for (uint32_t p = 0; p < w->model.n_pieces; p++)
        w->tensors[w->model.pieces[p].tensor].n_pieces++;
    for (uint32_t t = 0; t < w->model.n_tensors; t++) {
        w->tensors[t].pieces = next;
        next += w->tensors[t].n_pieces;
    }
}

static void weights_list(struct client_weights *w)
{
    for (uint32_t t = 0; t < w->model.n_tensors; t++)
        weights_name(w, t);
    for (uint32_t u = 0; u < w->model.n_units; u++)
        for (uint32_t i = 0; i < w->model.units[u].n_pieces; i++) {
            const struct model_piece *piece = &w->model.pieces[w->model.units[u].first_piece + i];
            struct eps_tensor *tensor = &w->tensors[piece->tensor];
            tensor->type = piece->form == FORM_BF16 ? EPS_BF16 : piece->form == FORM_FP32 ? EPS_FP32 : tensor->type;
            tensor->why = coded(piece);
            if (!tensor->why)
                weights_add(w, u, piece);
        }
}

int client_weights_show(struct client_weights *w, const struct client_run *run, const struct client_job *job,
                        uint64_t step, struct error *err)
{
    const struct eps_train_options *o = &run->options;
    int rc = 0;

    if (!w->segment.base) {
        rc = weights_describe(w, run, job, err);
        if (!rc)
            weights_divide(w);
    }
    if (!rc)
        rc = run_weights_locate(w, job, step, err);
    if (rc)
        return rc;
    weights_list(w);
    const struct eps_weights weights = {
        .step = step, .n_tensors = w->model.n_tensors, .tensors = w->tensors, .fd = w->fd, .bytes = w->segment.bytes};
    o->on_weights(o->weights_user, &weights);
    return 0;
}

void client_weights_free(struct client_weights *w)
{
    if (w->segment.base)
        close(w->fd);
    segment_close(&w->segment);
    model_free(&w->model);
    free(w->second);
    free(w->tensors);
    free(w->pieces);
    free(w->names);
    *w = (struct client_weights){0};
}
