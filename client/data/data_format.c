/* Recognises other formats in files that are named like text. A model would learn the bytes of a parquet file or an
 * HTML page as readily as text, so such a file is refused: the error names its format and the remedy. */
#include "client/data/data_file.h"
#include "proto/base/wide.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct format {
    const char *magic;
    size_t n, at; /* length of the magic, and its offset in the file */
    const char *name, *remedy;
};

#define MAGIC(text) text, sizeof(text) - 1

static const struct format formats[] = {
    {MAGIC("PK\x03\x04"), 0, "a zip archive", "unpack it (unzip), and name the text in it"},
    {MAGIC("PK\x05\x06"), 0, "an empty zip archive", "name a file of text"},
    {MAGIC("\xFD"
           "7zXZ\0"),
     0, "compressed by xz", "unpack it first (xz -d), or pipe it in: xz -dc FILE | eps ... --data -"},
    {MAGIC("BZh"), 0, "compressed by bzip2",
     "unpack it first (bzip2 -d), or pipe it in: bzip2 -dc FILE | eps ... --data -"},
    {MAGIC("7z\xBC\xAF\x27\x1C"), 0, "a 7-Zip archive", "unpack it, and name the text in it"},
    {MAGIC("ustar"), 257, "a tar archive", "unpack it (tar -x), and name the directory"},
    {MAGIC("PAR1\x15"), 0, "a parquet file", "write its text as .jsonl, for instance by pandas' to_json(lines=True)"},
    {MAGIC("ARROW1"), 0, "an Arrow file", "write its text as .jsonl"},
    {MAGIC("%PDF-"), 0, "a PDF", "take its text out (pdftotext)"},
    {MAGIC("\x89PNG\r\n"), 0, "a PNG image", "name a file of text"},
    {MAGIC("\xFF\xD8\xFF"), 0, "a JPEG image", "name a file of text"},
    {MAGIC("GIF87a"), 0, "a GIF image", "name a file of text"},
    {MAGIC("GIF89a"), 0, "a GIF image", "name a file of text"},
    {MAGIC("\x7F"
           "ELF"),
     0, "an ELF program", "name a file of text"},
    {MAGIC("SQLite format 3"), 0, "an SQLite database", "write its text as .jsonl"},
    {MAGIC("\x89HDF\r\n"), 0, "an HDF5 file", "write its tokens as .npy, or its text as .jsonl"},
    {MAGIC("\x93NUMPY"), 0, "a NumPy array", "name it .npy"},
    {MAGIC("\xD0\xCF\x11\xE0\xA1\xB1"), 0, "an old Office document", "save it as plain text"},
    {MAGIC("{\\rtf"), 0, "a document in RTF", "save it as plain text"},
};

static const struct format safetensors = {NULL, 0, 0, "safetensors, a model's weights",
                                          "name its directory in --model"};
static const struct format lines = {
    NULL, 0, 0, "JSON lines", "name it .jsonl, and the text in it is read: text, prompt and completion, or messages"};
static const struct format json = {
    NULL, 0, 0, "JSON",
    "write an object a line into a .jsonl, with its text as text, prompt and completion, or messages"};
static const struct format csv = {
    NULL, 0, 0, "CSV",
    "write the column to train on as text of .jsonl, for instance by pandas' to_json(orient='records', lines=True), or "
    "name it .txt to train on it as it is; --task classify takes TSV"};
static const struct format tsv = {NULL, 0, 0, "TSV",
                                  "--task classify trains on its rows; for plain text, write the column to train on as "
                                  "text of .jsonl, or name it .txt to train on it as it is"};
static const struct format html = {NULL, 0, 0, "a page of HTML",
                                   "take its text out, or name it .html to train on it as it is"};

static bool ends_with(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n > m && strcasecmp(path + n - m, end) == 0;
}

enum client_compression client_data_packing(const uint8_t *head, size_t n)
{
    if (n >= 2 && head[0] == 0x1F && head[1] == 0x8B)
        return CLIENT_GZIP;
    /* A frame; or one that is to be skipped, as pzstd and zstd --adapt write it first. */
    const bool is_zstd = n >= 4 && (memcmp(head, "\x28\xB5\x2F\xFD", 4) == 0 ||
                                    (head[0] >> 4 == 5 && memcmp(head + 1, "\x2A\x4D\x18", 3) == 0));
    return is_zstd ? CLIENT_ZSTD : CLIENT_PLAIN;
}

/* A safetensors file begins with the header's length (u64); the header is a JSON object. */
static bool data_format_is_safetensors(const uint8_t *head, size_t n)
{
    return n > 10 && head[8] == '{' && (head[9] == '"' || head[9] == '}') && head[4] == 0 && head[5] == 0 &&
           head[6] == 0 && head[7] == 0;
}

static size_t data_format_skip_blanks(const uint8_t *text, size_t at, size_t n)
{
    while (at < n && memchr(" \t\r\n", text[at], 4))
        at++;
    return at;
}

/* Recognises an object, or a list of objects, lists or strings. Other braces, and numbers in brackets, are common in
 * plain text. */
static const struct format *find_json(const uint8_t *head, size_t n, bool whole)
{
    const size_t at = data_format_skip_blanks(head, 0, n);
    const size_t next = at < n ? data_format_skip_blanks(head, at + 1, n) : n;
    json_error_t why;

    if (next >= n || !(head[at] == '{' ? head[next] == '"' : head[at] == '[' && memchr("{[\"", head[next], 3)))
        return NULL;
    json_t *value = wide_read((const char *)head + at, n - at, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &why);
    if (!value) { /* cut off at the end of the head, maybe inside a character */
        const bool cut =
            json_error_code(&why) == json_error_premature_end_of_input || why.position + 8 >= (int)(n - at);
        if (!cut || whole)
            return NULL;
        return head[at] == '{' && !memchr(head + at, '\n', n - at) ? &lines : &json; /* a first line longer than head */
    }
    const bool object = json_is_object(value);
    json_decref(value);
    const size_t end = at + (size_t)why.position, after = data_format_skip_blanks(head, end, n);
    if (after == n)
        return object && !memchr(head + at, '\n', end - at) ? &lines : &json;
    return object && memchr(head + end, '\n', after - end) && head[after] == '{' ? &lines : NULL;
}

static bool is_html(const uint8_t *head, size_t n)
{
    static const char *const begins[] = {"<!doctype html", "<html"};
    const size_t at = data_format_skip_blanks(head, 0, n);

    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        const size_t length = strlen(begins[i]);
        if (n - at >= length && strncasecmp((const char *)head + at, begins[i], length) == 0)
            return true;
    }
    return false;
}

/* Recognises at least two records, all with as many fields, two or more. In CSV a field in quotes may hold commas and
 * line ends, and the first record has no tab; TSV has no quotes. A last record that is cut off does not count. */
static bool is_table(char separator, const uint8_t *head, size_t n, bool whole)
{
    const bool is_csv = separator == ',';
    size_t n_records = 0, n_fields = 1, wanted = 0;
    bool quoted = false, empty = true;

    for (size_t i = 0; i <= n; i++) {
        const bool end = i == n;
        const uint8_t c = end ? '\n' : head[i];
        if (is_csv && c == '\t' && n_records == 0)
            return false;
        if (is_csv && c == '"')
            quoted = !quoted; /* a doubled quote changes nothing */
        empty = empty && (c == '\n' || c == '\r');
        if (quoted ? !end : c != '\n') {
            n_fields += !quoted && c == separator;
            continue;
        }
        if (end && (quoted || !whole || empty))
            break;
        if (!empty && wanted > 0 && n_fields != wanted)
            return false;
        n_records += !empty;
        wanted = empty ? wanted : n_fields;
        n_fields = 1, empty = true;
    }
    return n_records >= 2 && wanted >= 2;
}

/* The name ends in this, maybe compressed. */
static bool data_format_is_named(const struct client_data_file *file, const char *end)
{
    char with[16];

    for (int i = 0; i < 3; i++) {
        snprintf(with, sizeof with, "%s%s", end, i == 0 ? "" : i == 1 ? ".gz" : ".zst");
        if (ends_with(file->path, with))
            return true;
    }
    return false;
}

static const struct format *find_magic(const uint8_t *head, size_t n)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const struct format *f = &formats[i];
        if (n >= f->at + f->n && memcmp(head + f->at, f->magic, f->n) == 0)
            return f;
    }
    return data_format_is_safetensors(head, n) ? &safetensors : NULL;
}

bool client_data_is_lines(const uint8_t *head, size_t n, bool whole)
{
    return find_json(head, n, whole) == &lines;
}

int client_data_recognise(const struct client_data_file *file, bool rows, const uint8_t *head, size_t n,
                          struct error *err)
{
    const struct format *found = find_magic(head, n);

    if (found && found->n == 3 && file->kind != CLIENT_DATA_TEXT) /* three bytes prove nothing in a file of ids */
        found = NULL;
    if (!found && file->kind == CLIENT_DATA_TEXT)
        found = find_json(head, n, n == file->bytes);
    if (!found && file->kind == CLIENT_DATA_TEXT && is_html(head, n) && !ends_with(file->path, ".html") &&
        !ends_with(file->path, ".htm"))
        found = &html;
    if (!found && file->kind == CLIENT_DATA_TEXT && data_format_is_named(file, ".csv") &&
        is_table(',', head, n, n == file->bytes))
        found = &csv;
    if (!found && !rows && file->kind == CLIENT_DATA_TEXT && data_format_is_named(file, ".tsv") &&
        is_table('\t', head, n, n == file->bytes))
        found = &tsv;
    if (!found)
        return 0;
    return error_set(err, -EINVAL, "%s: this is %s, not text: %s", file->path, found->name, found->remedy);
}
