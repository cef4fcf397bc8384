/* The messages are written by hand, as they have a dozen fields in all. Lengths come before contents, so each is made
 * whole before the one around it; MOST_BYTES bounds them (asserted), as texts are cut. A record that was cut short
 * hides all behind it: after an error the caller writes no more. */
#include "client/record/tensorboard.h"

#include "client/text/utf8.h"
#include "proto/base/path.h"
#include "proto/base/process.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BYTES = 16 << 10, MOST_TAG = 64, MOST_TEXT = 12 << 10 };

/* Bytes of an event, or of a record. */
struct bytes {
    uint8_t at[MOST_BYTES];
    size_t n;
};

/* CRC-32C (Castagnoli), bit by bit: an event is short. */
static uint32_t checksum(const uint8_t *at, size_t n)
{
    const uint32_t polynomial = 0x82f63b78, mask = 0xa282ead8;
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + mask;
}

static void tensorboard_put(struct bytes *to, const void *at, size_t n)
{
    assert(to->n + n <= sizeof to->at);
    memcpy(to->at + to->n, at, n);
    to->n += n;
}

static void put_word(struct bytes *to, uint64_t value, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        const uint8_t byte = (uint8_t)(value >> 8 * i);
        tensorboard_put(to, &byte, 1);
    }
}

static void put_varint(struct bytes *to, uint64_t value)
{
    do {
        const uint8_t byte = (uint8_t)((value & 127) | (value > 127 ? 128 : 0));
        tensorboard_put(to, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

/* Numbers of fields, and how a field is written. */
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };
enum { VALUE_TENSOR = 8, VALUE_METADATA = 9, METADATA_PLUGIN = 1, PLUGIN_NAME = 1 };
enum { TENSOR_TYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRING = 8, TYPE_STRING = 7, SHAPE_DIMENSION = 2, DIMENSION_SIZE = 1 };
enum { AS_VARINT = 0, AS_64_BITS = 1, AS_BYTES = 2, AS_32_BITS = 5 };

static void put_key(struct bytes *to, unsigned field, unsigned as)
{
    put_varint(to, field << 3 | as);
}

static void put_bytes(struct bytes *to, unsigned field, const void *at, size_t n)
{
    put_key(to, field, AS_BYTES);
    put_varint(to, n);
    tensorboard_put(to, at, n);
}

static void begin_event(struct bytes *event, uint64_t step)
{
    struct timespec t;
    uint64_t bits;

    clock_gettime(CLOCK_REALTIME, &t);
    const double now = (double)t.tv_sec + (double)t.tv_nsec / 1e9;
    memcpy(&bits, &now, sizeof bits);
    event->n = 0;
    put_key(event, EVENT_TIME, AS_64_BITS);
    put_word(event, bits, sizeof bits);
    put_key(event, EVENT_STEP, AS_VARINT);
    put_varint(event, step);
}

static int write_event(int fd, const struct bytes *event)
{
    struct bytes record = {.n = 0};

    put_word(&record, event->n, sizeof(uint64_t));
    put_word(&record, checksum(record.at, record.n), sizeof(uint32_t));
    tensorboard_put(&record, event->at, event->n);
    put_word(&record, checksum(event->at, event->n), sizeof(uint32_t));
    for (size_t done = 0; done < record.n;) {
        const ssize_t n = write(fd, record.at + done, record.n - done);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* A session that starts at a step has TensorBoard forget that step, and later ones, of earlier files. */
static int tensorboard_begin(int fd, uint64_t step)
{
    static const char version[] = "brain.Event:2";
    static const uint8_t start[] = {SESSION_STATUS << 3 | AS_VARINT, SESSION_START};
    struct bytes event;

    begin_event(&event, 0);
    put_bytes(&event, EVENT_VERSION, version, sizeof version - 1);
    const int rc = write_event(fd, &event);
    if (rc || step == 0)
        return rc;
    begin_event(&event, step + 1);
    put_bytes(&event, EVENT_SESSION, start, sizeof start);
    return write_event(fd, &event);
}

/* Seconds for a new file's name: now, but later than those of the files that are there, as TensorBoard reads them by
 * name. */
static long long stamp_of(const char *directory)
{
    long long stamp = (long long)time(NULL), other;
    DIR *files = opendir(directory);

    for (const struct dirent *file; files && (file = readdir(files));)
        if (sscanf(file->d_name, "events.out.tfevents.%10lld.", &other) == 1 && other >= stamp)
            stamp = other + 1;
    if (files)
        closedir(files);
    return stamp;
}

int client_tensorboard_open(struct client_tensorboard *out, const char *directory, uint64_t step, struct error *err)
{
    char name[PATH_MAX], host[64];
    int rc = 0;

    out->fd = -1;
    process_host_name(host, sizeof host);
    const int n = snprintf(name, sizeof name, "%s/events.out.tfevents.%010lld.%s.%d.0", directory, stamp_of(directory),
                           host, (int)getpid());
    if (n < 0 || (size_t)n >= sizeof name)
        rc = -ENAMETOOLONG;
    if (!rc)
        rc = path_make_parents(name);
    if (!rc && (out->fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666)) < 0)
        rc = -errno;
    if (!rc)
        rc = tensorboard_begin(out->fd, step);
    if (!rc)
        return 0;
    client_tensorboard_close(out);
    return error_set(err, rc, "--tensorboard %.200s: %s", directory, strerror(-rc));
}

/* A value that is not finite has no point. */
static void tensorboard_add(struct bytes *summary, const char *group, const char *name, double value)
{
    const float simple = (float)value;
    struct bytes one = {.n = 0};
    char tag[MOST_TAG];
    uint32_t bits;

    if (!isfinite(value))
        return;
    snprintf(tag, sizeof tag, "%s%s", group, name);
    memcpy(&bits, &simple, sizeof bits);
    put_bytes(&one, VALUE_TAG, tag, strlen(tag));
    put_key(&one, VALUE_SIMPLE, AS_32_BITS);
    put_word(&one, bits, sizeof bits);
    put_bytes(summary, SUMMARY_VALUE, one.at, one.n);
}

/* Rewards have no group: their names are TRL's, which has one in them. */
int client_tensorboard_write(const struct client_tensorboard *events, const struct eps_step *step)
{
    struct bytes event, summary = {.n = 0};

    tensorboard_add(&summary, "train/", "loss", step->loss);
    tensorboard_add(&summary, "train/", "lr", step->lr);
    tensorboard_add(&summary, "train/", "grad_norm", step->grad_norm);
    tensorboard_add(&summary, "train/", "loss_scale", step->loss_scale > 0 ? step->loss_scale : NAN);
    tensorboard_add(&summary, "speed/", step->pixels ? "images_per_s" : "tokens_per_s",
                    step->tokens_per_s / (step->pixels ? step->pixels : 1));
    tensorboard_add(&summary, "speed/", "step_ms", step->step_ms);
    tensorboard_add(&summary, "memory/", "device_peak_bytes", (double)step->device_peak_bytes);
    tensorboard_add(&summary, "memory/", "host_bytes", (double)step->host_bytes);
    tensorboard_add(&summary, "eval/", "loss_before", step->eval_before);
    tensorboard_add(&summary, "eval/", "loss", step->eval_loss);
    for (size_t i = 0; i < step->n_scores; i++)
        tensorboard_add(&summary, "eval/", step->scores[i].name, step->scores[i].value);
    for (size_t i = 0; i < step->n_rewards; i++)
        tensorboard_add(&summary, "", step->rewards[i].name, step->rewards[i].value);
    begin_event(&event, step->step);
    put_bytes(&event, EVENT_SUMMARY, summary.at, summary.n);
    return write_event(events->fd, &event);
}

/* A string as TensorFlow has it: a tensor of one, of the plugin "text". */
static void tensorboard_put_text(struct bytes *value, const char *text, size_t n)
{
    static const char plugin[] = "text";
    static const uint8_t shape[] = {SHAPE_DIMENSION << 3 | AS_BYTES, 2, DIMENSION_SIZE << 3 | AS_VARINT, 1};
    struct bytes name = {.n = 0}, metadata = {.n = 0}, tensor = {.n = 0};

    put_bytes(&name, PLUGIN_NAME, plugin, sizeof plugin - 1);
    put_bytes(&metadata, METADATA_PLUGIN, name.at, name.n);
    put_bytes(value, VALUE_METADATA, metadata.at, metadata.n);
    put_key(&tensor, TENSOR_TYPE, AS_VARINT);
    put_varint(&tensor, TYPE_STRING);
    put_bytes(&tensor, TENSOR_SHAPE, shape, sizeof shape);
    put_bytes(&tensor, TENSOR_STRING, text, n);
    put_bytes(value, VALUE_TENSOR, tensor.at, tensor.n);
}

/* Appends a prefix of at most `most` bytes that ends with a character. */
static void put_prefix(struct bytes *to, const char *text, size_t n, size_t most)
{
    tensorboard_put(to, text, n <= most ? n : client_utf8_whole((const uint8_t *)text, most));
}

int client_tensorboard_write_text(const struct client_tensorboard *events, uint64_t step, size_t i, const char *prompt,
                                  const char *text, size_t n)
{
    struct bytes event, summary = {.n = 0}, value = {.n = 0}, both = {.n = 0};
    char tag[MOST_TAG];

    snprintf(tag, sizeof tag, "samples/%zu/text_summary", i + 1);
    put_prefix(&both, prompt, strlen(prompt), MOST_TEXT / 2);
    tensorboard_put(&both, "\n\n", 2);
    put_prefix(&both, text, n, MOST_TEXT / 2);
    put_bytes(&value, VALUE_TAG, tag, strlen(tag));
    tensorboard_put_text(&value, (const char *)both.at, both.n);
    put_bytes(&summary, SUMMARY_VALUE, value.at, value.n);
    begin_event(&event, step);
    put_bytes(&event, EVENT_SUMMARY, summary.at, summary.n);
    return write_event(events->fd, &event);
}

void client_tensorboard_close(struct client_tensorboard *events)
{
    if (events->fd >= 0)
        close(events->fd);
    events->fd = -1;
}
