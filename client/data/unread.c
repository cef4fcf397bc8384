/* Keys are a stranger's: of a file the first CLIENT_UNREAD_MOST are kept, and sentences name MOST_KEYS of them. A line
 * that has a key several times, in several messages, counts once: `line` is the last one that had it. */
#include "client/data/unread.h"

#include "client/data/data.h"
#include "proto/base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FILES = 8, MOST_KEYS = 8, NAME_BYTES = 40 }; /* that sentences name */

void client_unread_count(struct client_unread *unread, enum client_unread_kind kind, const char *key, uint64_t line)
{
    size_t i = 0;

    while (i < unread->n && (unread->keys[i].kind != kind || strcmp(unread->keys[i].name, key) != 0))
        i++;
    if (i == unread->n) {
        if (!unread->keys)
            unread->keys = calloc(CLIENT_UNREAD_MOST, sizeof *unread->keys);
        char *name = unread->keys && i < CLIENT_UNREAD_MOST ? strdup(key) : NULL;
        unread->more |= !name;
        if (!name)
            return;
        unread->keys[unread->n++] = (struct client_unread_key){.name = name, .kind = kind};
    }
    struct client_unread_key *found = &unread->keys[i];
    found->n += found->line != line;
    found->line = line;
}

void client_unread_free(struct client_unread *unread)
{
    for (size_t i = 0; i < unread->n; i++)
        free(unread->keys[i].name);
    free(unread->keys);
    *unread = (struct client_unread){0};
}

/* A key is anybody's text: without what a terminal obeys, and not cut within a character. */
static void print_name(char out[NAME_BYTES + 4], const char *name)
{
    size_t n = strlen(name);

    if (n > NAME_BYTES) {
        for (n = NAME_BYTES; n > 0 && ((unsigned char)name[n] & 0xC0) == 0x80;)
            n--;
    }
    memcpy(out, name, n);
    strcpy(out + n, name[n] ? "..." : "");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F || ((unsigned char)*c == 0xC2 && (unsigned char)c[1] < 0xA0))
            *c = '?', c += (unsigned char)c[1] >= 0x80 ? (c[1] = '?', 1) : 0;
}

static void append_key(struct error *sentence, const struct client_unread_key *key)
{
    char name[NAME_BYTES + 4];

    print_name(name, key->name);
    if (key->kind == CLIENT_UNREAD_COLUMN)
        error_append(sentence, "the column \"%s\"", name);
    else
        error_append(sentence, "the key \"%s\" of %s%" PRIu64 " line%s", name,
                     key->kind == CLIENT_UNREAD_MESSAGE ? "messages in " : "", key->n, key->n == 1 ? "" : "s");
}

/* A file's number is in place of a line's, so that each counts. */
void client_unread_pass(struct client_data *data, const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *dot = strrchr(base, '.');

    client_unread_count(&data->passed, CLIENT_UNREAD_FILE, dot && dot > base ? dot : "", ++data->n_passed);
}

/* "5 files in directories of --data passed over: 3 .webp, 2 without a suffix; ..." */
static void say_passed(struct error *sentence, const struct client_data *data, const char *option)
{
    const struct client_unread *passed = &data->passed;
    const size_t n = passed->n < MOST_KEYS ? passed->n : MOST_KEYS;
    char name[NAME_BYTES + 4];

    error_set(sentence, 0, "%" PRIu64 " file%s in directories of %s passed over: not named %s", data->n_passed,
              data->n_passed == 1 ? "" : "s", option, client_data_suffixes(data));
    for (size_t i = 0; i < n; i++) {
        print_name(name, passed->keys[i].name);
        error_append(sentence, "%s%" PRIu64 " %s", i > 0 ? ", " : " (", passed->keys[i].n,
                     *name ? name : "without a suffix");
    }
    if (n > 0)
        error_append(sentence, passed->n > n || passed->more ? ", ...)" : ")");
}

static void say_path(struct error *sentence, const char *path)
{
    const size_t n = strlen(path);

    error_set(sentence, 0, "%s%s: ", n > 100 ? "..." : "", n > 100 ? path + n - 100 : path);
}

/* "chat.jsonl: the key "foo" of 12 lines is not read" */
static void say_keys(struct error *sentence, const char *path, const struct client_unread *unread)
{
    const size_t n = unread->n < MOST_KEYS ? unread->n : MOST_KEYS;
    const bool more = unread->n > n || unread->more;

    say_path(sentence, path);
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            error_append(sentence, i + 1 < n || more ? ", " : " and ");
        append_key(sentence, &unread->keys[i]);
    }
    error_append(sentence, "%s %s not read", more ? " and others" : "", n > 1 || more ? "are" : "is");
}

void client_unread_tell(const struct client_data *data, const char *option,
                        void (*tell)(void *user, const char *sentence), void *user)
{
    struct error sentence;
    size_t n_files = 0;

    if (data->n_passed > 0) {
        say_passed(&sentence, data, option);
        tell(user, sentence.text);
    }
    if (data->n_folders > 0) {
        error_set(&sentence, 0, "%" PRIu64 " folder%s in directories of %s passed over: %.200s%s; name %s too",
                  data->n_folders, data->n_folders == 1 ? "" : "s", option, data->folder,
                  data->n_folders == 1 ? "" : " and others", data->n_folders == 1 ? "it" : "them");
        tell(user, sentence.text);
    }
    for (size_t i = 0; i < data->n_files; i++) {
        const struct client_unread *unread = &data->files[i].unread;
        if (unread->n_behind > 0) {
            say_path(&sentence, data->files[i].path);
            error_append(&sentence, "%" PRIu64 " bytes behind its gzip data are not read", unread->n_behind);
            tell(user, sentence.text);
        }
        if (unread->n_quoted > 0) {
            say_path(&sentence, data->files[i].path);
            error_append(&sentence,
                         "%" PRIu64
                         " field%s in quotes, which are read as part of the text, as TSV has no quoting: write "
                         ".jsonl, or fields without quotes",
                         unread->n_quoted, unread->n_quoted == 1 ? " is" : "s are");
            tell(user, sentence.text);
        }
        if ((unread->n == 0 && !unread->more) || n_files++ >= MOST_FILES)
            continue;
        say_keys(&sentence, data->files[i].path, unread);
        tell(user, sentence.text);
    }
    if (n_files > MOST_FILES) {
        error_set(&sentence, 0, "%zu more files of %s have keys that are not read", n_files - MOST_FILES, option);
        tell(user, sentence.text);
    }
}
