/* jansson decides what is valid, character by character, so that what is replaced is just what json_string would
 * refuse. Units change where rounding would show a thousand of the smaller one: 999,950 is "1.0 M", not "1000.0 k". */
#include "tools/screen/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Length of the character that begins here, at most `left`; 0 if it is invalid, as jansson decides. */
static size_t text_character(const char *text, size_t left)
{
    for (size_t n = 1; n <= 4 && n <= left; n++) {
        json_t *string = json_stringn(text, n);
        json_decref(string);
        if (string)
            return n;
    }
    return 0;
}

json_t *text_json(const char *text)
{
    static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */
    const size_t n = strlen(text);
    json_t *string = json_string(text);
    char *out = string ? NULL : malloc(3 * n + 1), *to = out;

    for (size_t i = 0; out && i < n;) {
        const size_t bytes = text_character(text + i, n - i);
        const char *from = bytes ? text + i : replacement;
        const size_t width = bytes ? bytes : 3;
        memcpy(to, from, width);
        to += width;
        i += bytes ? bytes : 1;
    }
    if (out)
        string = json_stringn(out, (size_t)(to - out));
    free(out);
    return string;
}

const char *text_count(char out[24], uint64_t n)
{
    static const struct {
        double least, unit;
        const char *name;
    } units[] = {{999.95e6, 1e9, "B"}, {999.95e3, 1e6, "M"}, {1e4, 1e3, "k"}};

    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if ((double)n >= units[i].least) {
            snprintf(out, 24, "%.1f %s", (double)n / units[i].unit, units[i].name);
            return out;
        }
    }
    snprintf(out, 24, "%" PRIu64, n);
    return out;
}

const char *text_duration(char out[32], double ms)
{
    const uint64_t s = ms < 1e15 ? (uint64_t)(ms / 1000 + 0.5) : (uint64_t)1e12;

    if (s < 60)
        snprintf(out, 32, "%" PRIu64 " s", s);
    else if (s < 3600)
        snprintf(out, 32, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, 32, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
    else
        snprintf(out, 32, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s % 86400 / 3600);
    return out;
}

const char *text_ms(char out[32], double ms)
{
    if (ms >= 60e3)
        return text_duration(out, ms);
    if (ms < 1000)
        snprintf(out, 32, ms < 10 ? "%.2f ms" : "%.0f ms", ms);
    else
        snprintf(out, 32, "%.1f s", ms / 1e3);
    return out;
}

const char *text_base(enum eps_base base)
{
    static const char *const texts[] = {
        [EPS_BASE_BF16] = " in bf16", [EPS_BASE_INT8] = " in int8", [EPS_BASE_NF4] = " in nf4"};

    return base > EPS_BASE_FULL ? texts[base] : "";
}

const char *text_row(const struct eps_plan *plan)
{
    const bool is_row = plan->options.task || !isnan(plan->options.dpo_beta);

    return plan->image_height ? "image" : is_row ? "row" : "sequence";
}

const char *text_number(enum eps_number number)
{
    return number == EPS_BF16 ? "bf16" : number == EPS_FP16 ? "fp16" : "fp32";
}

const char *text_moments(enum eps_moments moments)
{
    return moments == EPS_MOMENTS_BF16 ? "bf16" : moments == EPS_MOMENTS_CODED ? "coded" : "fp32";
}

const char *text_master(enum eps_master master)
{
    return master == EPS_MASTER_NONE ? " without a master" : "";
}
