/* The one place that reads an option's bytes by its row: the row's kind says their type, and a wrong kind would read
 * past the field. Each kind has its own value for "unset", as 0 is a value of some. Choices are numbered from 1 in the
 * order of the row's words, which is the order of the enum: so the two are changed together. */
#include "client/options/value.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct eps_option *client_option_stored(unsigned key)
{
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        if (rows[i].key == key)
            return &rows[i];
    }
    return NULL;
}

const char *client_option_key(char out[CLIENT_OPTION_KEY], const struct eps_option *row)
{
    snprintf(out, CLIENT_OPTION_KEY, "%s", row->name + strlen("--"));
    for (char *at = out; *at; at++)
        *at = *at == '-' ? '_' : *at;
    return out;
}

/* ---- by type ----------------------------------------------------------------------------------------------------- */

static const void *value_at(const void *options, const struct eps_option *row)
{
    return (const char *)options + row->offset;
}

static const char *text_at(const void *options, const struct eps_option *row)
{
    return *(const char *const *)value_at(options, row);
}

static bool is_text(const struct eps_option *row)
{
    return row->kind == EPS_OPTION_TEXT || row->kind == EPS_OPTION_OPTIONAL_TEXT || row->kind == EPS_OPTION_PATTERNS;
}

static bool value_is_real(const struct eps_option *row)
{
    return row->kind == EPS_OPTION_REAL || row->kind == EPS_OPTION_PAIR;
}

static size_t options_value_bytes(const struct eps_option *row)
{
    static const size_t bytes[] = {
        [EPS_OPTION_HEADING] = 0,
        [EPS_OPTION_FLAG] = sizeof(bool),
        [EPS_OPTION_TEXT] = sizeof(const char *),
        [EPS_OPTION_OPTIONAL_TEXT] = sizeof(const char *),
        [EPS_OPTION_PATTERNS] = sizeof(const char *),
        [EPS_OPTION_TEXTS] = sizeof(const char *const *) + sizeof(size_t),
        [EPS_OPTION_COUNT] = sizeof(uint32_t),
        [EPS_OPTION_AUTO] = sizeof(uint32_t),
        [EPS_OPTION_NUMBER_32] = sizeof(uint32_t),
        [EPS_OPTION_LONG] = sizeof(uint64_t),
        [EPS_OPTION_NUMBER] = sizeof(uint64_t),
        [EPS_OPTION_BYTES] = sizeof(uint64_t),
        [EPS_OPTION_REAL] = sizeof(double),
        [EPS_OPTION_PAIR] = 2 * sizeof(double),
        [EPS_OPTION_CHOICE] = sizeof(uint32_t),
    };
    return bytes[row->kind];
}

/* Value of a whole number, a choice or a flag. */
static uint64_t whole(const void *options, const struct eps_option *row)
{
    const void *at = value_at(options, row);

    return row->kind == EPS_OPTION_FLAG                   ? *(const bool *)at
           : options_value_bytes(row) == sizeof(uint32_t) ? *(const uint32_t *)at
                                                          : *(const uint64_t *)at;
}

/* That value if the option is unset. */
static uint64_t unset_whole(const struct eps_option *row)
{
    return row->kind == EPS_OPTION_NUMBER ? UINT64_MAX : row->kind == EPS_OPTION_NUMBER_32 ? UINT32_MAX : 0;
}

static void set_whole(struct eps_train_options *options, const struct eps_option *row, uint64_t value)
{
    const uint32_t narrow = (uint32_t)value;

    memcpy((char *)options + row->offset, options_value_bytes(row) == sizeof narrow ? (const void *)&narrow : &value,
           options_value_bytes(row));
}

/* ---- set, compared, copied --------------------------------------------------------------------------------------- */

void client_option_clear(struct eps_train_options *options, const struct eps_option *row)
{
    char *at = (char *)options + row->offset;

    memset(at, 0, options_value_bytes(row));
    if (value_is_real(row)) {
        for (size_t i = 0; i < options_value_bytes(row) / sizeof(double); i++)
            ((double *)(void *)at)[i] = NAN;
    } else if (unset_whole(row) != 0) {
        set_whole(options, row, unset_whole(row));
    }
}

bool client_option_is_set(const void *options, const struct eps_option *row)
{
    if (is_text(row) || row->kind == EPS_OPTION_TEXTS)
        return text_at(options, row);
    if (value_is_real(row))
        return !isnan(*(const double *)value_at(options, row));
    return row->kind != EPS_OPTION_HEADING && whole(options, row) != unset_whole(row);
}

void client_option_copy(struct eps_train_options *to, const struct eps_train_options *from,
                        const struct eps_option *row)
{
    memcpy((char *)to + row->offset, value_at(from, row), options_value_bytes(row));
}

bool client_option_same(const struct eps_train_options *a, const struct eps_train_options *b,
                        const struct eps_option *row)
{
    if (!client_option_is_set(a, row) || !client_option_is_set(b, row))
        return client_option_is_set(a, row) == client_option_is_set(b, row);
    if (is_text(row))
        return strcmp(text_at(a, row), text_at(b, row)) == 0;
    if (!value_is_real(row))
        return memcmp(value_at(a, row), value_at(b, row), options_value_bytes(row)) == 0;
    const double *x = value_at(a, row), *y = value_at(b, row);
    for (size_t i = 0; i < options_value_bytes(row) / sizeof *x; i++) {
        if (!(fabs(x[i] - y[i]) <= 1e-14 * fabs(y[i])))
            return false;
    }
    return true;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* Formats the i-th word of a choice, from 1; false if it has fewer. */
static bool value_word_of(char out[CLIENT_OPTION_KEY], const struct eps_option *row, uint64_t i)
{
    const char *at = row->value;

    for (; i > 1; i--) {
        at = strchr(at, '|');
        if (!at)
            return false;
        at++;
    }
    snprintf(out, CLIENT_OPTION_KEY, "%.*s", (int)strcspn(at, "|"), at);
    return i == 1;
}

/* Shortest form that reads back as the same double. */
static void value_print_real(char out[32], double value)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

const char *client_option_print(char out[CLIENT_OPTION_TEXT], const void *options, const struct eps_option *row)
{
    const double *real = value_at(options, row);
    char first[CLIENT_OPTION_KEY], second[CLIENT_OPTION_KEY] = "";
    const bool set = client_option_is_set(options, row);

    if (row->kind == EPS_OPTION_FLAG || is_text(row)) {
        snprintf(out, CLIENT_OPTION_TEXT, "%s",
                 !set           ? "default without it"
                 : is_text(row) ? text_at(options, row)
                                : "");
    } else if (!set) {
        snprintf(out, CLIENT_OPTION_TEXT, "none");
    } else if (value_is_real(row)) {
        value_print_real(first, real[0]);
        if (row->kind == EPS_OPTION_PAIR)
            value_print_real(second, real[1]);
        snprintf(out, CLIENT_OPTION_TEXT, "%s%s%s", first, *second ? "," : "", second);
    } else if (row->kind == EPS_OPTION_CHOICE) {
        snprintf(out, CLIENT_OPTION_TEXT, "%s", value_word_of(first, row, whole(options, row)) ? first : "");
    } else {
        snprintf(out, CLIENT_OPTION_TEXT, "%" PRIu64, whole(options, row));
    }
    return out;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

json_t *client_option_to_json(const struct eps_train_options *options, const struct eps_option *row)
{
    const double *real = value_at(options, row);
    char word[CLIENT_OPTION_KEY];

    if ((is_text(row) || value_is_real(row)) && !client_option_is_set(options, row))
        return json_null();
    if (is_text(row))
        return json_string(text_at(options, row));
    if (value_is_real(row))
        return row->kind == EPS_OPTION_PAIR ? json_pack("[f, f]", real[0], real[1]) : json_real(*real);
    if (row->kind == EPS_OPTION_FLAG)
        return json_boolean(whole(options, row) != 0);
    if (row->kind == EPS_OPTION_CHOICE)
        return value_word_of(word, row, whole(options, row)) ? json_string(word) : NULL;
    return json_integer((json_int_t)whole(options, row));
}

static bool read_choice(struct eps_train_options *options, const struct eps_option *row, const char *text)
{
    char word[CLIENT_OPTION_KEY];

    for (uint64_t i = 1; text && value_word_of(word, row, i); i++) {
        if (strcmp(word, text) == 0) {
            set_whole(options, row, i);
            return true;
        }
    }
    return false;
}

static bool value_read_real(double *out, const json_t *json)
{
    *out = json_number_value(json);
    return json_is_number(json);
}

bool client_option_from_json(struct eps_train_options *options, const struct eps_option *row, const json_t *json)
{
    void *const at = (char *)options + row->offset;
    double *const real = at;
    const json_int_t n = json_integer_value(json);

    if (!json || (json_is_null(json) && row->stored == EPS_STORED_NULL)) {
        client_option_clear(options, row);
        if (row->kind == EPS_OPTION_CHOICE)
            set_whole(options, row, 1);
        return json || row->stored != EPS_STORED_SET;
    }
    if (is_text(row)) {
        *(const char **)at = json_string_value(json);
        return json_is_string(json);
    }
    if (row->kind == EPS_OPTION_REAL)
        return value_read_real(real, json);
    if (row->kind == EPS_OPTION_PAIR)
        return json_array_size(json) == 2 && value_read_real(&real[0], json_array_get(json, 0)) &&
               value_read_real(&real[1], json_array_get(json, 1));
    if (row->kind == EPS_OPTION_CHOICE)
        return read_choice(options, row, json_string_value(json));
    if (row->kind == EPS_OPTION_FLAG) {
        *(bool *)at = json_is_true(json);
        return json_is_boolean(json);
    }
    if (!json_is_integer(json) || n < 0 || (options_value_bytes(row) == sizeof(uint32_t) && n > UINT32_MAX))
        return false;
    set_whole(options, row, (uint64_t)n);
    return true;
}
