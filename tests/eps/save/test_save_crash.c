/* A crash at every call of a save. A real daemon's calls on the output directory are recorded
 * (tests/kit/preload/record.h); each prefix of them is played onto a model of the directory that keeps, of every file
 * and directory, what it holds and what it held when it was last flushed. A crash may leave
 *   the content of a file: as it is, or as last flushed (never: empty);
 *   a directory one level down: as it is, or as last flushed;
 *   the directory itself: in any state since it was last flushed, its symbolic links in the present one all the same,
 *   since not every file system keeps changes of names in order.
 * A program that is killed loses nothing; a machine that stops may lose all that was not flushed. Every checkpoint that
 * then stands is whole, and `latest` names one: the old one or, at the latest when the client has been told of it, the
 * new one. */
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/preload/record.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(own)

/* ---- the disk ---------------------------------------------------------------------------------------------------- */

#define OUT      "out"
#define LEFT     "step-1.partial"
#define RECORDED "recorded"
#define CRASHED  "crashed"

enum { MAX_ENTRIES = 32, MAX_STATES = 32, NAME_BYTES = 64 };

struct content {
    char *bytes;
    size_t n;
};

struct names {
    struct entry {
        char name[NAME_BYTES];
        struct node *node;
    } entries[MAX_ENTRIES];
    size_t n;
};

enum node_kind { NODE_FILE, NODE_DIRECTORY, NODE_LINK };

struct node {
    enum node_kind kind;
    struct content now, flushed; /* of a file; a link says now.bytes, and always did */
    struct names names, flushed_names;
};

static struct {
    struct node root;
    struct names states[MAX_STATES]; /* (n_states) of root, oldest first, the present one last */
    size_t n_states;
} disk = {.root.kind = NODE_DIRECTORY};

static struct entry *find_entry(struct names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->entries[i].name, name) == 0)
            return &names->entries[i];
    return NULL;
}

static void link_node(struct names *names, const char *name, struct node *node)
{
    ck_assert_uint_lt(names->n, MAX_ENTRIES);
    struct entry *entry = &names->entries[names->n++];
    ck_assert_uint_lt(strlen(name), sizeof entry->name);
    strcpy(entry->name, name);
    entry->node = node;
}

static struct entry unlink_name(struct names *names, const char *name)
{
    struct entry *entry = find_entry(names, name), removed;

    ck_assert_msg(entry != NULL, "%s is not there", name);
    removed = *entry;
    *entry = names->entries[--names->n];
    return removed;
}

/* The directory that a path's last part is in, and that part. */
static struct node *find_parent(const char *path, const char **last)
{
    const char *slash = strchr(path, '/');
    char first[NAME_BYTES];

    *last = slash ? slash + 1 : path;
    if (!slash)
        return &disk.root;
    ck_assert_ptr_null(strchr(*last, '/')); /* checkpoints are flat */
    snprintf(first, sizeof first, "%.*s", (int)(slash - path), path);
    struct entry *entry = find_entry(&disk.root.names, first);
    ck_assert_msg(entry && entry->node->kind == NODE_DIRECTORY, "%s", path);
    return entry->node;
}

static struct node *find_node(const char *path)
{
    const char *name;
    struct node *parent = find_parent(path, &name);

    if (!*path)
        return &disk.root;
    struct entry *entry = find_entry(&parent->names, name);
    return entry ? entry->node : NULL;
}

static void resize(struct content *content, size_t n)
{
    content->bytes = realloc(content->bytes, n + 1);
    ck_assert_ptr_nonnull(content->bytes);
    if (n > content->n)
        memset(content->bytes + content->n, 0, n - content->n);
    content->n = n;
}

static void write_at(struct content *content, size_t offset, const void *data, size_t n)
{
    if (offset + n > content->n)
        resize(content, offset + n);
    memcpy(content->bytes + offset, data, n);
}

/* ---- playing ---------------------------------------------------------------------------------------------------- */

static void flush(struct node *node)
{
    if (node->kind == NODE_FILE) {
        node->flushed.n = 0;
        write_at(&node->flushed, 0, node->now.bytes ? node->now.bytes : "", node->now.n);
    }
    node->flushed_names = node->names;
    if (node == &disk.root) {
        disk.states[0] = node->names;
        disk.n_states = 1;
    }
}

static void make(const char *path, enum node_kind kind, const char *target)
{
    const char *name;
    struct node *parent = find_parent(path, &name);

    if (kind == NODE_FILE && find_entry(&parent->names, name))
        return; /* opened again */
    ck_assert_ptr_null(find_entry(&parent->names, name));
    struct node *node = plain_zeros(1, sizeof *node); /* for good: a state may name it */
    node->kind = kind;
    if (target)
        write_at(&node->now, 0, target, strlen(target) + 1);
    link_node(&parent->names, name, node);
}

static void rename_node(const char *path, const char *other, bool exchange)
{
    const char *from_name, *to_name;
    struct names *from = &find_parent(path, &from_name)->names, *to = &find_parent(other, &to_name)->names;
    struct node *node = unlink_name(from, from_name).node, *replaced = NULL;

    if (find_entry(to, to_name))
        replaced = unlink_name(to, to_name).node;
    ck_assert(!exchange || replaced);
    if (exchange)
        link_node(from, from_name, replaced);
    link_node(to, to_name, node);
}

static void play(const struct record *r, const char *path, const char *other, const char *data)
{
    struct node *node = find_node(path), *parent;
    const char *name;

    switch ((enum record_kind)r->kind) {
    case RECORD_CREATE:
        make(path, NODE_FILE, NULL);
        break;
    case RECORD_MKDIR:
        make(path, NODE_DIRECTORY, NULL);
        break;
    case RECORD_SYMLINK:
        make(path, NODE_LINK, other);
        break;
    case RECORD_WRITE:
        write_at(&node->now, r->offset, data, r->data_bytes);
        break;
    case RECORD_EXTEND:
        if (r->offset > node->now.n)
            resize(&node->now, r->offset);
        break;
    case RECORD_SIZE:
        resize(&node->now, r->offset);
        break;
    case RECORD_FLUSH:
        flush(node);
        break;
    case RECORD_RENAME:
    case RECORD_EXCHANGE:
        rename_node(path, other, r->kind == RECORD_EXCHANGE);
        break;
    case RECORD_REMOVE:
        parent = find_parent(path, &name);
        unlink_name(&parent->names, name);
        break;
    case RECORD_KINDS:
        ck_abort_msg("no record");
    }
}

/* Plays one record; returns its bytes. */
static size_t disk_play(const char *at)
{
    const size_t n_states = disk.n_states;
    char path[PATH_MAX], other[PATH_MAX];
    struct record r;

    memcpy(&r, at, sizeof r);
    snprintf(path, sizeof path, "%.*s", (int)r.path_bytes, at + sizeof r);
    snprintf(other, sizeof other, "%.*s", (int)r.other_bytes, at + sizeof r + r.path_bytes);
    play(&r, path, other, at + sizeof r + r.path_bytes + r.other_bytes);
    if (r.kind != RECORD_FLUSH && r.kind != RECORD_WRITE && !strchr(path, '/')) { /* a name of the directory itself */
        ck_assert_uint_lt(n_states, MAX_STATES);
        disk.states[disk.n_states++] = disk.root.names;
    }
    return sizeof r + r.path_bytes + r.other_bytes + r.data_bytes;
}

/* ---- to and from the real one ----------------------------------------------------------------------------------- */

struct disk_loss {
    bool data;     /* contents are as last flushed */
    bool names;    /* directories one level down too */
    bool links;    /* symbolic links of the directory itself are not behind */
    size_t behind; /* the directory itself is as it was so many changes before, less than disk_n_states */
};

static void put_names(const struct names *names, const char *directory, const struct disk_loss *loss)
{
    char path[PATH_MAX];

    ck_assert_int_eq(mkdir(directory, 0700), 0);
    for (size_t i = 0; i < names->n; i++) {
        const struct node *node = names->entries[i].node;
        const struct content *content = loss->data ? &node->flushed : &node->now;
        snprintf(path, sizeof path, "%s/%s", directory, names->entries[i].name);
        if (node->kind == NODE_DIRECTORY) {
            put_names(loss->names ? &node->flushed_names : &node->names, path, loss);
        } else if (node->kind == NODE_LINK) {
            ck_assert_int_eq(symlink(node->now.bytes, path), 0);
        } else {
            int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
            ck_assert_int_ge(fd, 0);
            ck_assert_int_eq(write(fd, content->bytes, content->n), (ssize_t)content->n);
            close(fd);
        }
    }
}

/* Makes a new directory that looks like this after a crash. */
static void disk_crash(const char *directory, const struct disk_loss *loss)
{
    ck_assert_uint_lt(loss->behind, disk.n_states);
    struct names names = disk.states[disk.n_states - 1 - loss->behind];
    for (size_t i = names.n; loss->links && i-- > 0;)
        if (names.entries[i].node->kind == NODE_LINK)
            names.entries[i] = names.entries[--names.n];
    for (size_t i = 0; loss->links && i < disk.root.names.n; i++)
        if (disk.root.names.entries[i].node->kind == NODE_LINK)
            link_node(&names, disk.root.names.entries[i].name, disk.root.names.entries[i].node);
    put_names(&names, directory, loss);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static void disk_remove(const char *directory)
{
    ck_assert_int_eq(nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- its crashes ------------------------------------------------------------------------------------------------- */

enum { NONE = -1 };

/* Keeps the first that was not whole. */
static void on_checked(void *user, const struct eps_verified *c)
{
    const char *why = c->why ? c->why : c->edited; /* nobody has edited any */
    char *broken = user;

    if (why && !*broken)
        snprintf(broken, 400, "%s: %s", c->path, why);
}

/* The N of the step-N that `latest` names, which must be there; NONE. */
static int64_t find_latest(void)
{
    struct stat st;

    if (lstat(CRASHED "/latest", &st))
        return NONE;
    ck_assert_msg(stat(CRASHED "/latest", &st) == 0, "latest names what is not there");
    return (int64_t)outputs_latest(CRASHED);
}

/* In this program: thousands of saves, of which none has to outlive the machine. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

/* The next save of a run that goes on from there: nothing that a crash left is in its way, or stays beside it. */
static void check_next_save(uint64_t step)
{
    int directory, output = open(CRASHED, O_RDONLY | O_DIRECTORY);
    struct error err = {""};
    char name[64];

    ck_assert_int_ge(output, 0);
    ck_assert_msg(output_begin(&directory, output, step, &err) == 0, "%s", err.text);
    ck_assert_msg(output_write(directory, "training.json", "next", 4, &err) == 0, "%s", err.text);
    ck_assert_msg(output_place(output, directory, step, &err) == 0, "%s", err.text);
    close(directory);
    close(output);
    outputs_check_file(CRASHED "/latest/training.json", "next");
    snprintf(name, sizeof name, "step-%ju.", (uintmax_t)step);
    ck_assert_msg(!strstr(outputs_names(CRASHED), name), "%s", outputs_names(CRASHED));
}

static void check_crash(const struct disk_loss *loss, int64_t before, int64_t after)
{
    char broken[400] = "";
    struct eps_error error = {""};

    disk_crash(CRASHED, loss);
    const int rc = eps_verify(CRASHED, on_checked, broken, &error);
    ck_assert_msg((rc == 0 && !*broken) || (rc == -ENOENT && before == NONE), "%s (%s)", broken, error.text);
    const int64_t latest = find_latest();
    ck_assert_msg(latest == before || latest == after, "latest is step %jd, not %jd nor %jd", (intmax_t)latest,
                  (intmax_t)before, (intmax_t)after);
    check_next_save((uint64_t)after);
    disk_remove(CRASHED);
}

/* Everything that a crash now may leave. The crashed daemon's next one begins from there. */
static unsigned check_crashes(int64_t before, int64_t after)
{
    unsigned n = 0;

    for (size_t behind = 0; behind < disk.n_states; behind++)
        for (unsigned losses = 0; losses < (behind ? 8 : 4); losses++, n++)
            check_crash(&(struct disk_loss){losses & 1, losses & 2, losses & 4, behind}, before, after);
    return n;
}

static size_t recorded_bytes(void)
{
    struct stat st;

    return stat(RECORDED, &st) == 0 ? (size_t)st.st_size : 0;
}

static void start_daemon(void)
{
    char *directory = realpath(OUT, NULL), *here = realpath(".", NULL), file[400];

    ck_assert(directory && here);
    snprintf(file, sizeof file, "%s/" RECORDED, here);
    setenv("RECORD_DIRECTORY", directory, 1);
    setenv("RECORD_FILE", file, 1);
    setenv("LD_PRELOAD", BIN_DIR "/librecord.so", 1);
    processes_daemon("lab", 1, NULL);
    unsetenv("LD_PRELOAD");
    free(directory), free(here);
}

/* What has been played is what is there: no call went by unrecorded. */
static void check_played(void)
{
    disk_crash(CRASHED, &(struct disk_loss){.behind = 0});
    ck_assert_int_eq(system("diff -r --no-dereference " OUT " " CRASHED), 0);
    disk_remove(CRASHED);
}

SUITE_SKIP_UNLESS(!SANITIZED, "a sanitizer must be preloaded first")
SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

/* The first save; one more; then another run that comes to step 1 again, so that step-1 is exchanged and removed. In
 * the way at first: what a run left that was killed. */
TEST(a_crash_at_any_call_leaves_the_old_checkpoint_or_the_new_one)
{
    static const int64_t latest[] = {NONE, 1, 2, 1};
    const struct driver_options options = {.out = outputs_make(OUT)};
    struct driver driver;
    size_t ends[3], at = 0;
    unsigned n_calls = 0, n_crashes = 0;

    outputs_make(OUT "/" LEFT);
    outputs_write(OUT "/" LEFT, "model.safetensors", "half of it");
    make(LEFT, NODE_DIRECTORY, NULL);
    make(LEFT "/model.safetensors", NODE_FILE, NULL);
    write_at(&find_node(LEFT "/model.safetensors")->now, 0, "half of it", 10);
    flush(find_node(LEFT "/model.safetensors")), flush(find_node(LEFT)), flush(&disk.root);
    start_daemon();
    for (int i = 0; i < 3; i++) {
        if (i != 1)
            driver_open(&driver, "lab", &options);
        driver_save(&driver, (uint64_t)latest[i + 1]);
        ck_assert_uint_eq(driver.n_failed, 0);
        ends[i] = recorded_bytes();
        if (i != 0)
            driver_close(&driver);
    }

    char *records = processes_read(RECORDED);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_gt(ends[i], at);
        for (; at < ends[i]; n_calls++) {
            n_crashes += check_crashes(latest[i], latest[i + 1]);
            at += disk_play(records + at);
        }
        n_crashes += check_crashes(latest[i + 1], latest[i + 1]); /* the client has been told: it stays */
    }
    while (at < recorded_bytes())
        at += disk_play(records + at);
    check_played();
    ck_assert_uint_gt(n_calls, 60); /* or the shim has missed them */
    printf("%u calls, %u crashes\n", n_calls, n_crashes);
    free(records);
}
