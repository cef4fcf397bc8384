/* A run of a million steps has hundreds of megabytes of lines, and a curve on a screen some hundred columns: lines are
 * read at places that are spread over the file, so that eps top begins at once. What is not a line of a later step is
 * passed over: the place may be in the middle of one, and the run may be writing the last. */
#include "tools/commands/top/curve.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINE = 64 << 10, PLACES = SERIES_MEANS };

/* NULL: it is not there, not readable, or no regular file. */
static FILE *top_curve_open(const char *directory, off_t *size)
{
    char path[4200];
    struct stat st;

    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        *size = st.st_size;
        FILE *file = fdopen(fd, "r");
        if (file)
            return file;
    }
    close(fd);
    return NULL;
}

static void top_curve_add(struct top_curve *curve, const char *line)
{
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    const json_int_t step = json_integer_value(json_object_get(object, "step"));
    const json_t *loss = json_object_get(object, "loss");

    if (step > 0 && (uint64_t)step > curve->last) {
        curve->last = (uint64_t)step;
        series_add(&curve->losses, (double)step, json_is_number(loss) ? json_number_value(loss) : NAN);
    }
    json_decref(object);
}

/* From the beginning of a line to that of the first one behind a place: at most so many lines as there are places. */
static void top_curve_read(struct top_curve *curve, const char *directory)
{
    off_t size = 0;
    FILE *file = top_curve_open(directory, &size);
    char *line = file ? malloc(MAX_LINE) : NULL;
    off_t at = 0;

    while (line && fgets(line, MAX_LINE, file)) {
        top_curve_add(curve, line);
        const off_t next = at + size / PLACES;
        at = ftello(file);
        if (next <= at)
            continue;
        if (fseeko(file, next - 1, SEEK_SET) || !fgets(line, MAX_LINE, file))
            break;
        at = ftello(file);
    }
    free(line);
    if (file)
        fclose(file);
}

void top_curve_begin(struct top_curve *curve, uint32_t job, const char *out)
{
    if (job == 0 || (curve->job == job && strcmp(curve->out, out) == 0)) /* between two jobs the last one's stays */
        return;
    *curve = (struct top_curve){.job = job};
    snprintf(curve->out, sizeof curve->out, "%s", out);
    if (*out)
        top_curve_read(curve, out);
}

void top_curve_follow(struct top_curve *curve, const struct eps_recent *recent)
{
    for (size_t i = 0; i < recent->n_losses; i++) {
        const uint64_t step = recent->step - (recent->n_losses - 1 - i);
        if (step <= curve->last)
            continue;
        curve->last = step;
        series_add(&curve->losses, (double)step, (double)recent->losses[i]);
    }
}
