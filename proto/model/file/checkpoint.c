/* The text's checksum covers every byte before it, so the text is printed without it, and its last brace becomes the
 * comma before it. Runs are in the order in which units were captured until they are printed; readers insist on the
 * order of offsets. */
#include "proto/model/file/checkpoint.h"

#include "proto/base/dump.h"
#include "proto/model/adapter.h"
#include "proto/model/file/model_files.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* The end of the text: `"checksum": "0123456789abcdef"}` and a newline. */
#define CHECKSUM_KEY    "\"checksum\""
#define CHECKSUM_FORMAT CHECKSUM_KEY ": \"%016" PRIx64 "\"}\n"
enum { CHECKSUM_BYTES = 32, HASH_DIGITS = 16, BLOCK_BYTES = 1 << 20, FIRST_RUNS = 64 };

uint64_t checkpoint_hash(const void *data, size_t n)
{
    return XXH3_64bits(data, n);
}

/* Names come out of a file and are opened and removed by it: no slash, no leading dot, so nothing outside the directory
 * is named. */
bool checkpoint_is_name(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t n = strnlen(name, CHECKPOINT_NAME_BYTES);

    return n > 0 && n < CHECKPOINT_NAME_BYTES && name[0] != '.' && strspn(name, letters) == n;
}

static struct checkpoint_file *find_file(const struct checkpoint *checkpoint, const char *name)
{
    for (size_t i = 0; i < checkpoint->n_files; i++)
        if (strcmp(checkpoint->files[i].name, name) == 0)
            return (struct checkpoint_file *)&checkpoint->files[i];
    return NULL;
}

struct checkpoint_file *checkpoint_add_file(struct checkpoint *checkpoint, const char *name, uint64_t bytes)
{
    assert(checkpoint->n_files < CHECKPOINT_MAX_FILES && checkpoint_is_name(name) && bytes <= INT64_MAX);
    assert(strcmp(name, CHECKPOINT_TRAINING) != 0 && !find_file(checkpoint, name));
    struct checkpoint_file *file = &checkpoint->files[checkpoint->n_files++];
    *file = (struct checkpoint_file){.bytes = bytes};
    memcpy(file->name, name, strlen(name) + 1);
    return file;
}

void checkpoint_lend_runs(struct checkpoint_file *file, struct checkpoint_run *runs, size_t cap)
{
    assert(!file->runs);
    file->runs = runs, file->cap_runs = cap, file->lent = true;
}

int checkpoint_add_run(struct checkpoint_file *file, uint64_t offset, uint64_t bytes, uint64_t hash)
{
    if (file->n_runs == file->cap_runs) {
        assert(!file->lent);
        const size_t cap = file->cap_runs ? 2 * file->cap_runs : FIRST_RUNS;
        struct checkpoint_run *runs = reallocarray(file->runs, cap, sizeof *runs);
        if (!runs)
            return -ENOMEM;
        file->runs = runs, file->cap_runs = cap;
    }
    file->runs[file->n_runs++] = (struct checkpoint_run){offset, bytes, hash};
    return 0;
}

/* The checksum is of what was meant to be written, taken before the disk has it. */
int checkpoint_write_run(struct checkpoint_file *file, const struct file *to, const void *data, size_t n,
                         uint64_t offset, struct error *err)
{
    if (checkpoint_add_run(file, offset, n, checkpoint_hash(data, n)) != 0)
        return error_set(err, -ENOMEM, "no memory for its checksums");
    return file_write(to, data, n, offset, err);
}

void checkpoint_free(struct checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->n_files; i++)
        if (!checkpoint->files[i].lent)
            free(checkpoint->files[i].runs);
    json_decref(checkpoint->options);
    *checkpoint = (struct checkpoint){0};
}

static int checkpoint_by_offset(const void *a, const void *b)
{
    const struct checkpoint_run *left = a, *right = b;

    return (left->offset > right->offset) - (left->offset < right->offset);
}

/* NULL: no memory. */
static json_t *print_file(struct checkpoint_file *file)
{
    json_t *runs = json_array();
    char hash[HASH_DIGITS + 1];

    if (file->n_runs)
        qsort(file->runs, file->n_runs, sizeof *file->runs, checkpoint_by_offset);
    for (size_t i = 0; i < file->n_runs; i++) {
        const struct checkpoint_run *run = &file->runs[i];
        snprintf(hash, sizeof hash, "%016" PRIx64, run->hash);
        json_t *triple = json_pack("[I, I, s]", (json_int_t)run->offset, (json_int_t)run->bytes, hash);
        if (json_array_append_new(runs, triple) != 0) {
            json_decref(runs);
            return NULL;
        }
    }
    return json_pack("{s:I, s:o}", "bytes", (json_int_t)file->bytes, "runs", runs);
}

/* `{... "files": {...}}`; NULL: no memory. */
static char *print_members(struct checkpoint *checkpoint)
{
    json_t *options = checkpoint->options ? json_incref(checkpoint->options) : json_object();
    json_t *files = json_object();
    char *text = NULL;

    for (size_t i = 0; i < checkpoint->n_files; i++)
        if (json_object_set_new(files, checkpoint->files[i].name, print_file(&checkpoint->files[i])) != 0) {
            json_decref(files);
            json_decref(options);
            return NULL;
        }
    json_t *root = json_pack("{s:i, s:I, s:o, s:o}", "format", CHECKPOINT_FORMAT, "step", (json_int_t)checkpoint->step,
                             "options", options, "files", files);
    if (root)
        text = dump_json(NULL, root, &dump_compact);
    json_decref(root);
    return text;
}

char *checkpoint_print(struct checkpoint *checkpoint)
{
    char *members = print_members(checkpoint), *text = NULL;

    if (!members)
        return NULL;
    const size_t n = strlen(members); /* its last brace becomes a comma */
    members[n - 1] = ',';
    if (asprintf(&text, "%s" CHECKSUM_FORMAT, members, checkpoint_hash(members, n)) < 0)
        text = NULL;
    free(members);
    return text;
}

/* -EINVAL says that content is not what was written, so no fault of the disk may pass for it. */
static int fail_read(struct error *err, const char *name)
{
    return error_set(err, errno == EINVAL ? -EIO : -errno, "%s: %s", name, strerror(errno));
}

/* An open regular file of the directory. O_NONBLOCK: a pipe of that name is refused at once. */
static int checkpoint_open_file(int *fd, uint64_t *bytes, int directory_fd, const char *name, struct error *err)
{
    struct stat st;
    int rc = 0;

    *fd = openat(directory_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return errno == ENOENT ? error_set(err, -ENOENT, "%s is missing", name) : fail_read(err, name);
    if (fstat(*fd, &st) != 0)
        rc = fail_read(err, name);
    else if (!S_ISREG(st.st_mode))
        rc = error_set(err, -EINVAL, "%s: not a regular file", name);
    if (rc != 0)
        close(*fd);
    else
        *bytes = (uint64_t)st.st_size;
    return rc;
}

static int checkpoint_read_served(const struct file *from, void *out, size_t n, uint64_t offset, const char *name,
                                  struct error *err)
{
    const int rc = file_read(from, out, n, offset, err);

    if (rc != 0)
        error_prefix(err, name);
    return rc == -EINVAL ? -EIO : rc;
}

/* Reads all n bytes; fewer mean that the file has changed. */
static int read_at(const struct file *from, void *out, size_t n, uint64_t offset, const char *name, struct error *err)
{
    if (from->server)
        return checkpoint_read_served(from, out, n, offset, name, err);
    for (size_t used = 0; used < n;) {
        const ssize_t got = pread(from->fd, (char *)out + used, n - used, (off_t)(offset + used));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_read(err, name);
        if (got == 0)
            return error_set(err, -EINVAL, "%s: became shorter while it was read", name);
        used += (size_t)got;
    }
    return 0;
}

/* The bound keeps a damaged directory entry from taking all memory. */
static int load_text(char **text, size_t *n, int directory_fd, struct error *err)
{
    uint64_t bytes;
    int fd, rc = checkpoint_open_file(&fd, &bytes, directory_fd, CHECKPOINT_TRAINING, err);

    *text = NULL;
    if (rc != 0)
        return rc;
    if (bytes > CHECKPOINT_MAX_TEXT)
        rc = error_set(err, -EINVAL, "training.json: %" PRIu64 " bytes, where %d are the most", bytes,
                       CHECKPOINT_MAX_TEXT);
    else if (!(*text = malloc(bytes + 1)))
        rc = error_set(err, -ENOMEM, "no memory for training.json");
    else
        rc = read_at(&(struct file){.fd = fd}, *text, bytes, 0, CHECKPOINT_TRAINING, err);
    *n = bytes;
    close(fd);
    return rc;
}

static bool read_count(uint64_t *out, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool read_hash(uint64_t *out, const json_t *value)
{
    const char *text = json_string_value(value);

    if (!text || strlen(text) != HASH_DIGITS || strspn(text, "0123456789abcdef") != HASH_DIGITS)
        return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

/* Runs must cover the file exactly, in order and without gaps: else some byte would have no checksum. */
static int read_file_entry(struct checkpoint_file *file, const json_t *entry, struct error *err)
{
    const json_t *runs = json_object_get(entry, "runs");
    struct checkpoint_run run;
    uint64_t end = 0;

    if (!read_count(&file->bytes, json_object_get(entry, "bytes")) || !json_is_array(runs))
        return error_set(err, -EINVAL, "training.json: %s has no length or no runs", file->name);
    for (size_t i = 0; i < json_array_size(runs); i++) {
        const json_t *triple = json_array_get(runs, i);
        if (json_array_size(triple) != 3 || !read_count(&run.offset, json_array_get(triple, 0)) ||
            !read_count(&run.bytes, json_array_get(triple, 1)) || !read_hash(&run.hash, json_array_get(triple, 2)))
            return error_set(err, -EINVAL, "training.json: run %zu of %s is not [offset, bytes, checksum]", i,
                             file->name);
        if (run.offset != end || run.bytes == 0 || run.bytes > file->bytes - end)
            return error_set(err, -EINVAL,
                             "training.json: run %zu of %s (%" PRIu64 " bytes at %" PRIu64
                             ") leaves a gap, overlaps or passes the end",
                             i, file->name, run.bytes, run.offset);
        end += run.bytes;
        if (checkpoint_add_run(file, run.offset, run.bytes, run.hash) != 0)
            return error_set(err, -ENOMEM, "no memory for the checksums of %s", file->name);
    }
    if (end != file->bytes)
        return error_set(err, -EINVAL, "training.json: runs of %s end at %" PRIu64 " of %" PRIu64 " bytes", file->name,
                         end, file->bytes);
    return 0;
}

static int read_files(struct checkpoint *out, json_t *files, struct error *err)
{
    const bool adapts = json_object_get(files, ADAPTER_WEIGHTS);
    const char *const needed[] = {adapts ? ADAPTER_BASE : CHECKPOINT_CONFIG,
                                  adapts ? ADAPTER_WEIGHTS : CHECKPOINT_WEIGHTS, CHECKPOINT_MOMENTS};
    const char *name;
    json_t *entry;

    if (!json_is_object(files) || json_object_size(files) > CHECKPOINT_MAX_FILES)
        return error_set(err, -EINVAL, "training.json: its files are not a list of at most %d", CHECKPOINT_MAX_FILES);
    json_object_foreach(files, name, entry)
    {
        if (!checkpoint_is_name(name) || strcmp(name, CHECKPOINT_TRAINING) == 0)
            return error_set(err, -EINVAL, "training.json: '%.64s' is no name for a file of a checkpoint", name);
        int rc = read_file_entry(checkpoint_add_file(out, name, 0), entry, err);
        if (rc != 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!find_file(out, needed[i]))
            return error_set(err, -EINVAL, "training.json: %s is not among its files", needed[i]);
    return 0;
}

static int check_checksum(const char *text, size_t n, struct error *err)
{
    char tail[CHECKSUM_BYTES + 1] = "";

    if (n > CHECKSUM_BYTES)
        snprintf(tail, sizeof tail, CHECKSUM_FORMAT, checkpoint_hash(text, n - CHECKSUM_BYTES));
    if (n <= CHECKSUM_BYTES || memcmp(text + n - CHECKSUM_BYTES, tail, CHECKSUM_BYTES) != 0)
        return error_set(err, -EINVAL, "training.json is not what was written (its checksum differs): damaged");
    return 0;
}

static int read_root(struct checkpoint *out, const char *text, size_t n, struct error *err)
{
    json_error_t why;
    uint64_t format;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    json_t *options = json_object_get(root, "options");
    int rc = 0;

    /* The format is checked first: a later one may compute its checksum differently. */
    if (!root)
        rc = error_set(err, -EINVAL, "training.json: not JSON at byte %d (%s): damaged", why.position, why.text);
    else if (!read_count(&format, json_object_get(root, "format")))
        rc = error_set(err, -EINVAL, "training.json: no format in it: was it written by eps?");
    else if (format != CHECKPOINT_FORMAT)
        rc = error_set(err, -EPROTONOSUPPORT,
                       "training.json: format %" PRIu64 "; this eps reads %d: take the eps that wrote it", format,
                       CHECKPOINT_FORMAT);
    else
        rc = check_checksum(text, n, err);
    if (rc == 0 && !read_count(&out->step, json_object_get(root, "step")))
        rc = error_set(err, -EINVAL, "training.json: its step is no count");
    if (rc == 0 && !json_is_object(options))
        rc = error_set(err, -EINVAL, "training.json: its options are no object");
    if (rc == 0)
        rc = read_files(out, json_object_get(root, "files"), err);
    if (rc == 0)
        out->options = json_incref(options);
    json_decref(root);
    return rc;
}

int checkpoint_read(struct checkpoint *out, int directory_fd, struct error *err)
{
    char *text;
    size_t n;

    *out = (struct checkpoint){0};
    int rc = load_text(&text, &n, directory_fd, err);
    if (rc == 0)
        rc = read_root(out, text, n, err);
    if (rc != 0)
        checkpoint_free(out);
    free(text);
    return rc;
}

struct checking {
    struct file from;
    const char *name;
    void *block; /* (BLOCK_BYTES) */
    XXH3_state_t *state;
    int (*on_bytes)(void *data, uint64_t bytes);
    void *data;
};

/* Reads by blocks, so that whoever waits can be told, and can interrupt. */
static int checkpoint_check_run(const struct checking *c, const struct checkpoint_run *run, struct error *err)
{
    XXH3_64bits_reset(c->state);
    for (uint64_t done = 0; done < run->bytes;) {
        const size_t now = run->bytes - done < BLOCK_BYTES ? (size_t)(run->bytes - done) : BLOCK_BYTES;
        int rc = read_at(&c->from, c->block, now, run->offset + done, c->name, err);
        if (rc != 0)
            return rc;
        XXH3_64bits_update(c->state, c->block, now);
        done += now;
        rc = c->on_bytes ? c->on_bytes(c->data, now) : 0;
        if (rc != 0)
            return error_set(err, rc, "interrupted while %s was read", c->name);
    }
    if (XXH3_64bits_digest(c->state) == run->hash)
        return 0;
    return error_set(err, -EINVAL,
                     "%s is not what was written: checksum of its %" PRIu64 " bytes from %" PRIu64 " on differs",
                     c->name, run->bytes, run->offset);
}

static int check_runs(struct checking *c, const struct checkpoint_file *file, struct error *err)
{
    int rc = 0;

    c->name = file->name;
    for (size_t i = 0; rc == 0 && i < file->n_runs; i++)
        rc = checkpoint_check_run(c, &file->runs[i], err);
    return rc;
}

static int checkpoint_check_file(struct checking *c, const struct checkpoint_file *file, int directory_fd,
                                 struct error *err)
{
    uint64_t bytes;
    int fd, rc = checkpoint_open_file(&fd, &bytes, directory_fd, file->name, err);

    if (rc != 0)
        return rc == -ENOENT ? -EINVAL : rc;
    if (bytes != file->bytes)
        rc = error_set(err, -EINVAL, "%s has %" PRIu64 " bytes, %" PRIu64 " were written: %s", file->name, bytes,
                       file->bytes, bytes < file->bytes ? "truncated" : "changed");
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    c->from = file_own(fd);
    if (rc == 0)
        rc = check_runs(c, file, err);
    close(fd);
    return rc;
}

static int checking_init(struct checking *c, struct error *err)
{
    c->block = malloc(BLOCK_BYTES);
    c->state = XXH3_createState();
    return c->block && c->state ? 0 : error_set(err, -ENOMEM, "no memory to read a checkpoint");
}

static void checking_free(struct checking *c)
{
    free(c->block);
    XXH3_freeState(c->state);
}

int checkpoint_check(const struct checkpoint *checkpoint, int directory_fd, const char *name,
                     int (*on_bytes)(void *data, uint64_t bytes), void *data, struct error *err)
{
    struct checking c = {.on_bytes = on_bytes, .data = data};
    int rc = checking_init(&c, err);

    if (rc == 0 && name && !find_file(checkpoint, name))
        rc = error_set(err, -EINVAL, "training.json: %s is not among its files", name);
    for (size_t i = 0; rc == 0 && i < checkpoint->n_files; i++)
        if (!name || strcmp(name, checkpoint->files[i].name) == 0)
            rc = checkpoint_check_file(&c, &checkpoint->files[i], directory_fd, err);
    checking_free(&c);
    return rc;
}

/* "a and b", one more file each time. */
static void note_edited(struct error *edited, const char *name)
{
    static const char one[] = " is not as it was saved", several[] = " are not as they were saved";
    const size_t n = strlen(edited->text);
    const bool is_first = n == 0, is_second = n > strlen(one) && strcmp(edited->text + n - strlen(one), one) == 0;

    edited->text[is_first ? 0 : n - strlen(is_second ? one : several)] = 0;
    error_append(edited, "%s%s%s", is_first ? "" : " and ", name, is_first ? one : several);
}

int checkpoint_check_files(struct error *edited, const struct checkpoint *checkpoint, int directory_fd,
                           const struct checkpoint_reading *reading, struct error *err)
{
    int rc = 0;

    edited->text[0] = 0;
    for (int weights = 1; weights >= 0; weights--)
        for (size_t i = 0; rc == 0 && i < checkpoint->n_files; i++) {
            const char *name = checkpoint->files[i].name;
            const bool has_weights = strcmp(name, CHECKPOINT_WEIGHTS) == 0 || strcmp(name, ADAPTER_WEIGHTS) == 0;
            if (has_weights != weights || (reading->without_moments && strcmp(name, CHECKPOINT_MOMENTS) == 0))
                continue;
            rc = checkpoint_check(checkpoint, directory_fd, name, reading->on_bytes, reading->data, err);
            if (rc == -EINVAL && model_files_is_editable(name) &&
                faccessat(directory_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
                note_edited(edited, name);
                rc = 0;
            }
        }
    return rc;
}

/* The same of a file that was just written, through its descriptor or the server that has it. */
int checkpoint_check_open(const struct checkpoint_file *file, const struct file *from, struct error *err)
{
    struct checking c = {.from = *from};
    int rc = checking_init(&c, err);

    if (rc == 0)
        rc = check_runs(&c, file, err);
    checking_free(&c);
    return rc;
}
