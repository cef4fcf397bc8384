/* hf downloads, resumes, verifies and knows the user's token: nothing of that is done again here. What it leaves is one
 * directory, which holds the files of a commit, and which it names on its last line of output; each of its versions has
 * another form of that line. The files of other programs' models are in the same cache, and found without hf.
 *
 * No shell reads a name: hf is started with a list of arguments, and only names in the hub's own characters get so
 * far. */
#include "tools/hub.h"

#include "client/eps.h"
#include "tools/screen/terminal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_NAME = 96, MOST_ARGUMENTS = 24, COMMIT_DIGITS = 40, COMMAND_BYTES = 400 };

/* What fits none of these is another format of the same weights, or no part of the model. The first of them are of
 * files without weights. */
static const char *const patterns[] = {
    "*.json", "*.txt", "*.jinja", "tokenizer.model", "model*.safetensors", "adapter_model.safetensors"};
enum { N_PATTERNS = sizeof patterns / sizeof *patterns, N_SMALL = 4 };

/* A half of a name: the hub has no "..", "--", nor "-" or "." at an end. So none is an option, or leads elsewhere. */
static bool hub_is_part(const char *text, size_t n)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", marks[] = "-.";

    for (size_t i = 0; i < n; i++) {
        const bool letter = strchr(letters, text[i]) != NULL, mark = strchr(marks, text[i]) != NULL;
        if (!letter && (!mark || i == 0 || i == n - 1 || text[i - 1] == text[i]))
            return false;
    }
    return n > 0;
}

bool hub_is_name(const char *text)
{
    const char *slash = strchr(text, '/');

    return slash && strlen(text) <= MOST_NAME && hub_is_part(text, (size_t)(slash - text)) &&
           hub_is_part(slash + 1, strlen(slash + 1));
}

/* Whether a name means a model of the hub here: a path that is there, or could be, means a file. */
static bool hub_is_meant(const char *text)
{
    char first[MOST_NAME + 1];

    if (!hub_is_name(text) || access(text, F_OK) == 0)
        return false;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(text, "/"), text);
    return access(first, F_OK) != 0;
}

/* ---- the cache ---- */

/* As huggingface_hub finds it. False: nothing says where it is. */
static bool hub_cache(char out[PATH_MAX])
{
    static const struct {
        const char *variable, *folder;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value)
            return snprintf(out, PATH_MAX, "%s%s", value, places[i].folder) < PATH_MAX;
    }
    return false;
}

/* The model's directory in the cache: models--ORG--NAME. */
static bool hub_place(char out[PATH_MAX], const char *name)
{
    char cache[PATH_MAX];
    const int organisation = (int)strcspn(name, "/");

    return hub_cache(cache) && snprintf(out, PATH_MAX, "%s/models--%.*s--%s", cache, organisation, name,
                                        name + organisation + 1) < PATH_MAX;
}

static bool hub_has(const char *directory, const char *file)
{
    char path[PATH_MAX];

    return snprintf(path, sizeof path, "%s/%s", directory, file) < (int)sizeof path && access(path, R_OK) == 0;
}

static bool hub_has_safetensors(const char *directory)
{
    DIR *entries = opendir(directory);
    const struct dirent *entry;
    bool found = false;

    while (entries && !found && (entry = readdir(entries)))
        found = strstr(entry->d_name, ".safetensors") && !strstr(entry->d_name, ".json");
    if (entries)
        closedir(entries);
    return found;
}

/* All weights are there: each file that an index names, or any. A download that was interrupted lacks some. */
static bool hub_has_weights(const char *directory)
{
    char path[PATH_MAX];
    const char *tensor;
    json_t *file;
    bool all = true;

    if (snprintf(path, sizeof path, "%s/model.safetensors.index.json", directory) >= (int)sizeof path)
        return false;
    if (access(path, F_OK) != 0)
        return hub_has_safetensors(directory);
    json_t *index = json_load_file(path, 0, NULL);
    json_object_foreach(json_object_get(index, "weight_map"), tensor, file)
    {
        all = all && json_is_string(file) && hub_has(directory, json_string_value(file));
    }
    all = all && index;
    json_decref(index);
    return all;
}

static bool hub_is_whole(const char *directory, enum hub_files files)
{
    return (hub_has(directory, "config.json") || hub_has(directory, "adapter_config.json")) &&
           (files == HUB_NO_WEIGHTS || hub_has_weights(directory));
}

/* The snapshot that refs/main names. False: it is not there, or lacks files. */
static bool hub_find_cached(struct hub *hub, const char *name, enum hub_files files)
{
    char place[PATH_MAX], path[PATH_MAX], commit[COMMIT_DIGITS + 1] = "";

    if (!hub_place(place, name) || snprintf(path, sizeof path, "%s/refs/main", place) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "r");
    const bool read = file && fgets(commit, sizeof commit, file);
    if (file)
        fclose(file);
    return read && strspn(commit, "0123456789abcdef") == COMMIT_DIGITS &&
           snprintf(hub->directory, sizeof hub->directory, "%s/snapshots/%s", place, commit) <
               (int)sizeof hub->directory &&
           hub_is_whole(hub->directory, files);
}

/* ---- hf ---- */

static bool hub_has_program(void)
{
    const char *path = getenv("PATH");
    char program[PATH_MAX];

    for (size_t n; path && *path; path += n + (path[n] == ':')) {
        n = strcspn(path, ":");
        if (n > 0 && snprintf(program, sizeof program, "%.*s/hf", (int)n, path) < (int)sizeof program &&
            access(program, X_OK) == 0)
            return true;
    }
    return false;
}

/* hf download NAME --include PATTERN ..., which ends with NULL and borrows name. */
static void hub_arguments(const char *out[MOST_ARGUMENTS], const char *name, enum hub_files files)
{
    size_t n = 0;

    out[n++] = "hf", out[n++] = "download", out[n++] = name;
    for (size_t i = 0; i < (files == HUB_NO_WEIGHTS ? N_SMALL : N_PATTERNS); i++)
        out[n++] = "--include", out[n++] = patterns[i];
    out[n] = NULL;
}

/* The same as a line to paste. */
static void hub_line(char out[COMMAND_BYTES], const char *name, enum hub_files files)
{
    const char *arguments[MOST_ARGUMENTS];
    char word[64];
    size_t used = 0;

    hub_arguments(arguments, name, files);
    for (size_t i = 0; arguments[i] && used < COMMAND_BYTES; i++)
        used += (size_t)snprintf(out + used, COMMAND_BYTES - used, "%s%s", i ? " " : "",
                                 strchr(arguments[i], '*') ? eps_quote(word, sizeof word, arguments[i]) : arguments[i]);
}

/* The last line that is not empty, without colours and without what stands before a path: "path: /..." on a terminal,
 * "path=/..." elsewhere, and the path alone before huggingface_hub 1.11. In place. */
static char *hub_last_path(char *text)
{
    static const char *const heads[] = {"path: ", "path="};
    char *line = text, *to = text;

    for (char *from = text; *from;) {
        if (from[0] == '\033' && from[1] == '[') {
            from += 2 + strcspn(from + 2, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
            from += *from != 0;
        } else {
            *to++ = *from++;
        }
    }
    while (to > text && strchr(" \r\n", to[-1]))
        to--;
    *to = 0;
    if ((to = strrchr(text, '\n')))
        line = to + 1;
    line += strspn(line, " \r");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (strncmp(line, heads[i], strlen(heads[i])) == 0)
            return line + strlen(heads[i]);
    return line;
}

/* Starts it with its output in a pipe, and with no input. Its errors and its progress go where this program's go. */
static int hub_start(pid_t *pid, int *from, const char *name, enum hub_files files)
{
    const char *arguments[MOST_ARGUMENTS];
    posix_spawn_file_actions_t actions;
    int ends[2];

    hub_arguments(arguments, name, files);
    if (pipe2(ends, O_CLOEXEC))
        return -errno;
    int rc = posix_spawn_file_actions_init(&actions);
    if (!rc) {
        rc = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (!rc)
            rc = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        if (!rc)
            rc = posix_spawnp(pid, arguments[0], &actions, NULL, (char **)(uintptr_t)arguments, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(ends[1]);
    *from = ends[0];
    if (rc)
        close(ends[0]);
    return -rc;
}

/* All that is read; of more than there is room for, the end. */
static void hub_read(char *out, size_t cap, int fd)
{
    size_t n = 0;
    ssize_t got;

    while ((got = read(fd, out + n, cap - 1 - n)) > 0 || (got < 0 && errno == EINTR)) {
        n += got > 0 ? (size_t)got : 0;
        if (n == cap - 1)
            memmove(out, out + cap / 2, n -= cap / 2);
    }
    out[n] = 0;
}

/* hub_download's exit status and sentence, after hf's own words. */
static int hub_fail(const struct command *command, const char *name, int status)
{
    char sentence[400];

    if (WIFSIGNALED(status)) {
        snprintf(sentence, sizeof sentence, "hf download %s was ended by signal %d; the same command goes on with it",
                 name, WTERMSIG(status));
        arguments_fail(command, 0, sentence);
        return 128 + WTERMSIG(status);
    }
    snprintf(sentence, sizeof sentence,
             "hf download %s failed with exit status %d; if the model asks for its licence to be accepted, do so at "
             "https://huggingface.co/%s, then: hf auth login",
             name, WEXITSTATUS(status), name);
    return arguments_fail(command, 0, sentence);
}

/* Sets hub->directory. Returns -1, or the exit status after a sentence. */
static int hub_download(struct hub *hub, const char *name, enum hub_files files, const struct command *command)
{
    char said[8192], sentence[PATH_MAX + 300];
    int status = 0, from = -1;
    pid_t pid;

    const int rc = hub_start(&pid, &from, name, files);
    if (rc) {
        snprintf(sentence, sizeof sentence, "hf did not start: %s%s", strerror(-rc),
                 rc == -ENOENT ? "; it comes with huggingface_hub: pip install huggingface_hub" : "");
        return arguments_fail(command, rc, sentence);
    }
    hub_read(said, sizeof said, from);
    close(from);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return hub_fail(command, name, status);
    const char *path = hub_last_path(said);
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
        snprintf(sentence, sizeof sentence, "hf download %s ended well, but named no directory: '%.200s'", name, path);
        return arguments_fail(command, 0, sentence);
    }
    if (!hub_is_whole(path, files)) {
        snprintf(sentence, sizeof sentence,
                 "hf download %s gave no %s in %s: eps reads config.json and *.safetensors; does the model have them, "
                 "and is huggingface_hub 1.0 or newer?",
                 name, hub_is_whole(path, HUB_NO_WEIGHTS) ? "*.safetensors" : "config.json", path);
        return arguments_fail(command, 0, sentence);
    }
    snprintf(hub->directory, sizeof hub->directory, "%s", path);
    return -1;
}

/* ---- asking ---- */

/* -1: the user agrees; else the exit status. */
static int hub_ask(const struct hub *hub, const char *name, enum hub_files files, const struct command *command)
{
    char line[COMMAND_BYTES], place[PATH_MAX], sentence[PATH_MAX + COMMAND_BYTES + 200], answer[16] = "";
    const bool terminal = isatty(STDIN_FILENO) == 1 && terminal_is(stderr);

    hub_line(line, name, files);
    if (!hub_place(place, name))
        snprintf(place, sizeof place, "the cache of the Hugging Face hub");
    if (!hub->yes && !terminal) {
        snprintf(sentence, sizeof sentence,
                 "--model %s is not here: --yes downloads it into %s, by: %s; eps pull %s does only that", name, place,
                 line, name);
        return arguments_fail(command, -EDOM, sentence);
    }
    fprintf(stderr, "%s: --model %s is not here. Into %s:\n  %s\n", command->name, name, place, line);
    if (hub->yes)
        return -1;
    fprintf(stderr, "Download it? [y/N] ");
    if (fgets(answer, sizeof answer, stdin) && (*answer == 'y' || *answer == 'Y'))
        return -1;
    snprintf(sentence, sizeof sentence, "--model %s is not here, and is not downloaded", name);
    return arguments_fail(command, 0, sentence);
}

int hub_find(struct hub *hub, const char **model, enum hub_files files, const struct command *command)
{
    const char *const name = *model;
    int status = -1;

    if (!name || !hub_is_meant(name))
        return -1;
    if (!hub_find_cached(hub, name, files)) {
        if (!hub_has_program())
            return -1;
        status = hub_ask(hub, name, files, command);
        if (status < 0)
            status = hub_download(hub, name, files, command);
    }
    if (status >= 0)
        return status;
    fprintf(stderr, "%s: --model %s is in %s\n", command->name, name, hub->directory);
    *model = hub->directory;
    return -1;
}

int hub_pull(struct hub *hub, const char *name, const struct command *command)
{
    char sentence[300];

    if (!hub_is_name(name)) {
        snprintf(sentence, sizeof sentence,
                 "'%.100s' is not a name on the Hugging Face hub: it is ORG/NAME, as in Qwen/Qwen3-0.6B", name);
        return arguments_fail(command, -EDOM, sentence);
    }
    const int status = hub_download(hub, name, HUB_MODEL, command);
    if (status < 0)
        puts(hub->directory);
    return status < 0 ? 0 : status;
}
