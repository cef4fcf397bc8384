/* Numbers of a template: Python's int, bool and float.
 *
 * Integers are json_int_t; one that came from JSON with more digits keeps them and is printed, compared and tested, but
 * not computed with: so no sum is silently another one. NaN and infinities are wide numbers too, as jansson has
 * none. */
#include "client/text/template/template_internal.h"

#include "proto/base/wide.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is a number ---- */

bool template_is_integer(const json_t *value)
{
    return json_is_integer(value) || json_is_boolean(value);
}

json_int_t template_integer(const json_t *value)
{
    return json_is_true(value) ? 1 : json_integer_value(value);
}

static bool is_digits(const char *spelling)
{
    return spelling && strspn(spelling, "-0123456789") == strlen(spelling);
}

bool template_is_wide_integer(const json_t *value)
{
    return is_digits(wide_spelling(value));
}

bool template_is_real(const json_t *value)
{
    const char *spelling = wide_spelling(value);

    return json_is_real(value) || (spelling && !is_digits(spelling));
}

bool template_is_number(const json_t *value)
{
    return template_is_integer(value) || json_is_real(value) || wide_spelling(value);
}

/* Exact for 64-bit integers and for reals, on machines whose long double has 64 bits of mantissa. */
static long double number_value(const json_t *value)
{
    const char *spelling = wide_spelling(value);

    return spelling                     ? strtold(spelling, NULL)
           : template_is_integer(value) ? (long double)template_integer(value)
                                        : (long double)json_real_value(value);
}

json_t *template_real(struct template_run *r, double x)
{
    const char *name = isnan(x) ? "NaN" : x < 0 ? "-Infinity" : "Infinity";
    json_t *out = isfinite(x) ? json_real(x) : wide_new(name, strlen(name));

    return out ? out : template_no_memory(r);
}

int template_compare_numbers(const json_t *a, const json_t *b)
{
    const char *digits_a = wide_spelling(a), *digits_b = wide_spelling(b);
    const long double x = number_value(a), y = number_value(b);

    if (is_digits(digits_a) && is_digits(digits_b)) {
        const bool negative = *digits_a == '-';
        const size_t n_a = strlen(digits_a), n_b = strlen(digits_b);
        if (negative != (*digits_b == '-'))
            return negative ? -1 : 1;
        const int order = n_a != n_b ? (n_a < n_b ? -1 : 1) : strcmp(digits_a, digits_b);
        return negative ? -order : order;
    }
    return isnan(x) || isnan(y) ? TEMPLATE_UNORDERED : x < y ? -1 : x > y;
}

/* ---- Arithmetic ---- */

static json_t *too_large(struct template_run *r, const struct template_token *at)
{
    return template_fail(r, at, "a number is too large");
}

/* Python's rules of sign: the quotient is rounded down, and what is left has the divisor's sign. */
static json_t *divide_reals(struct template_run *r, double x, double y, bool quotient)
{
    double left = fmod(x, y), whole = (x - left) / y;

    if (left != 0 && (y < 0) != (left < 0))
        left += y, whole -= 1;
    else if (left == 0)
        left = copysign(0, y);
    if (!quotient)
        return template_real(r, left);
    if (whole == 0)
        return template_real(r, copysign(0, x / y));
    const double down = floor(whole);
    return template_real(r, whole - down > 0.5 ? down + 1 : down);
}

static json_t *raise_real(struct template_run *r, const struct template_token *at, double x, double y)
{
    if (x == 0 && y < 0)
        return template_fail(r, at, "division by zero");
    if (x < 0 && isfinite(x) && isfinite(y) && y != floor(y))
        return template_fail(r, at, "a root of a negative number is not supported");
    const double z = pow(x, y);
    return isinf(z) && isfinite(x) && isfinite(y) ? too_large(r, at) : template_real(r, z);
}

static json_t *calculate_reals(struct template_run *r, const struct template_token *at,
                               const struct template_token *sign, double x, double y)
{
    const char op = sign->text[0];
    const bool twice = sign->n == 2;

    if (op == '*' && twice)
        return raise_real(r, at, x, y);
    if ((op == '/' || op == '%') && y == 0)
        return template_fail(r, at, "division by zero");
    if (op == '%' || (op == '/' && twice))
        return divide_reals(r, x, y, op == '/');
    return template_real(r, op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : x / y);
}

static json_t *raise_integer(struct template_run *r, const struct template_token *at, json_int_t x, json_int_t y)
{
    json_int_t z = 1;

    for (; y > 0; y >>= 1) {
        if ((y & 1) && __builtin_mul_overflow(z, x, &z))
            return too_large(r, at);
        if (y > 1 && __builtin_mul_overflow(x, x, &x))
            return too_large(r, at);
    }
    return json_integer(z);
}

static bool number_is_exact(json_int_t x)
{
    return x >= -(INT64_C(1) << 53) && x <= INT64_C(1) << 53;
}

static json_t *calculate_integers(struct template_run *r, const struct template_token *at,
                                  const struct template_token *sign, json_int_t x, json_int_t y)
{
    const char op = sign->text[0];
    json_int_t z = 0;
    bool over = false;

    if (op == '*' && sign->n == 2)
        return y < 0 ? calculate_reals(r, at, sign, (double)x, (double)y) : raise_integer(r, at, x, y);
    if (op == '/' && sign->n == 1) /* a quotient of larger ones would be rounded twice */
        return number_is_exact(x) && number_is_exact(y) ? calculate_reals(r, at, sign, (double)x, (double)y)
                                                        : too_large(r, at);
    if (op == '+')
        over = __builtin_add_overflow(x, y, &z);
    else if (op == '-')
        over = __builtin_sub_overflow(x, y, &z);
    else if (op == '*')
        over = __builtin_mul_overflow(x, y, &z);
    else if (y == 0)
        return template_fail(r, at, "division by zero");
    else if (y == -1)
        over = op == '/' && __builtin_sub_overflow(0, x, &z);
    else { /* C rounds to 0, Python down */
        const bool down = x % y != 0 && (x < 0) != (y < 0);
        z = op == '/' ? x / y - down : x % y + (down ? y : 0);
    }
    return over ? too_large(r, at) : json_integer(z);
}

json_t *template_calculate(struct template_run *r, const struct template_token *at, const struct template_token *sign,
                           const json_t *a, const json_t *b)
{
    if (!template_is_number(a) || !template_is_number(b))
        return template_fail(r, at, "%s %.*s %s is not supported", template_type(r, a), (int)sign->n, sign->text,
                             template_type(r, b));
    if (template_is_wide_integer(a) || template_is_wide_integer(b))
        return too_large(r, at);
    if (template_is_integer(a) && template_is_integer(b))
        return calculate_integers(r, at, sign, template_integer(a), template_integer(b));
    return calculate_reals(r, at, sign, (double)number_value(a), (double)number_value(b));
}

json_t *template_negative(struct template_run *r, const struct template_token *at, const json_t *value)
{
    json_int_t number = 0;

    if (template_is_real(value))
        return template_real(r, -(double)number_value(value));
    if (!template_is_number(value))
        return template_fail(r, at, "%s has no negative", template_type(r, value));
    if (template_is_wide_integer(value) || __builtin_sub_overflow(0, template_integer(value), &number))
        return too_large(r, at);
    return json_integer(number);
}

/* ---- Filters ---- */

json_t *template_abs(struct template_run *r, const struct template_call *c)
{
    if (!template_is_number(c->value) || c->arguments->n > 0)
        return template_refuse(r, c);
    if (template_is_real(c->value))
        return template_real(r, (double)fabsl(number_value(c->value)));
    return number_value(c->value) < 0  ? template_negative(r, c->at, c->value)
           : json_is_boolean(c->value) ? json_integer(template_integer(c->value))
                                       : json_incref(c->value);
}

/* The text of a number, "-1_000.5e3", without what Python's int and float pass: blanks at its ends, and _ between
 * digits. out: of 64 bytes. False: too long, or not of these characters. */
static bool clean_number(char out[64], const json_t *value)
{
    const char *text = json_string_value(value);
    size_t n = json_string_length(value), used = 0;

    template_strip_start(&text, &n);
    template_strip_end(text, &n);
    for (size_t i = 0; i < n; i++) {
        const bool between = text[i] == '_' && i > 0 && i + 1 < n && memchr("0123456789", text[i - 1], 10) &&
                             memchr("0123456789", text[i + 1], 10);
        if (used == 63 || (!between && !memchr("0123456789+-.eEinfatyINFATY", text[i], 27)))
            return false;
        if (!between)
            out[used++] = text[i];
    }
    out[used] = 0;
    return used > 0;
}

static bool number_read_real(double *out, const json_t *value)
{
    char text[64], *end;

    if (template_is_number(value)) {
        *out = (double)number_value(value);
        return true;
    }
    if (!json_is_string(value) || !clean_number(text, value))
        return false;
    *out = strtod(text, &end);
    return !*end;
}

/* float(default=0.0) */
json_t *template_to_real(struct template_run *r, const struct template_call *c)
{
    json_t *other = template_argument(c->arguments, 0, "default");
    double x;

    if (c->arguments->n > (other ? 1u : 0u))
        return template_refuse(r, c);
    return number_read_real(&x, c->value) ? template_real(r, x) : other ? json_incref(other) : template_real(r, 0);
}

/* int(default=0): of digits, else of a real, rounded to 0. */
json_t *template_to_integer(struct template_run *r, const struct template_call *c)
{
    json_t *other = template_argument(c->arguments, 0, "default");
    char text[64];
    double x;

    if (c->arguments->n > (other ? 1u : 0u))
        return template_refuse(r, c);
    if (template_is_integer(c->value))
        return json_integer(template_integer(c->value));
    if (template_is_wide_integer(c->value))
        return json_incref(c->value);
    if (json_is_string(c->value) && clean_number(text, c->value)) {
        const size_t sign = *text == '-' || *text == '+';
        if (text[sign] && strspn(text + sign, "0123456789") == strlen(text + sign)) {
            if (strlen(text) > 18)
                return too_large(r, c->at);
            return json_integer(strtoll(text, NULL, 10));
        }
    }
    if (!number_read_real(&x, c->value) || !isfinite(x))
        return other ? json_incref(other) : json_integer(0);
    return fabs(x) < 0x1p62 ? json_integer((json_int_t)x) : too_large(r, c->at);
}

/* round(precision=0, method="common"): Python's round, of the number as it is, ties to even; or ceil, or floor. */
json_t *template_round(struct template_run *r, const struct template_call *c)
{
    const json_int_t precision = template_integer_of(r, c, 0, "precision", 0);
    size_t n;
    const char *method = template_text_of(r, c, 1, "method", &n);
    const bool common = !method || strcmp(method, "common") == 0;
    char text[400];
    double x = (double)number_value(c->value);

    if (!template_is_number(c->value) || precision < 0 || precision > 22 || r->rc ||
        (!common && strcmp(method, "ceil") != 0 && strcmp(method, "floor") != 0))
        return template_refuse(r, c);
    if (template_is_wide_integer(c->value))
        return too_large(r, c->at);
    if (common && template_is_integer(c->value))
        return json_integer(template_integer(c->value));
    if (!isfinite(x))
        return common ? json_incref(c->value) : template_refuse(r, c);
    if (!common) {
        const double scale = pow(10, (double)precision);
        return template_real(r, (*method == 'c' ? ceil(x * scale) : floor(x * scale)) / scale);
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, x);
    return template_real(r, strtod(text, NULL));
}
