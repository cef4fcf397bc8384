#include "tests/kit/disk.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ENTRIES = 32, MAX_STATES = 32, MAX_NODES = 1024, NAME_BYTES = 64 };

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

struct disk {
    struct node *root;
    struct names states[MAX_STATES]; /* (n_states) of root, oldest first, the present one last */
    size_t n_states;
    struct node *nodes[MAX_NODES]; /* (n_nodes) all there ever were */
    size_t n_nodes;
};

static struct node *add_node(struct disk *disk, enum node_kind kind)
{
    struct node *node = calloc(1, sizeof *node);

    ck_assert_ptr_nonnull(node);
    ck_assert_uint_lt(disk->n_nodes, MAX_NODES);
    node->kind = kind;
    return disk->nodes[disk->n_nodes++] = node;
}

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
static struct node *find_parent(const struct disk *disk, const char *path, const char **last)
{
    const char *slash = strchr(path, '/');
    char first[NAME_BYTES];

    *last = slash ? slash + 1 : path;
    if (!slash)
        return disk->root;
    ck_assert_ptr_null(strchr(*last, '/')); /* checkpoints are flat */
    snprintf(first, sizeof first, "%.*s", (int)(slash - path), path);
    struct entry *entry = find_entry(&disk->root->names, first);
    ck_assert_msg(entry && entry->node->kind == NODE_DIRECTORY, "%s", path);
    return entry->node;
}

static struct node *find_node(const struct disk *disk, const char *path)
{
    const char *name;
    struct node *parent = find_parent(disk, path, &name);

    if (!*path)
        return disk->root;
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

static void flush(struct disk *disk, struct node *node)
{
    if (node->kind == NODE_FILE) {
        node->flushed.n = 0;
        write_at(&node->flushed, 0, node->now.bytes ? node->now.bytes : "", node->now.n);
    }
    node->flushed_names = node->names;
    if (node == disk->root) {
        disk->states[0] = node->names;
        disk->n_states = 1;
    }
}

static void make(struct disk *disk, const char *path, enum node_kind kind, const char *target)
{
    const char *name;
    struct node *parent = find_parent(disk, path, &name);

    if (kind == NODE_FILE && find_entry(&parent->names, name))
        return; /* opened again */
    ck_assert_ptr_null(find_entry(&parent->names, name));
    struct node *node = add_node(disk, kind);
    if (target)
        write_at(&node->now, 0, target, strlen(target) + 1);
    link_node(&parent->names, name, node);
}

static void rename_node(struct disk *disk, const char *path, const char *other, bool exchange)
{
    const char *from_name, *to_name;
    struct names *from = &find_parent(disk, path, &from_name)->names, *to = &find_parent(disk, other, &to_name)->names;
    struct node *node = unlink_name(from, from_name).node, *replaced = NULL;

    if (find_entry(to, to_name))
        replaced = unlink_name(to, to_name).node;
    ck_assert(!exchange || replaced);
    if (exchange)
        link_node(from, from_name, replaced);
    link_node(to, to_name, node);
}

static void play(struct disk *disk, const struct record *r, const char *path, const char *other, const char *data)
{
    struct node *node = find_node(disk, path), *parent;
    const char *name;

    switch ((enum record_kind)r->kind) {
    case RECORD_CREATE:
        make(disk, path, NODE_FILE, NULL);
        break;
    case RECORD_MKDIR:
        make(disk, path, NODE_DIRECTORY, NULL);
        break;
    case RECORD_SYMLINK:
        make(disk, path, NODE_LINK, other);
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
        flush(disk, node);
        break;
    case RECORD_RENAME:
    case RECORD_EXCHANGE:
        rename_node(disk, path, other, r->kind == RECORD_EXCHANGE);
        break;
    case RECORD_REMOVE:
        parent = find_parent(disk, path, &name);
        unlink_name(&parent->names, name);
        break;
    case RECORD_KINDS:
        ck_abort_msg("no record");
    }
}

size_t disk_play(struct disk *disk, const char *at)
{
    const size_t n_states = disk->n_states;
    char path[PATH_MAX], other[PATH_MAX];
    struct record r;

    memcpy(&r, at, sizeof r);
    snprintf(path, sizeof path, "%.*s", (int)r.path_bytes, at + sizeof r);
    snprintf(other, sizeof other, "%.*s", (int)r.other_bytes, at + sizeof r + r.path_bytes);
    play(disk, &r, path, other, at + sizeof r + r.path_bytes + r.other_bytes);
    if (r.kind != RECORD_FLUSH && r.kind != RECORD_WRITE && !strchr(path, '/')) { /* a name of the directory itself */
        ck_assert_uint_lt(n_states, MAX_STATES);
        disk->states[disk->n_states++] = disk->root->names;
    }
    return sizeof r + r.path_bytes + r.other_bytes + r.data_bytes;
}

/* ---- to and from the real one ----------------------------------------------------------------------------------- */

static void load_file(struct node *node, const char *path)
{
    FILE *file = fopen(path, "r");
    char block[4096];
    size_t n;

    ck_assert_ptr_nonnull(file);
    while ((n = fread(block, 1, sizeof block, file)) > 0)
        write_at(&node->now, node->now.n, block, n);
    fclose(file);
}

static struct node *load_directory(struct disk *disk, const char *directory)
{
    struct node *node = add_node(disk, NODE_DIRECTORY);
    DIR *dir = opendir(directory);
    char path[PATH_MAX], target[NAME_BYTES];
    struct stat st;

    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        ck_assert_int_eq(lstat(path, &st), 0);
        struct node *child;
        if (S_ISDIR(st.st_mode)) {
            child = load_directory(disk, path);
        } else if (S_ISLNK(st.st_mode)) {
            const ssize_t n = readlink(path, target, sizeof target - 1);
            child = add_node(disk, NODE_LINK);
            target[n] = 0;
            write_at(&child->now, 0, target, (size_t)n + 1);
        } else {
            child = add_node(disk, NODE_FILE);
            load_file(child, path);
        }
        link_node(&node->names, entry->d_name, child);
    }
    closedir(dir);
    return node;
}

struct disk *disk_open(const char *directory)
{
    struct disk *disk = calloc(1, sizeof *disk);

    ck_assert_ptr_nonnull(disk);
    disk->root = load_directory(disk, directory);
    for (size_t i = 0; i < disk->n_nodes; i++)
        flush(disk, disk->nodes[i]);
    return disk;
}

void disk_close(struct disk *disk)
{
    for (size_t i = 0; i < disk->n_nodes; i++) {
        free(disk->nodes[i]->now.bytes);
        free(disk->nodes[i]->flushed.bytes);
        free(disk->nodes[i]);
    }
    free(disk);
}

size_t disk_n_states(const struct disk *disk)
{
    return disk->n_states;
}

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

/* from NULL: takes them away. */
static void copy_links(struct names *to, const struct names *from)
{
    for (size_t i = 0; from && i < from->n; i++)
        if (from->entries[i].node->kind == NODE_LINK)
            link_node(to, from->entries[i].name, from->entries[i].node);
    for (size_t i = to->n; !from && i-- > 0;)
        if (to->entries[i].node->kind == NODE_LINK)
            to->entries[i] = to->entries[--to->n];
}

void disk_crash(const struct disk *disk, const char *directory, const struct disk_loss *loss)
{
    ck_assert_uint_lt(loss->behind, disk->n_states);
    struct names names = disk->states[disk->n_states - 1 - loss->behind];
    if (loss->links) {
        copy_links(&names, NULL);
        copy_links(&names, &disk->root->names);
    }
    put_names(&names, directory, loss);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

void disk_remove(const char *directory)
{
    ck_assert_int_eq(nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}
