/* The file of a profile, as JSON.
 *
 * A profile is written by one version and read by another, so tables that were added later may be missing: they are
 * derived from those that must be there, in proportion to the device's default profile. A key that is not known is
 * refused, as it would be a figure that nobody uses. */
#include "proto/plan/time/profile_tables.h"

#include "proto/base/dump.h"
#include "proto/base/json.h"
#include "proto/base/path.h"
#include "proto/operation/device_name.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE_BYTES = 64 << 10 };

static bool is_host(const char *device)
{
    return device_name_is(device, "cpu");
}

int profile_path(char *out, size_t cap, const char *device, struct error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct stat st;
    int n;

    if (cache && cache[0] == '/')
        n = snprintf(out, cap, "%s/eps/profile-%s.json", cache, device);
    else if (home && home[0] == '/' && stat(home, &st) == 0) /* never made: only what is in it */
        n = snprintf(out, cap, "%s/.cache/eps/profile-%s.json", home, device);
    else
        return error_set(err, -ENOENT, "no place for a profile: set XDG_CACHE_HOME or HOME to a directory%s",
                         home && home[0] == '/' ? "; the one in HOME does not exist" : "");
    if (n < 0 || (size_t)n >= cap)
        return error_set(err, -ENAMETOOLONG, "XDG_CACHE_HOME or HOME is too long a path");
    return 0;
}

/* The member `name` of an object, which must be a number. */
static int profile_file_read_number(double *out, const json_t *object, const char *name, struct error *err)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_number(value))
        return error_set(err, -EINVAL, "%s is %s", name, value ? "not a number" : "missing");
    *out = json_number_value(value);
    return 0;
}

static int profile_file_refuse_unknown(json_t *object, size_t n_known, const char *const *known, struct error *err)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        size_t i = 0;
        while (i < n_known && strcmp(known[i], key) != 0)
            i++;
        if (i == n_known)
            return error_set(err, -EINVAL, "'%.60s' is no figure of a profile", key);
    }
    return 0;
}

/* A level of a table, and all below it; *out: the first figure there. Levels of a table are objects within objects,
 * by name; in the struct they are strides. */
static int read_level(double *out, const struct profile_table *table, int level, json_t *value, struct error *err)
{
    const struct profile_level *l = profile_level(table, level);
    int rc = json_is_object(value) ? 0 : error_set(err, -EINVAL, "it must be an object, by %s", l->by);

    for (int i = 0; !rc && i < l->n; i++) {
        json_t *const member = json_object_get(value, l->names[i]);
        double *const at = out + (size_t)i * l->stride;
        if (!member && (level == table->optional || table->is_sparse))
            continue;
        if (level == table->n_levels - 1) {
            rc = profile_file_read_number(at, value, l->names[i], err);
        } else {
            rc = read_level(at, table, level + 1, member, err);
            if (rc)
                error_prefix(err, l->names[i]);
        }
    }
    return rc ? rc : profile_file_refuse_unknown(value, (size_t)l->n, l->names, err);
}

static int profile_file_read_table(struct profile *out, const struct profile_table *table, json_t *root,
                                   struct error *err)
{
    json_t *const value = json_object_get(root, table->name);

    if (!value && !table->needed)
        return 0;
    if (!value)
        return error_set(err, -EINVAL, "%s is missing", table->name);
    const int rc = read_level(profile_figures(out, table), table, 0, value, err);
    if (rc)
        error_prefix(err, table->name);
    return rc;
}

/* Rates by type, of which n lie one after another, as the default profile's fractions of the rate of products with many
 * rows. */
static void derive_rates(double (*out)[PROFILE_TYPES], const double (*otherwise)[PROFILE_TYPES], int n,
                         const struct profile *profile, const struct profile *of)
{
    for (int i = 0; i < n * PROFILE_TYPES; i++) {
        const int type = i % PROFILE_TYPES;
        const double part = otherwise[i / PROFILE_TYPES][type] / of->matmul_flops[type][PROFILE_ROWS - 1];
        out[i / PROFILE_TYPES][type] = part > 0 ? fmax(1, part * profile->matmul_flops[type][PROFILE_ROWS - 1]) : 0;
    }
}

/* What a file may lack, from what it must have. Before optional figures are read, which then replace it. */
static void profile_file_derive(struct profile *out, const char *device)
{
    const struct profile *of = profile_default(device);

    if (!of)
        return;
    derive_rates(out->attention_flops[0], of->attention_flops[0], PROFILE_DIRECTIONS * ATTENTION_PATHS, out, of);
    derive_rates(out->conv2d_flops[0], of->conv2d_flops[0], CONV2D_KINDS * CONV2D_PATHS, out, of);
    for (int i = 0; i < PROFILE_DIRECTIONS; i++)
        out->norm_bytes_per_s[i] =
            of->norm_bytes_per_s[i] > 0
                ? fmax(1, of->norm_bytes_per_s[i] / of->memory_bytes_per_s * out->memory_bytes_per_s)
                : 0;
    struct profile from = *of;
    for (const struct profile_optional *o = profile_optional; o < profile_optional + PROFILE_OPTIONAL; o++)
        *profile_optional_figure(out, o) = o->is_derived ? *profile_optional_figure(&from, o) : 0;
}

static int read_way(struct profile *out, json_t *root, struct error *err)
{
    json_t *method = json_object_get(root, "attention");
    if (!method) {
        out->attention = PLAN_ATTENTION_OWN;
        return 0;
    }
    return plan_attention_named(&out->attention, json_string_value(method))
               ? 0
               : error_set(err, -EINVAL,
                           "attention must be \"own\", \"forward\", \"scores\", \"twice\" or \"ordered\"");
}

/* Figures by themselves. */
static int read_figures(struct profile *out, json_t *root, struct error *err)
{
    int rc = 0;

    for (int i = 0; !rc && i < PROFILE_FIGURES; i++)
        rc = profile_file_read_number(profile_figure(out, i), root, profile_figure_names[i], err);
    return rc;
}

static bool has_optional(const struct profile_optional *optional, const char *device)
{
    return !optional->is_of_gpu || !is_host(device);
}

static int read_optional(struct profile *out, json_t *root, const char *device, struct error *err)
{
    int rc = 0;

    for (const struct profile_optional *o = profile_optional; !rc && o < profile_optional + PROFILE_OPTIONAL; o++)
        if (has_optional(o, device) && json_object_get(root, o->name))
            rc = profile_file_read_number(profile_optional_figure(out, o), root, o->name, err);
    return rc;
}

static int refuse_others(json_t *root, const struct profile_table *tables, const char *device, struct error *err)
{
    const char *known[PROFILE_TABLES + PROFILE_FIGURES + PROFILE_OPTIONAL + 3] = {"device", "attention", "products"};
    size_t n = 3;

    for (int i = 0; i < PROFILE_TABLES; i++)
        if (tables[i].n_levels > 0)
            known[n++] = tables[i].name;
    for (int i = 0; i < PROFILE_FIGURES; i++)
        known[n++] = profile_figure_names[i];
    for (const struct profile_optional *o = profile_optional; o < profile_optional + PROFILE_OPTIONAL; o++)
        if (has_optional(o, device))
            known[n++] = o->name;
    return profile_file_refuse_unknown(root, n, known, err);
}

static int profile_file_read_object(struct profile *out, json_t *root, const char *device, struct error *err)
{
    const struct profile_table *tables = profile_tables[is_host(device)];
    const char *named = json_string_value(json_object_get(root, "device"));

    if (!json_is_object(root))
        return error_set(err, -EINVAL, "not a JSON object");
    if (!named || strcmp(named, device) != 0)
        return error_set(err, -EINVAL, "it is a profile of device '%.40s', not of '%s'", named ? named : "", device);
    int rc = profile_file_read_table(out, &tables[PROFILE_MATMUL], root, err);
    if (!rc)
        rc = read_figures(out, root, err);
    profile_file_derive(out, device);
    for (int i = PROFILE_MATMUL + 1; !rc && i < PROFILE_TABLES; i++)
        if (tables[i].n_levels > 0)
            rc = profile_file_read_table(out, &tables[i], root, err);
    if (!rc)
        rc = read_way(out, root, err);
    if (!rc)
        rc = read_optional(out, root, device, err);
    if (!rc)
        rc = products_from_json(&out->products, json_object_get(root, "products"), err);
    if (!rc)
        rc = refuse_others(root, tables, device, err);
    return rc ? rc : profile_check(out, err);
}

/* All of a small regular file, 0-terminated. O_NONBLOCK: a FIFO of that name is refused at once. */
static int profile_file_read_text(char text[MAX_FILE_BYTES + 1], size_t *n, const char *path, struct error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    int rc = 0;

    if (fd < 0)
        return error_set(err, -errno, "%s", strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > MAX_FILE_BYTES)
        rc = error_set(err, -EINVAL, "not a regular file of at most %d KiB", MAX_FILE_BYTES >> 10);
    const ssize_t got = rc ? 0 : pread(fd, text, (size_t)st.st_size, 0);
    if (got < 0)
        rc = error_set(err, -errno, "%s", strerror(errno));
    *n = got > 0 ? (size_t)got : 0;
    close(fd);
    return rc;
}

static int profile_file_read_file(struct profile *out, const char *path, const char *device, struct error *err)
{
    char text[MAX_FILE_BYTES + 1];
    json_error_t where;
    size_t n = 0;
    int rc = profile_file_read_text(text, &n, path, err);

    if (rc)
        return rc;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return error_set(err, -EINVAL, "not JSON at line %d, column %d: %s", where.line, where.column, where.text);
    rc = profile_file_read_object(out, root, device, err);
    json_decref(root);
    return rc;
}

int profile_read(struct profile *out, const char *path, const char *device, struct error *err)
{
    struct profile profile = {0};
    const int rc = profile_file_read_file(&profile, path, device, err);

    if (rc)
        error_prefix(err, path);
    else
        *out = profile;
    return rc;
}

int profile_find(struct profile *out, bool *measured, const char *device, struct error *err)
{
    const struct profile *otherwise = profile_default(device);
    char path[PATH_MAX];

    assert(otherwise);
    *out = *otherwise;
    if (measured)
        *measured = false;
    if (profile_path(path, sizeof path, device, NULL))
        return 0;
    /* A profile that is damaged is an error, not a missing one: predictions would silently be those of another
     * machine. */
    const int rc = profile_read(out, path, device, err);
    if (measured)
        *measured = rc == 0;
    if (rc && rc != -ENOENT)
        error_append(err, "; measure again with eps bench, or remove it");
    return rc == -ENOENT ? 0 : rc;
}

static json_t *level_to_json(const double *figures, const struct profile_table *table, int level)
{
    const struct profile_level *l = profile_level(table, level);
    json_t *out = json_object();

    for (int i = 0; i < l->n; i++) {
        const double *at = figures + (size_t)i * l->stride;
        json_t *member = level == table->n_levels - 1 ? json_real(*at) : level_to_json(at, table, level + 1);
        if (member && table->is_sparse && json_real_value(member) == 0 && json_object_size(member) == 0)
            json_decref(member);
        else
            json_put(&out, l->names[i], member);
    }
    return out;
}

/* NULL: no memory. */
static json_t *profile_file_to_json(struct profile *profile, const char *device)
{
    const struct profile_table *tables = profile_tables[is_host(device)];
    json_t *root = json_pack("{s:s}", "device", device);

    for (int i = 0; i < PROFILE_TABLES; i++)
        if (tables[i].n_levels > 0) {
            json_t *const table = level_to_json(profile_figures(profile, &tables[i]), &tables[i], 0);
            if (!table || json_object_size(table) > 0)
                json_put(&root, tables[i].name, table);
            else
                json_decref(table);
        }
    if (!is_host(device))
        json_put(&root, "attention", json_string(plan_attention_name(profile->attention)));
    for (int i = 0; i < PROFILE_FIGURES; i++)
        json_put(&root, profile_figure_names[i], json_real(*profile_figure(profile, i)));
    for (const struct profile_optional *o = profile_optional; o < profile_optional + PROFILE_OPTIONAL; o++)
        if (has_optional(o, device) && (o->is_derived || *profile_optional_figure(profile, o) > 0))
            json_put(&root, o->name, json_real(*profile_optional_figure(profile, o)));
    if (profile->products.version)
        json_put(&root, "products", products_to_json(&profile->products));
    return root;
}

/* Opens what will be renamed to path. Each writer has a name of its own, so that two at a time cannot mix their files;
 * and a new file, as what has the name already may be another user's. */
static int profile_file_open_partial(char partial[PATH_MAX], const char *path, struct error *err)
{
    uint64_t name;
    struct stat st;

    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return error_set(err, -EINVAL, "%s: not a regular file: name another", path);
    if (getrandom(&name, sizeof name, 0) != sizeof name)
        return error_set(err, -errno, "%s: no random bytes: %s", path, strerror(errno));
    if (snprintf(partial, PATH_MAX, "%s.partial-%016" PRIx64, path, name) >= PATH_MAX)
        return error_set(err, -ENAMETOOLONG, "%.200s: name too long", path);
    path_make_parents(path); /* an error shows when the file is opened */
    const int fd = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd >= 0 ? fd : error_set(err, -errno, "%s: %s", path, strerror(errno));
}

/* Before a measurement of a minute, whose result would then have no place. */
int profile_may_write(const char *path, struct error *err)
{
    char partial[PATH_MAX];
    const int fd = profile_file_open_partial(partial, path, err);

    if (fd < 0)
        return fd;
    close(fd);
    unlink(partial);
    return 0;
}

/* Written beside and renamed, so that a reader finds the old file or the new one. */
int profile_write(const struct profile *profile, const char *path, const char *device, struct error *err)
{
    char partial[PATH_MAX];
    const int fd = profile_file_open_partial(partial, path, err);
    int rc;

    if (fd < 0)
        return fd;
    struct profile written = *profile;
    json_t *root = profile_file_to_json(&written, device);
    errno = EIO;
    size_t n = 0;
    char *text = root ? dump_json(&n, root, &dump_indented) : NULL;
    rc = text ? 0 : -ENOMEM;
    json_decref(root);
    if (!rc && (write(fd, text, n) != (ssize_t)n || write(fd, "\n", 1) != 1 || fsync(fd)))
        rc = errno ? -errno : -EIO;
    free(text);
    close(fd);
    if (!rc && rename(partial, path))
        rc = -errno;
    if (!rc)
        return 0;
    unlink(partial);
    return error_set(err, rc, "%s could not be written: %s", path, strerror(-rc));
}
