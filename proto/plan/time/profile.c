#include "proto/plan/time/profile.h"

#include "proto/base/path.h"
#include "proto/operation/device_name.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Limit on every rate, so that no predicted time overflows a double or is 0. */
static const double most_a_second = 1e21;

enum { MAX_FILE_BYTES = 64 << 10, MATMUL_FIGURES = PROFILE_TYPES * PROFILE_ROWS };

const uint32_t profile_rows[PROFILE_ROWS] = {64, 512, 4096, 32768};

/* Two Zen 5 cores: products by the best library measured there; copies and AdamW on arrays larger than any cache, the
 * triad with non-temporal writes; attention, always computed in fp32, with heads of 64 and 256 to 1024 tokens. */
static const struct profile cpu = {
    .matmul_flops = {[NUMBER_FP32] = {300e9, 490e9, 490e9, 490e9}, [NUMBER_BF16] = {500e9, 980e9, 980e9, 980e9}},
    .attention_flops = {{{270e9, 270e9}}, {{300e9, 300e9}}},
    .link_bytes_per_s = 22e9,
    .memory_bytes_per_s = 59e9,
    .update_parameters_per_s = 2.1e9,
};

/* An H100 as it was measured, with cuDNN 9.14 (tests/gpu/RECORD.md): products 4,096 wide, attention of heads of 64 and 128
 * in rows of 1 to 8 Ki tokens, its link, its memory. The plain kernel varies with the head, from 5 to 18 TFLOP/s. AdamW as on
 * its host of 16 virtual cores, whose memory moves 64 GB/s, at 28 bytes per parameter. A call as in a step: 26,000 of GPT-2
 * 1.5 B, 220 ms more than their work. */
static const struct profile cuda = {
    .matmul_flops = {[NUMBER_FP32] = {3.2e12, 28e12, 50e12, 50e12}, [NUMBER_BF16] = {200e12, 640e12, 660e12, 660e12}},
    .attention_flops = {{[ATTENTION_PLAIN] = {11.8e12, 10e12},
                         [ATTENTION_TENSOR] = {11.8e12, 300e12},
                         [ATTENTION_DRAWING] = {11.8e12, 100e12},
                         [ATTENTION_LIBRARY] = {11.8e12, 480e12}},
                        {[ATTENTION_PLAIN] = {7.4e12, 8e12},
                         [ATTENTION_TENSOR] = {7.4e12, 215e12},
                         [ATTENTION_DRAWING] = {7.4e12, 98e12},
                         [ATTENTION_LIBRARY] = {7.4e12, 250e12}}},
    .attention = PLAN_ATTENTION_SCORES,
    .link_bytes_per_s = 53e9,
    .memory_bytes_per_s = 2.6e12,
    .update_parameters_per_s = 2.3e9,
    .host_bytes_per_s = 64e9,
    .call_s = 8e-6,
};

const struct profile *profile_default(const char *device)
{
    return device_name_is(device, "cpu") ? &cpu : device_name_is(device, "cuda") ? &cuda : NULL;
}

/* The figures other than matmul_flops. */
static const struct figure {
    const char *name;
    size_t offset;
} figures[] = {
    {"link_bytes_per_s", offsetof(struct profile, link_bytes_per_s)},
    {"memory_bytes_per_s", offsetof(struct profile, memory_bytes_per_s)},
    {"update_parameters_per_s", offsetof(struct profile, update_parameters_per_s)},
};
enum { N_FIGURES = sizeof figures / sizeof *figures };

static const char *const directions[PROFILE_DIRECTIONS] = {"forward", "backward"};
static const char *const paths[ATTENTION_PATHS] = {[ATTENTION_PLAIN] = "plain",
                                                   [ATTENTION_TENSOR] = "tensor",
                                                   [ATTENTION_DRAWING] = "dropout",
                                                   [ATTENTION_LIBRARY] = "cudnn"};
static const char *const ways[PLAN_ATTENTIONS] = {[PLAN_ATTENTION_OWN] = "own",
                                                  [PLAN_ATTENTION_SCORES] = "scores",
                                                  [PLAN_ATTENTION_TWICE] = "twice",
                                                  [PLAN_ATTENTION_ORDERED] = "ordered"};

const char *profile_path_name(enum attention_path path)
{
    return paths[path];
}

static double figure_of(const struct profile *profile, const struct figure *figure)
{
    double value;

    memcpy(&value, (const char *)profile + figure->offset, sizeof value);
    return value;
}

static int check_figure(const char *name, const char *of, double value, struct error *err)
{
    if (value >= 1 && value <= most_a_second)
        return 0;
    return error_set(err, -EINVAL, "%s%s is %g: it must be from 1 to %g", name, of, value, most_a_second);
}

static int check_attention(const struct profile *profile, int direction, int path, struct error *err)
{
    int rc = 0;

    for (int i = 0; !rc && i < PROFILE_TYPES; i++) {
        const double flops = profile->attention_flops[direction][path][i];
        char of[64];
        snprintf(of, sizeof of, ".%s.%s.%s", paths[path], directions[direction], number_name((enum number_type)i));
        rc = flops == 0 && path != ATTENTION_PLAIN ? 0 : check_figure("attention_flops", of, flops, err);
    }
    return rc;
}

int profile_check(const struct profile *profile, struct error *err)
{
    int rc = 0;

    for (int i = 0; !rc && i < MATMUL_FIGURES; i++) {
        char of[32];
        snprintf(of, sizeof of, ".%s.%u", number_name((enum number_type)(i / PROFILE_ROWS)),
                 profile_rows[i % PROFILE_ROWS]);
        rc = check_figure("matmul_flops", of, profile->matmul_flops[i / PROFILE_ROWS][i % PROFILE_ROWS], err);
    }
    for (int i = 0; !rc && i < PROFILE_DIRECTIONS * ATTENTION_PATHS; i++)
        rc = check_attention(profile, i / ATTENTION_PATHS, i % ATTENTION_PATHS, err);
    for (int i = 0; !rc && i < N_FIGURES; i++)
        rc = check_figure(figures[i].name, "", figure_of(profile, &figures[i]), err);
    if (!rc && profile->host_bytes_per_s != 0)
        rc = check_figure("host_bytes_per_s", "", profile->host_bytes_per_s, err);
    if (!rc && !(profile->call_s >= 0 && profile->call_s <= 1))
        rc = error_set(err, -EINVAL, "call_s is %g: it must be from 0 to 1", profile->call_s);
    return rc;
}

double profile_flops(const struct profile *profile, enum number_type type, double rows)
{
    const double *rates = profile->matmul_flops[type];

    if (rows <= profile_rows[0])
        return rates[0];
    for (int i = 1; i < PROFILE_ROWS; i++) {
        const double low = profile_rows[i - 1], high = profile_rows[i];
        if (rows < high)
            return rates[i - 1] + (rates[i] - rates[i - 1]) * log(rows / low) / log(high / low);
    }
    return rates[PROFILE_ROWS - 1];
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
static int read_number(double *out, const json_t *object, const char *name, struct error *err)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_number(value))
        return error_set(err, -EINVAL, "%s is %s", name, value ? "not a number" : "missing");
    *out = json_number_value(value);
    return 0;
}

static int refuse_unknown(json_t *object, size_t n_known, const char *const *known, struct error *err)
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

static int read_rates(double rates[PROFILE_ROWS], json_t *object, const char *number, struct error *err)
{
    char names[PROFILE_ROWS][12];
    const char *known[PROFILE_ROWS];
    int rc = json_is_object(object) ? 0 : error_set(err, -EINVAL, "it must be an object, by rows");

    for (int i = 0; i < PROFILE_ROWS; i++) {
        snprintf(names[i], sizeof names[i], "%u", profile_rows[i]);
        known[i] = names[i];
        if (!rc)
            rc = read_number(&rates[i], object, names[i], err);
    }
    if (!rc)
        rc = refuse_unknown(object, PROFILE_ROWS, known, err);
    if (rc) {
        error_prefix(err, number);
        error_prefix(err, "matmul_flops");
    }
    return rc;
}

static int read_matmul(struct profile *out, json_t *object, struct error *err)
{
    const char *known[PROFILE_TYPES];
    int rc = json_is_object(object) ? 0 : error_set(err, -EINVAL, "matmul_flops is missing or not an object");

    for (int i = 0; i < PROFILE_TYPES; i++) {
        known[i] = number_name((enum number_type)i);
        if (!rc)
            rc = read_rates(out->matmul_flops[i], json_object_get(object, known[i]), known[i], err);
    }
    return rc ? rc : refuse_unknown(object, PROFILE_TYPES, known, err);
}

/* Uses the default profile's fractions of the rate of products with many rows. */
static void derive_attention(struct profile *out, const char *device)
{
    const struct profile *otherwise = profile_default(device);

    for (int i = 0; otherwise && i < PROFILE_DIRECTIONS * ATTENTION_PATHS; i++)
        for (int j = 0; j < PROFILE_TYPES; j++) {
            const double of = otherwise->attention_flops[i / ATTENTION_PATHS][i % ATTENTION_PATHS][j] /
                              otherwise->matmul_flops[j][PROFILE_ROWS - 1];
            out->attention_flops[i / ATTENTION_PATHS][i % ATTENTION_PATHS][j] =
                of > 0 ? fmax(1, of * out->matmul_flops[j][PROFILE_ROWS - 1]) : 0;
        }
}

static int read_direction(double rates[PROFILE_TYPES], json_t *object, const char *direction, struct error *err)
{
    const char *known[PROFILE_TYPES];
    int rc = json_is_object(object) ? 0 : error_set(err, -EINVAL, "it must be an object, by type");

    for (int i = 0; i < PROFILE_TYPES; i++) {
        known[i] = number_name((enum number_type)i);
        if (!rc)
            rc = read_number(&rates[i], object, known[i], err);
    }
    if (!rc)
        rc = refuse_unknown(object, PROFILE_TYPES, known, err);
    if (rc)
        error_prefix(err, direction);
    return rc;
}

static int read_path(struct profile *out, int path, json_t *object, struct error *err)
{
    int rc = json_is_object(object) ? 0 : error_set(err, -EINVAL, "it must be an object, by direction");

    for (int i = 0; !rc && i < PROFILE_DIRECTIONS; i++)
        rc = read_direction(out->attention_flops[i][path], json_object_get(object, directions[i]), directions[i], err);
    return rc ? rc : refuse_unknown(object, PROFILE_DIRECTIONS, directions, err);
}

static int read_paths(struct profile *out, json_t *object, struct error *err)
{
    int rc = json_is_object(object) ? 0 : error_set(err, -EINVAL, "it must be an object, by path");

    if (!rc && json_object_get(object, directions[PROFILE_FORWARD]))
        rc = error_set(err, -EINVAL, "an older eps wrote one rate for all paths");
    for (int i = 0; !rc && i < ATTENTION_PATHS; i++)
        if (json_object_get(object, paths[i])) {
            rc = read_path(out, i, json_object_get(object, paths[i]), err);
            if (rc)
                error_prefix(err, paths[i]);
        }
    return rc ? rc : refuse_unknown(object, ATTENTION_PATHS, paths, err);
}

/* A CPU has one path. */
static bool has_paths(const char *device)
{
    return !device_name_is(device, "cpu");
}

static int read_attention(struct profile *out, json_t *root, const char *device, struct error *err)
{
    json_t *rates = json_object_get(root, "attention_flops"), *method = json_object_get(root, "attention");
    const char *way = method ? json_string_value(method) : ways[PLAN_ATTENTION_OWN];
    int i = 0;

    derive_attention(out, device);
    const int rc = !rates              ? 0
                   : has_paths(device) ? read_paths(out, rates, err)
                                       : read_path(out, ATTENTION_PLAIN, rates, err);
    if (rc) {
        error_prefix(err, "attention_flops");
        return rc;
    }
    while (i < PLAN_ATTENTIONS && (!way || strcmp(ways[i], way) != 0))
        i++;
    if (i == PLAN_ATTENTIONS)
        return error_set(err, -EINVAL, "attention must be \"own\", \"scores\", \"twice\" or \"ordered\"");
    out->attention = (enum plan_attention)i;
    return 0;
}

static int read_object(struct profile *out, json_t *root, const char *device, struct error *err)
{
    static const char *const known[] = {"device",
                                        "matmul_flops",
                                        "attention_flops",
                                        "attention",
                                        "link_bytes_per_s",
                                        "memory_bytes_per_s",
                                        "update_parameters_per_s",
                                        "host_bytes_per_s",
                                        "call_s",
                                        "products"};
    const char *named = json_string_value(json_object_get(root, "device"));

    if (!json_is_object(root))
        return error_set(err, -EINVAL, "not a JSON object");
    if (!named || strcmp(named, device) != 0)
        return error_set(err, -EINVAL, "it is a profile of device '%.40s', not of '%s'", named ? named : "", device);
    int rc = read_matmul(out, json_object_get(root, "matmul_flops"), err);
    if (!rc)
        rc = read_attention(out, root, device, err);
    out->host_bytes_per_s = 0;
    if (!rc && json_object_get(root, "host_bytes_per_s"))
        rc = read_number(&out->host_bytes_per_s, root, "host_bytes_per_s", err);
    out->call_s = profile_default(device) ? profile_default(device)->call_s : 0;
    if (!rc && json_object_get(root, "call_s"))
        rc = read_number(&out->call_s, root, "call_s", err);
    if (!rc)
        rc = products_from_json(&out->products, json_object_get(root, "products"), err);
    for (int i = 0; !rc && i < N_FIGURES; i++) {
        double value = 0;
        rc = read_number(&value, root, figures[i].name, err);
        if (!rc)
            memcpy((char *)out + figures[i].offset, &value, sizeof value);
    }
    if (!rc)
        rc = refuse_unknown(root, sizeof known / sizeof *known, known, err);
    return rc ? rc : profile_check(out, err);
}

/* All of a small regular file, 0-terminated. */
static int read_text(char text[MAX_FILE_BYTES + 1], size_t *n, const char *path, struct error *err)
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

static int read_file(struct profile *out, const char *path, const char *device, struct error *err)
{
    char text[MAX_FILE_BYTES + 1];
    json_error_t where;
    size_t n = 0;
    int rc = read_text(text, &n, path, err);

    if (rc)
        return rc;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return error_set(err, -EINVAL, "not JSON at line %d, column %d: %s", where.line, where.column, where.text);
    rc = read_object(out, root, device, err);
    json_decref(root);
    return rc;
}

int profile_read(struct profile *out, const char *path, const char *device, struct error *err)
{
    struct profile profile = {0};
    const int rc = read_file(&profile, path, device, err);

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
    const int rc = profile_read(out, path, device, err);
    if (measured)
        *measured = rc == 0;
    if (rc && rc != -ENOENT)
        error_append(err, "; measure again with eps bench, or remove it");
    return rc == -ENOENT ? 0 : rc;
}

static json_t *path_to_json(const struct profile *profile, int path)
{
    json_t *by_direction = json_object();

    for (int i = 0; i < PROFILE_DIRECTIONS; i++) {
        json_t *rates = json_object();
        for (int j = 0; j < PROFILE_TYPES; j++)
            json_object_set_new(rates, number_name((enum number_type)j),
                                json_real(profile->attention_flops[i][path][j]));
        json_object_set_new(by_direction, directions[i], rates);
    }
    return by_direction;
}

static json_t *paths_to_json(const struct profile *profile)
{
    json_t *by_path = json_object();

    for (int i = 0; i < ATTENTION_PATHS; i++)
        json_object_set_new(by_path, paths[i], path_to_json(profile, i));
    return by_path;
}

static json_t *to_json(const struct profile *profile, const char *device)
{
    json_t *root = json_pack("{s:s, s:{}}", "device", device, "matmul_flops"),
           *matmul = json_object_get(root, "matmul_flops");

    for (int i = 0; i < PROFILE_TYPES; i++) {
        json_t *rates = json_object();
        for (int j = 0; j < PROFILE_ROWS; j++) {
            char rows[12];
            snprintf(rows, sizeof rows, "%u", profile_rows[j]);
            json_object_set_new(rates, rows, json_real(profile->matmul_flops[i][j]));
        }
        json_object_set_new(matmul, number_name((enum number_type)i), rates);
    }
    json_object_set_new(root, "attention_flops",
                        has_paths(device) ? paths_to_json(profile) : path_to_json(profile, ATTENTION_PLAIN));
    if (has_paths(device))
        json_object_set_new(root, "attention", json_string(ways[profile->attention]));
    for (int i = 0; i < N_FIGURES; i++)
        json_object_set_new(root, figures[i].name, json_real(figure_of(profile, &figures[i])));
    if (profile->host_bytes_per_s != 0)
        json_object_set_new(root, "host_bytes_per_s", json_real(profile->host_bytes_per_s));
    json_object_set_new(root, "call_s", json_real(profile->call_s));
    if (profile->products.version)
        json_object_set_new(root, "products", products_to_json(&profile->products));
    return root;
}

/* Opens what will be renamed to path. A link in its place may be another user's: it is not followed. */
static int open_partial(char partial[PATH_MAX], const char *path, struct error *err)
{
    struct stat st;

    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return error_set(err, -EINVAL, "%s: not a regular file: name another", path);
    if (snprintf(partial, PATH_MAX, "%s.partial", path) >= PATH_MAX)
        return error_set(err, -ENAMETOOLONG, "%.200s: name too long", path);
    path_make_parents(path); /* an error shows when the file is opened */
    const int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd >= 0)
        return fd;
    return error_set(err, -errno, "%s: %s", partial,
                     errno == ELOOP ? PATH_IS_A_LINK ": move it away" : strerror(errno));
}

int profile_may_write(const char *path, struct error *err)
{
    char partial[PATH_MAX];
    const int fd = open_partial(partial, path, err);

    if (fd < 0)
        return fd;
    close(fd);
    unlink(partial);
    return 0;
}

int profile_write(const struct profile *profile, const char *path, const char *device, struct error *err)
{
    char partial[PATH_MAX];
    const int fd = open_partial(partial, path, err);
    int rc;

    if (fd < 0)
        return fd;
    json_t *root = to_json(profile, device);
    errno = EIO;
    rc = !root ? -ENOMEM : json_dumpfd(root, fd, JSON_INDENT(2)) ? -errno : 0;
    json_decref(root);
    if (!rc && (write(fd, "\n", 1) != 1 || fsync(fd)))
        rc = errno ? -errno : -EIO;
    close(fd);
    if (!rc && rename(partial, path))
        rc = -errno;
    if (!rc)
        return 0;
    unlink(partial);
    return error_set(err, rc, "%s could not be written: %s", path, strerror(-rc));
}
