#include "tests/kit/outputs.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/adapter.h"
#include "proto/model/file/checkpoint.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *outputs_make(const char *name)
{
    ck_assert_int_eq(mkdir(name, 0700), 0);
    return name;
}

const char *outputs_names(const char *path)
{
    static char names[500];
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);

    ck_assert_int_ge(n, 0);
    names[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.' && strcmp(entries[i]->d_name, "report.svg") != 0) {
            strncat(names, entries[i]->d_name, sizeof names - strlen(names) - 2);
            strcat(names, " ");
        }
        free(entries[i]);
    }
    free(entries);
    return names;
}

void outputs_write(const char *directory, const char *name, const char *content)
{
    char path[300];

    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(content, file);
    ck_assert_int_eq(fclose(file), 0);
}

void outputs_check_file(const char *path, const char *content)
{
    char *bytes = processes_read(path);

    ck_assert_str_eq(bytes, content);
    free(bytes);
}

static json_t *config_of(const char *directory)
{
    char path[512];

    snprintf(path, sizeof path, "%s/config.json", directory);
    json_t *config = json_load_file(path, 0, NULL);
    ck_assert_msg(config, "%s is no JSON", path);
    return config;
}

void outputs_check_untied(const char *directory, const char *other)
{
    json_t *got = config_of(directory), *want = config_of(other);

    json_object_set_new(want, "tie_word_embeddings", json_false());
    ck_assert(json_equal(got, want));
    json_decref(got), json_decref(want);
}

void outputs_check_same(const char *directory, const char *other, const char *name)
{
    char command[700];

    snprintf(command, sizeof command, "cmp '%s/%s' '%s/%s'", directory, name, other, name);
    ck_assert_int_eq(system(command), 0);
}

/* Weights, or an adapter's. */
static void check_same_weights(const char *directory, const char *other)
{
    char path[700];

    snprintf(path, sizeof path, "%s/" ADAPTER_WEIGHTS, directory);
    outputs_check_same(directory, other, access(path, F_OK) == 0 ? ADAPTER_WEIGHTS : CHECKPOINT_WEIGHTS);
}

void outputs_check_same_state(const char *step, const char *other)
{
    check_same_weights(step, other);
    outputs_check_same(step, other, CHECKPOINT_MOMENTS);
    outputs_check_same(step, other, CHECKPOINT_TRAINING);
}

void outputs_check_same_latest(const char *out, const char *other)
{
    char one[300], two[300];

    snprintf(one, sizeof one, "%s/latest", out);
    snprintf(two, sizeof two, "%s/latest", other);
    check_same_weights(one, two);
    outputs_check_same(one, two, CHECKPOINT_MOMENTS);
}

static json_t *read_lines(const char *out)
{
    static const char *const leave[] = {"time", "step_ms", "tokens_per_s", "memory", "device_peak_bytes", "host_bytes"};
    json_t *lines = json_array();
    char path[300], *line;

    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    char *text = processes_read(path), *rest = text;
    while ((line = strsep(&rest, "\n")) && *line) {
        json_t *object = json_loads(line, 0, NULL);
        ck_assert_msg(object != NULL, "%s", line);
        for (size_t i = 0; i < sizeof leave / sizeof *leave; i++)
            json_object_del(object, leave[i]);
        json_array_append_new(lines, object);
    }
    free(text);
    return lines;
}

static bool has_no_loss(const json_t *line)
{
    return json_is_null(json_object_get(line, "loss"));
}

void outputs_check_same_metrics(const char *out, const char *other, size_t n_steps)
{
    json_t *first = read_lines(out), *second = read_lines(other);
    size_t n_without = 0;

    ck_assert_uint_eq(json_array_size(first), n_steps);
    ck_assert_uint_eq(json_array_size(second), n_steps);
    for (size_t i = 0; i < n_steps; i++) { /* keys in the same order */
        if (has_no_loss(json_array_get(first, i)) && !has_no_loss(json_array_get(second, i)) && ++n_without <= 2)
            continue;
        char *a = json_dumps(json_array_get(first, i), 0), *b = json_dumps(json_array_get(second, i), 0);
        ck_assert_str_eq(a, b);
        free(a);
        free(b);
    }
    json_decref(first);
    json_decref(second);
}

void outputs_check_held_out(const char *out, const char *options)
{
    json_t *last = expect_json(print("tail -n 1 %s/metrics.jsonl", out), 0);
    json_t *alone = expect_json(print("eps eval --model %s/latest %s --json", out, options), 0);

    ck_assert_double_eq_tol(json_number_at(alone, "loss"), json_number_at(last, "eval_loss"), 1e-6);
    json_decref(last), json_decref(alone);
}

uint64_t outputs_latest(const char *out)
{
    char path[300], target[64] = "";
    uintmax_t step = 0;
    int end = 0;

    snprintf(path, sizeof path, "%s/latest", out);
    ck_assert_int_gt(readlink(path, target, sizeof target - 1), 0);
    ck_assert_msg(sscanf(target, "step-%ju%n", &step, &end) == 1 && target[end] == '\0', "%s", target);
    return step;
}

void outputs_check_whole(const char *out, uint64_t step)
{
    char path[300];
    struct checkpoint checkpoint;
    struct error err = {""};

    snprintf(path, sizeof path, "%s/step-%ju", out, (uintmax_t)step);
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    ck_assert_msg(fd >= 0, "%s", path);
    ck_assert_msg(checkpoint_read(&checkpoint, fd, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(checkpoint.step, step);
    ck_assert_msg(checkpoint_check(&checkpoint, fd, NULL, NULL, NULL, &err) == 0, "%s", err.text);
    checkpoint_free(&checkpoint);
    close(fd);
    ck_assert_uint_eq(outputs_latest(out), step);
}

void outputs_check_python(const char *arguments)
{
    const char *python = getenv("EPS_ORACLE_PYTHON");

    if (python)
        ck_assert_int_eq(system(print("%s %s/oracle/check_saved.py %s", python, TESTS_DIR, arguments)), 0);
}

void outputs_open_tensors(struct outputs_tensors *out, const char *directory, const char *name)
{
    struct error err = {""};

    out->fd = open(processes_path(print("%s/%s", directory, name)), O_RDONLY | O_CLOEXEC);
    ck_assert_msg(out->fd >= 0, "%s/%s", directory, name);
    ck_assert_msg(safetensors_open(&out->file, out->fd, &err) == 0, "%s", err.text);
}

void outputs_close_tensors(struct outputs_tensors *tensors)
{
    safetensors_close(&tensors->file);
    close(tensors->fd);
}

const float *outputs_tensor(const struct outputs_tensors *tensors, const char *name, uint64_t *n)
{
    static float values[2][8192];
    static unsigned turn;
    const struct safetensors_entry *entry = safetensors_find(&tensors->file, name);
    float *out = values[turn++ % 2];

    ck_assert_msg(entry && entry->n <= COUNT(values[0]), "%s", name);
    *n = entry->n;
    ck_assert_int_eq(safetensors_read(out, entry, 0, *n, NULL), 0);
    return out;
}
