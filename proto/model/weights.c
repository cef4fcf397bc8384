/* A name is looked up in every spelling that files may have, and each tensor that is found is marked as taken, also
 * when another one is used. So what is left over is foreign to the model, and what was found twice is ambiguous. All
 * faults are counted before a sentence is made: with the wrong config.json hundreds of tensors differ, and the first
 * of each kind says more than the first of all. */
#include "proto/model/weights.h"

#include "proto/base/text.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/coded.h"
#include "proto/model/family.h"
#include "proto/model/joined.h"
#include "proto/model/model_internal.h"
#include "proto/model/outside.h"
#include "proto/model/wrapper.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What may be wrong with a tensor, in the order of the sentence. */
enum fault { MISSHAPEN, UNEXPECTED, MISSING, DOUBLED, MISTYPED, N_FAULTS };

/* Faults of one kind: the first as words, "wpe.weight is 4 x 8, the model's is 5 x 8"; and how many there are. */
struct tally {
    char first[N_FAULTS][200];
    uint64_t n[N_FAULTS];
};

static void weights_note(struct tally *tally, enum fault fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void weights_note(struct tally *tally, enum fault fault, const char *format, ...)
{
    va_list arguments;

    if (tally->n[fault]++ > 0)
        return;
    va_start(arguments, format);
    vsnprintf(tally->first[fault], sizeof tally->first[fault], format, arguments);
    va_end(arguments);
}

const char *weights_shape(char out[WEIGHTS_SHAPE_BYTES], const uint64_t *shape, uint32_t n_dims)
{
    int n = 0;

    snprintf(out, WEIGHTS_SHAPE_BYTES, "a single number");
    for (uint32_t i = 0; i < n_dims && n < WEIGHTS_SHAPE_BYTES - 24; i++)
        n += snprintf(out + n, WEIGHTS_SHAPE_BYTES - (size_t)n, "%s%" PRIu64, i ? " x " : "", shape[i]);
    return out;
}

/* Shapes are those of files, which have a filter's taps as dimensions of their own. */
bool weights_has_shape(const struct safetensors_entry *entry, const struct model_tensor *tensor)
{
    uint64_t shape[4];
    const uint32_t n_dims = model_file_shape(shape, tensor);

    if (entry->n_dims != n_dims)
        return false;
    for (uint32_t i = 0; i < n_dims; i++)
        if (entry->shape[i] != shape[i])
            return false;
    return true;
}

/* Without quantization_config no scales are looked for; with it they were, and there are none. */
static void weights_note_type(struct tally *tally, const struct safetensors_entry *entry, const struct model *model)
{
    if (strcmp(entry->dtype, "F8_E4M3") != 0)
        weights_note(tally, MISTYPED, "%.64s is of type %s, not F32, F16 or BF16", entry->name, entry->dtype);
    else if (model->config.quantized.fp8)
        weights_note(tally, MISSING, "%.64s_scale_inv is missing", entry->name);
    else
        weights_note(tally, MISTYPED,
                     "%.64s is of type F8_E4M3, and config.json has no quantization_config with quant_method fp8",
                     entry->name);
}

static void check_entry(struct tally *tally, const struct safetensors_entry *entry, const struct model *model,
                        const struct model_tensor *tensor)
{
    char got[WEIGHTS_SHAPE_BYTES], want[WEIGHTS_SHAPE_BYTES];
    uint64_t shape[4];
    const uint32_t n_dims = model_file_shape(shape, tensor);

    if (!weights_has_shape(entry, tensor))
        weights_note(tally, MISSHAPEN, "%.64s is %s, the model's is %s", entry->name,
                     weights_shape(got, entry->shape, entry->n_dims), weights_shape(want, shape, n_dims));
    else if (!safetensors_is_real(entry))
        weights_note_type(tally, entry, model);
}

/* A name in the files, and what has been found of it. */
struct search {
    const struct weights *weights;
    const struct safetensors_entry *found;
    unsigned n_found;
};

/* Every hit counts, so that a name that is there twice is noticed, be it in two files or in two spellings. */
static void search_name(struct search *search, const char *name)
{
    for (unsigned i = 0; i < search->weights->n_files; i++) {
        struct safetensors_entry *entry = safetensors_find(&search->weights->files[i], name);
        if (!entry)
            continue;
        entry->taken = true;
        search->found = search->found ? search->found : entry;
        search->n_found++;
    }
}

/* Finds a name within a wrapper, whose prefix precedes it. */
static void search_inside(struct search *search, const char *name)
{
    const char *wrapper = search->weights->wrapper;
    char inside[128];

    snprintf(inside, sizeof inside, "%s%s", wrapper ? wrapper : "", name);
    search_name(search, inside);
}

/* Finds a tensor under this name, or without the family's prefix. A head may be beside the text model in its
 * wrapper. Some files have the text model's tensors with its prefix, some without. */
static void search_both(struct search *search, const char *name, const char *prefix)
{
    const size_t n = strlen(prefix);
    const bool has_prefix = n > 0 && strncmp(name, prefix, n) == 0;

    search_inside(search, name);
    if (has_prefix)
        search_inside(search, name + n);
    else if (search->weights->wrapper)
        search_name(search, name);
}

/* A name in the files without the wrapper's prefix. */
static const char *unwrapped(const struct weights *weights, const char *name)
{
    const size_t n = weights->wrapper ? strlen(weights->wrapper) : 0;

    return n > 0 && strncmp(name, weights->wrapper, n) == 0 ? name + n : name;
}

/* The first name that tells: files of a model with a vision tower have the text model within one prefix. */
static void find_wrapper(struct weights *weights)
{
    for (unsigned i = 0; i < weights->n_files; i++)
        for (size_t k = 0; k < weights->files[i].n_entries && !weights->wrapper; k++)
            weights->wrapper = wrapper_prefix(weights->files[i].entries[k].name);
}

/* True if the files have the family's prefix before the model's names. */
static bool is_prefixed(const struct weights *weights, const struct model *model)
{
    const char *prefix = model->config.family->prefix;
    bool any = false;

    for (uint32_t t = 0; !any && *prefix && t < model->n_tensors; t++)
        any = weights->entries[t] && strncmp(weights->entries[t]->name, prefix, strlen(prefix)) == 0;
    return any;
}

/* True for an adapter's own file: all that it has is of the adapter. */
static bool is_adapters(const struct safetensors *file)
{
    for (size_t k = 0; k < file->n_entries; k++)
        if (strncmp(file->entries[k].name, ADAPTER_PREFIX, strlen(ADAPTER_PREFIX)) == 0)
            return true;
    return false;
}

/* Finds a tensor whose codes are MXFP4's, under its own name or its module's. */
static void search_blocks(struct search *search, const char *name, const char *prefix)
{
    static const char weight[] = ".weight";
    char blocks[96];

    snprintf(blocks, sizeof blocks, "%s_blocks", name);
    search_both(search, blocks, prefix);
    if (!text_ends_with(name, weight))
        return;
    snprintf(blocks, sizeof blocks, "%.*s_blocks", (int)(strlen(name) - strlen(weight)), name);
    search_both(search, blocks, prefix);
}

/* Finds a tensor under its name, or under the one that old files give it. NULL: there is none. */
static const struct safetensors_entry *weights_take(struct search *search, struct tally *tally, const char *name,
                                                    const struct family *family)
{
    char old[64];

    search->found = NULL, search->n_found = 0;
    search_both(search, name, family->prefix);
    if (family->old_name && family->old_name(old, sizeof old, name))
        search_both(search, old, family->prefix);
    if (!search->found)
        search_blocks(search, name, family->prefix);
    if (search->n_found > 1)
        weights_note(tally, DOUBLED, "%.64s is there twice", name);
    return search->found;
}

/* Notes if what joins a tensor with others is not what it must be. */
static void check_joined(struct tally *tally, const struct safetensors_entry *entry, const struct joined *joined,
                         const struct model_tensor *tensor)
{
    char got[WEIGHTS_SHAPE_BYTES], want[WEIGHTS_SHAPE_BYTES];
    uint64_t shape[3];

    joined_shape(shape, joined, tensor);
    if (entry->coded)
        weights_note(tally, MISTYPED, "%.64s is quantised, not F32, F16 or BF16", entry->name);
    else if (entry->n_dims != 3 || memcmp(entry->shape, shape, sizeof shape) != 0)
        weights_note(tally, MISSHAPEN, "%.64s is %s, the model's is %s", entry->name,
                     weights_shape(got, entry->shape, entry->n_dims), weights_shape(want, shape, 3));
}

/* Finds a tensor among others that the files have joined: its rows there are an entry of their own. */
static const struct safetensors_entry *take_joined(struct weights *out, struct search *search, struct tally *tally,
                                                   const struct model *model, const struct model_tensor *tensor)
{
    struct joined joined;

    if (!joined_find(&joined, model, tensor))
        return NULL;
    search->found = NULL, search->n_found = 0;
    search_both(search, joined.name, model->config.family->prefix);
    if (!search->found)
        return NULL;
    if (search->n_found > 1)
        weights_note(tally, DOUBLED, "%.64s is there twice", joined.name);
    check_joined(tally, search->found, &joined, tensor);
    struct safetensors_entry *part = &out->parts[out->n_parts++];
    *part = *search->found;
    part->coded = NULL;
    part->n_dims = 2, part->shape[0] = tensor->shape[0], part->shape[1] = tensor->shape[1];
    part->n = tensor->n;
    part->offset += joined_first(&joined, tensor) * (part->type == SAFETENSORS_F32 ? sizeof(float) : sizeof(uint16_t));
    return part;
}

/* Finds a tensor that adapter_model.safetensors may have, by its name there. The base's, if it has one, is then not
 * asked for. If the adapter has the tensor, faults of the base's are nobody's concern. */
static const struct safetensors_entry *take_adapted(struct search *search, struct tally *tally,
                                                    const struct model_tensor *tensor, const struct model *model)
{
    const struct family *family = model->config.family;
    char name[CHECKPOINT_TENSOR_BYTES];
    struct tally ignored = {0};

    checkpoint_tensor_name(name, model, tensor);
    search->found = NULL, search->n_found = 0;
    search_name(search, name);
    if (*model->config.adapter.within) { /* trained beside the text model alone */
        snprintf(name, sizeof name, "%s%s", ADAPTER_PREFIX, tensor->name);
        search_name(search, name);
    }
    const struct safetensors_entry *const found = search->found;
    if (search->n_found > 1)
        weights_note(tally, DOUBLED, "%.64s is there twice", name);
    const struct safetensors_entry *const in_base =
        tensor->adapts ? NULL : weights_take(search, found ? &ignored : tally, tensor->name, family);
    return found ? found : in_base;
}

/* Finds a tied model's copy of its head. A table that is there under the head's name alone is taken from there. */
static void take_head(struct weights *out, const struct model *model, struct search *search, struct tally *tally)
{
    const uint32_t table = model->embedding.tables[0].tensor;
    const struct safetensors_entry **head = &out->copies[WEIGHTS_HEAD];

    for (unsigned i = 0; i < out->n_files; i++)
        for (size_t k = 0; k < out->files[i].n_entries; k++) {
            const struct safetensors_entry *entry = &out->files[i].entries[k];
            const char *name = unwrapped(out, entry->name);
            if (!entry->taken && model_is_tied_copy(model, name))
                *head = weights_take(search, tally, name, model->config.family);
        }
    if (*head && !out->entries[table]) {
        out->entries[table] = *head;
        *head = NULL;
    }
}

/* The head of a model that its adapter unties: the base's table of tokens, whatever else the base calls its head, which
 * transformers ties when it reads it. */
static void take_untied(struct weights *out, const struct model *model, struct search *search)
{
    const struct model_tensor *table = &model->tensors[model->embedding.tables[0].tensor], *head;
    struct tally ignored = {0};
    char name[64];

    snprintf(name, sizeof name, "%s.weight", model->config.family->logits);
    head = model_find(model, name);
    if (head && !head->saved)
        out->entries[head - model->tensors] = weights_take(search, &ignored, table->name, model->config.family);
}

static void take_copies(struct weights *out, const struct model *model, struct search *search, struct tally *tally)
{
    const struct family *family = model->config.family;

    take_head(out, model, search, tally);
    for (unsigned i = 0; family->copies && family->copies[i]; i++) {
        assert(i < WEIGHTS_STACKS);
        out->copies[WEIGHTS_HEAD + 1 + i] = weights_take(search, tally, family->copies[i], family);
    }
    for (unsigned i = 0; i < WEIGHTS_COPIES; i++)
        if (out->copies[i])
            check_entry(tally, out->copies[i], model, &model->tensors[model->embedding.tables[0].tensor]);
}

/* The bias of a head's logits may be in the files under the head's name, too, or under that alone: transformers
 * computes with that one. */
static void take_bias(struct weights *out, const struct model *model, struct search *search, struct tally *tally)
{
    const struct family *family = model->config.family;
    char name[64];

    if (!model->logit_bias || model->config.n_labels)
        return;
    snprintf(name, sizeof name, "%s.bias", family->logits);
    const struct safetensors_entry *bias = weights_take(search, tally, name, family);
    if (bias)
        out->entries[model->logit_bias - model->tensors] = bias;
}

/* True if an adapter's file has the tensor, whatever the base has. */
static bool is_adapted(const struct model *model, const struct model_tensor *tensor)
{
    return model->config.adapter.rank > 0 && tensor->saved;
}

/* What files may lack when training begins. */
struct drawn {
    uint32_t first; /* tensors from this one on */
    bool adapters;  /* all tensors of adapters, or none */
};

/* True if the files have a tensor of an adapter. */
static bool has_adapters(const struct weights *weights, const struct model *model)
{
    bool any = false;

    for (uint32_t t = 0; t < model->n_tensors; t++)
        any |= model->tensors[t].adapts && weights->entries[t];
    return any;
}

/* An adapter may hold a table of tokens and a head that PEFT loads in the base's place (save_embedding_layers). */
static void note_unexpected(struct tally *tally, const struct model *model, const char *name)
{
    const size_t n = strlen(ADAPTER_PREFIX);
    const bool adapts = model->config.adapter.rank > 0 && strncmp(name, ADAPTER_PREFIX, n) == 0;

    if (adapts && (model_find(model, name + n) || model_is_tied_copy(model, name + n)))
        weights_note(tally, UNEXPECTED, "%.64s replaces the base's, which is read of modules_to_save alone", name);
    else
        weights_note(tally, UNEXPECTED, "%.64s is not a tensor of this model", name);
}

/* Judges what nobody took. Where something is missing, the files may be another model's, and nothing is outside. */
static void weights_judge(struct weights *weights, const struct model *model, struct safetensors *file,
                          struct tally *tally)
{
    const struct outside_names names = {weights->wrapper, is_prefixed(weights, model)};
    const struct family *family = model->config.family;
    const bool passes = !is_adapters(file) && (weights->wrapper || tally->n[MISSING] == 0);

    for (size_t k = 0; k < file->n_entries; k++) {
        struct safetensors_entry *entry = &file->entries[k];
        const char *inside = unwrapped(weights, entry->name);
        if (entry->taken)
            continue;
        if (model_is_mask(model, inside))
            entry->passed = model->config.n_labels == 0 && family->is_other &&
                            family->is_other(model_without_prefix(model, inside));
        else if (passes && outside_has(model, &names, entry->name))
            entry->passed = true;
        else
            note_unexpected(tally, model, entry->name);
    }
}

/* Order matters: what has a name of its own is taken first. Copies look at what is left, and what nobody took at the
 * end is foreign. */
static void weights_match(struct weights *out, const struct model *model, struct drawn drawn, struct tally *tally)
{
    struct search search = {.weights = out};

    find_wrapper(out);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        out->entries[t] = is_adapted(model, &model->tensors[t])
                              ? take_adapted(&search, tally, &model->tensors[t], model)
                              : weights_take(&search, tally, model->tensors[t].name, model->config.family);
        if (!out->entries[t])
            out->entries[t] = take_joined(out, &search, tally, model, &model->tensors[t]);
    }
    if (model->config.adapter.unties)
        take_untied(out, model, &search);
    take_copies(out, model, &search, tally);
    take_bias(out, model, &search, tally);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        if (out->entries[t] && out->entries[t]->coded && model_is_in_out(model, model->tensors[t].name))
            weights_note(tally, MISTYPED, "%.64s is quantised and transposed, not F32, F16 or BF16",
                         out->entries[t]->name);
        else if (out->entries[t])
            check_entry(tally, out->entries[t], model, &model->tensors[t]);
        else if (model->tensors[t].adapts ? !drawn.adapters || has_adapters(out, model) : t < drawn.first)
            weights_note(tally, MISSING, "%.64s is missing", model->tensors[t].name);
    }
    for (unsigned i = 0; i < out->n_files; i++)
        weights_judge(out, model, &out->files[i], tally);
}

/* One sentence: each kind of fault by its first tensor and the number of others, and a remedy for the first kind.
 * The order of faults is that of likelihood: a wrong shape says more than what is missing because of it. */
static int weights_report(const struct tally *tally, struct error *err)
{
    static const char *const others[] = {"of another shape", "unexpected", "missing", "doubled", "of another type"};
    static const char *const remedies[] = {"check that config.json belongs to these weights",
                                           "check that config.json belongs to these weights",
                                           "check that all files of these weights are there", "remove one of the two",
                                           "save it in one of these"};
    char text[ERROR_TEXT_BYTES] = "";
    const char *remedy = NULL;
    size_t n = 0;

    for (int fault = 0; fault < N_FAULTS; fault++) {
        if (tally->n[fault] == 0 || n >= sizeof text)
            continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", remedy ? "; " : "", tally->first[fault]);
        if (tally->n[fault] > 1 && n < sizeof text)
            n += (size_t)snprintf(text + n, sizeof text - n, " (%" PRIu64 " other%s %s)", tally->n[fault] - 1,
                                  tally->n[fault] > 2 ? "s are" : " is", others[fault]);
        remedy = remedy ? remedy : remedies[fault];
    }
    return remedy ? error_set(err, -EINVAL, "%s: %s", text, remedy) : 0;
}

/* An upper bound, for memory that is planned before a file is opened: twice each tensor's name and description, and as
 * much again as metadata usually takes. */
uint64_t weights_header_bytes(const struct model *model)
{
    enum { OTHERS = 2 << 20, BESIDE_NAME = 200 }; /* {"dtype":"BF16","shape":[...],"data_offsets":[...]} */
    uint64_t bytes = OTHERS;

    for (uint32_t t = 0; t < model->n_tensors; t++)
        bytes += 2 * (strlen(model->tensors[t].name) + BESIDE_NAME);
    return bytes;
}

uint64_t weights_memory(const struct model *model, uint32_t n_files, uint64_t header_bytes)
{
    return reserve_rounded(n_files * sizeof(struct safetensors)) +
           reserve_rounded(model->n_tensors * sizeof(struct safetensors_entry *)) +
           reserve_rounded(joined_count(model) * sizeof(struct safetensors_entry)) + safetensors_memory(header_bytes);
}

static int weights_read_headers(struct weights *out, const struct model *model, const struct file *files,
                                unsigned n_files, struct reserve *reserve, struct error *err)
{
    int rc = 0;

    out->files = reserve_take(reserve, n_files * sizeof *out->files);
    out->entries = reserve_take(reserve, model->n_tensors * sizeof *out->entries);
    out->parts = reserve_take(reserve, joined_count(model) * sizeof *out->parts);
    if (!out->files || !out->entries || !out->parts)
        rc = error_set(err, -ENOMEM, "no memory for a list of %u tensors", model->n_tensors);
    for (; rc == 0 && out->n_files < n_files; out->n_files += rc == 0)
        rc = safetensors_open_within(&out->files[out->n_files], &files[out->n_files], reserve, err);
    return rc ? rc : coded_find(out->files, n_files, &model->config.quantized, err);
}

static int weights_check_constants(const struct weights *weights, const struct model *model, struct error *err)
{
    int rc = 0;

    for (unsigned i = 0; i < weights->n_files; i++)
        for (size_t k = 0; k < weights->files[i].n_entries && rc == 0; k++) {
            const struct safetensors_entry *entry = &weights->files[i].entries[k];
            float value, want;
            if (entry->taken || !model_is_constant(&want, model, unwrapped(weights, entry->name)))
                continue;
            if (entry->n != 1 || !safetensors_is_real(entry)) {
                rc = error_set(err, -EINVAL, "%.64s is not one number in F32, F16 or BF16", entry->name);
                continue;
            }
            rc = safetensors_read(&value, entry, 0, 1, err);
            if (rc == 0 && !(fabsf(value - want) <= fabsf(want) * 0x1p-8f))
                rc = error_set(err, -EINVAL, "%.64s is %g: this is not supported, it must be %g", entry->name,
                               (double)value, (double)want);
        }
    return rc;
}

/* All memory is one block, of the caller's reserve or of its own: out->memory frees the latter. */
static int weights_open_files(struct weights *out, const struct model *model, const struct file *files,
                              unsigned n_files, struct drawn drawn, struct reserve *reserve, struct error *err)
{
    struct reserve own = {0};
    struct tally tally = {0};

    *out = (struct weights){0};
    if (!reserve) {
        own.bytes = weights_memory(model, n_files, weights_header_bytes(model));
        own.memory = out->memory = malloc(own.bytes);
        reserve = &own;
    }
    int rc = weights_read_headers(out, model, files, n_files, reserve, err);
    if (rc == 0) {
        weights_match(out, model, drawn, &tally);
        rc = weights_report(&tally, err);
    }
    if (rc == 0)
        rc = weights_check_constants(out, model, err);
    if (rc != 0)
        weights_close(out);
    return rc;
}

int weights_open(struct weights *out, const struct model *model, const struct file *files, unsigned n_files,
                 struct reserve *reserve, struct error *err)
{
    return weights_open_files(out, model, files, n_files, (struct drawn){model->n_tensors, false}, reserve, err);
}

int weights_open_base(struct weights *out, const struct model *model, const struct file *files, unsigned n_files,
                      struct reserve *reserve, struct error *err)
{
    const uint32_t first = model->config.n_labels ? model_first_above_blocks(model) : model->n_tensors;

    return weights_open_files(out, model, files, n_files, (struct drawn){first, true}, reserve, err);
}

uint32_t weights_missing(char out[WEIGHTS_MISSING_BYTES], const struct weights *weights, const struct model *model)
{
    uint32_t n_missing = 0;
    size_t n = 0;

    out[0] = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        if (weights->entries[t] || model->tensors[t].adapts)
            continue;
        if (n < WEIGHTS_MISSING_BYTES)
            n += (size_t)snprintf(out + n, WEIGHTS_MISSING_BYTES - n, "%s%s", n_missing ? ", " : "",
                                  model->tensors[t].name);
        n_missing++;
    }
    return n_missing;
}

void weights_close(struct weights *weights)
{
    free(weights->memory);
    *weights = (struct weights){0};
}

/* The form in which the whole base can stay as it is in the files; FORM_VALUES where tensors differ. */
enum form weights_form(const struct weights *weights, const struct model *model)
{
    enum form form = FORM_VALUES;
    bool any = false;

    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const struct safetensors_entry *entry = weights->entries[t];
        if (!entry || is_adapted(model, &model->tensors[t]) || model->tensors[t].fixed)
            continue;
        const bool matrix = model_is_matrix(model, t);
        const enum form its = entry->coded                      ? coded_form(entry->coded)
                              : entry->type == SAFETENSORS_BF16 ? FORM_BF16
                                                                : FORM_VALUES;
        if (matrix && form == FORM_VALUES)
            form = its;
        if (its == FORM_VALUES || its != (matrix ? form : FORM_BF16))
            return FORM_VALUES;
        any |= entry->coded != NULL;
    }
    return any ? form : FORM_VALUES;
}

/* Of mixed files fp32, which loses nothing. */
enum safetensors_type weights_type(const struct weights *weights, const struct model *model)
{
    const enum safetensors_type type = weights->entries[0]->type;

    for (uint32_t t = 1; t < model->n_tensors; t++)
        if (weights->entries[t] && !weights->entries[t]->coded && weights->entries[t]->type != type &&
            !is_adapted(model, &model->tensors[t]) && !model->tensors[t].fixed)
            return SAFETENSORS_F32;
    return type;
}
