#include "tests/kit/device/operation.h"

#include "device/cpu/cpu.h"
#include "tests/kit/reference/reference.h"
#include "tests/kit/test.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

float operation_get(enum number_type type, const void *x, size_t i)
{
    return type == NUMBER_FP32 ? ((const float *)x)[i] : number_from_half(type, ((const uint16_t *)x)[i]);
}

void operation_set(enum number_type type, void *x, size_t i, float to)
{
    if (type == NUMBER_FP32)
        ((float *)x)[i] = to;
    else
        ((uint16_t *)x)[i] = number_to_half(type, to);
}

void *operation_room(enum number_type type, size_t n)
{
    return mirror_array(n, number_bytes(type));
}

/* Deviates that were drawn, for all tests of a program, each of which is a process: else drawing them would be two
 * fifths of some tests' time. */
enum { SEEDS = 16, MOST_DRAWN = 1 << 18 };
static struct drawn {
    size_t n;
    float values[MOST_DRAWN];
} * drawn; /* by seed; written by one test at a time */

TEST_CONSTRUCTOR static void share_drawn(void)
{
    drawn =
        mmap(NULL, SEEDS * sizeof *drawn, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (drawn == MAP_FAILED)
        abort();
}

void *operation_values(enum number_type type, size_t n, uint32_t seed)
{
    void *values = operation_room(type, n);
    const struct random_key key = {{seed, 1}};
    struct drawn *const kept = seed < SEEDS && n <= MOST_DRAWN ? &drawn[seed] : NULL;
    float *const fresh = kept ? NULL : malloc(n * sizeof *fresh), *const from = kept ? kept->values : fresh;

    ck_assert_ptr_nonnull(from);
    if (!kept) {
        random_normal(fresh, key, 0, 0, n);
    } else if (kept->n < n) {
        random_normal(kept->values + kept->n, key, 0, kept->n, n - kept->n);
        kept->n = n;
    }
    for (size_t i = 0; i < n; i++)
        operation_set(type, values, i, from[i]);
    free(fresh);
    return values;
}

double *operation_widen(enum number_type type, const void *x, size_t n)
{
    double *wide = operation_zeros(n);

    for (size_t i = 0; i < n; i++)
        wide[i] = (double)operation_get(type, x, i);
    return wide;
}

double *operation_zeros(size_t n)
{
    return mirror_host_array(n, sizeof(double));
}

static enum number_type type_of(const struct operation *operation, unsigned part)
{
    return operation->parts[part].type == CALL_VALUES ? operation->type : NUMBER_FP32;
}

static size_t bytes_of(const struct operation *operation, unsigned part)
{
    return operation->parts[part].n * call_type_bytes(operation->parts[part].type, operation->type);
}

static double get(const struct operation *operation, unsigned part, const void *x, size_t i)
{
    if (operation->parts[part].type == CALL_FP64)
        return ((const double *)x)[i];
    if (operation->parts[part].type == CALL_WORDS)
        return ((const uint32_t *)x)[i];
    return (double)operation_get(type_of(operation, part), x, i);
}

static unsigned n_parts(const struct operation *operation)
{
    unsigned n = 0;

    while (n < OPERATION_PARTS && operation->parts[n].n > 0)
        n++;
    return n;
}

static void fill(const struct operation *operation, unsigned p, void *out)
{
    const struct operation_part *part = &operation->parts[p];

    if (part->initial)
        memcpy(out, part->initial, bytes_of(operation, p));
    for (size_t i = 0; i < part->n && !part->initial; i++)
        if (part->type == CALL_FP64)
            ((double *)out)[i] = 1e30;
        else
            operation_set(type_of(operation, p), out, i, 1e30f);
}

static void run(const struct operation *operation, struct mirror *at, void *const out[])
{
    const unsigned n = n_parts(operation);
    void *there[OPERATION_PARTS] = {NULL};

    for (unsigned p = 0; p < n; p++)
        fill(operation, p, out[p]);
    mirror_begin(at);
    for (unsigned p = 0; p < n; p++)
        there[p] = mirror_of(at, out[p]);
    operation->run(at, there, operation->context);
    mirror_end(at, out, n);
}

void operation_run(const struct operation *operation, void *const out[])
{
    struct mirror at;

    mirror_open(&at, operation->type, 1, false);
    run(operation, &at, out);
    mirror_close(&at);
}

/* Half a unit of the last place of a number of this size. */
static double half_unit(enum number_type type, double size)
{
    int exponent;

    frexp(size, &exponent);
    return type == NUMBER_FP32   ? 0
           : type == NUMBER_BF16 ? ldexp(1, exponent - 9)
                                 : fmax(ldexp(1, exponent - 12), 0x1p-25);
}

static void compare(const struct operation *operation, unsigned p, const void *out, const char *way)
{
    const struct operation_part *part = &operation->parts[p];
    double largest = 0;

    for (size_t i = 0; i < part->n; i++)
        largest = fmax(largest, fabs(part->expected[i]));
    const double near = part->tolerance * largest;
    for (size_t i = 0; i < part->n; i++) {
        const double got = get(operation, p, out, i), want = part->expected[i];
        const double rounding = half_unit(type_of(operation, p), fabs(want) + near);
        if (isnan(want) ? isfinite(got) : !(fabs(got - want) <= near + rounding)) /* an assertion is slow */
            ck_abort_msg("%s[%zu] in %s on %s is %.9g, not %.9g: off by %.3g of the largest", part->name, i,
                         number_name(operation->type), way, got, want, fabs(got - want) / largest);
    }
}

static void check_same(const struct operation *operation, void *const one[], void *const other[], const char *way)
{
    for (unsigned p = 0; p < n_parts(operation); p++)
        ck_assert_msg(memcmp(one[p], other[p], bytes_of(operation, p)) == 0, "%s gives other bits", way);
}

static void check_near(const struct operation *operation, void *const out[], const char *way)
{
    for (unsigned p = 0; p < n_parts(operation); p++)
        compare(operation, p, out[p], way);
}

static void check_isa(const struct operation *operation, void *const first[], void *const again[], enum cpu_isa isa)
{
    static const char *const names[CPU_ISAS] = {"v2", "v3", "v4", "v4 with pairs"};

    const unsigned most = isa + 1 == CPU_ISAS || !cpu_isa_runs(isa + 1) ? 3 : 1;

    for (unsigned n_threads = 1; n_threads <= most; n_threads++) {
        struct mirror at;

        mirror_open(&at, operation->type, n_threads, false);
        cpu_isa_use(at.dev, isa);
        run(operation, &at, n_threads == 1 ? first : again);
        mirror_close(&at);
        if (n_threads == 1)
            check_near(operation, first, names[isa]);
        else
            check_same(operation, first, again, names[isa]);
    }
}

/* Of the simulated device: forward, backward or (2) random. */
static void order_threads(unsigned threads)
{
    if (backend_get()->order)
        backend_get()->order(0, threads, 7);
}

/* On the simulated device each of three runs has an order of its own. */
static void check_cuda(const struct operation *operation, void *const first[], void *const again[])
{
    struct mirror at;

    mirror_open(&at, operation->type, 1, false);
    run(operation, &at, first);
    check_near(operation, first, "cuda");
    order_threads(1);
    run(operation, &at, again);
    check_same(operation, first, again, "cuda, once more,");
    mirror_close(&at);
    order_threads(2);
    mirror_open(&at, operation->type, 1, true);
    run(operation, &at, again);
    order_threads(0);
    check_near(operation, again, "cuda, not aligned,");
    if (operation->is_elementwise)
        check_same(operation, first, again, "cuda, not aligned,");
    mirror_close(&at);
}

void operation_check(const struct operation *operation)
{
    void *first[OPERATION_PARTS] = {NULL}, *again[OPERATION_PARTS] = {NULL};

    for (unsigned p = 0; p < n_parts(operation); p++) {
        first[p] = mirror_array(operation->parts[p].n, call_type_bytes(operation->parts[p].type, operation->type));
        again[p] = mirror_array(operation->parts[p].n, call_type_bytes(operation->parts[p].type, operation->type));
    }
    if (backend_get()->cuda)
        check_cuda(operation, first, again);
    else
        for (int isa = CPU_V2; isa < CPU_ISAS; isa++)
            if (cpu_isa_has((enum cpu_isa)isa, operation->type))
                check_isa(operation, first, again, (enum cpu_isa)isa);
}

/* isa: of the CPU. */
static void check_alike(const struct operation *one, const struct operation *other, enum cpu_isa isa, bool skewed)
{
    void *out[2][OPERATION_PARTS] = {{NULL}};
    struct mirror at;

    for (unsigned p = 0; p < n_parts(one); p++)
        for (int i = 0; i < 2; i++)
            out[i][p] = mirror_array(one->parts[p].n, call_type_bytes(one->parts[p].type, one->type));
    mirror_open(&at, one->type, 1, skewed);
    if (!backend_get()->cuda)
        cpu_isa_use(at.dev, isa);
    run(one, &at, out[0]);
    run(other, &at, out[1]);
    mirror_close(&at);
    check_same(one, out[0], out[1], "the other operation");
}

void operation_check_alike(const struct operation *one, const struct operation *other)
{
    for (int skewed = 0; skewed < 2 && backend_get()->cuda; skewed++)
        check_alike(one, other, CPU_V2, skewed);
    for (int isa = CPU_V2; isa < CPU_ISAS && !backend_get()->cuda; isa++)
        if (cpu_isa_has((enum cpu_isa)isa, one->type))
            check_alike(one, other, (enum cpu_isa)isa, false);
}

/* ---- one call ---- */

char call_given[1];

const struct call_array *call_find(const struct call_test *test, const char *name)
{
    for (unsigned i = 0; i < test->work.n_arrays; i++)
        if (strcmp(test->work.arrays[i].name, name) == 0)
            return &test->work.arrays[i];
    ck_abort_msg("the call has no array %s", name);
}

/* The array of the name that this one lies on; NULL. */
static const char *lies_on(const struct call_test *test, const char *name)
{
    for (int i = 0; i < COUNT(test->onto); i++)
        if (test->onto[i].written && strcmp(test->onto[i].written, name) == 0)
            return test->onto[i].read;
    return NULL;
}

static bool is_drawn(const struct call_array *array)
{
    return array->use & (CALL_READ | CALL_WRITTEN) && !(array->use & CALL_FORWARD);
}

static enum number_type number_of(enum call_type type, enum number_type values)
{
    return type == CALL_FP32 ? NUMBER_FP32 : type == CALL_BF16 ? NUMBER_BF16 : values;
}

static void *draw(const struct call_test *test, const struct call_array *array, uint32_t seed)
{
    if (array->type == CALL_WORDS || array->type == CALL_FP64)
        return mirror_array(array->n, call_type_bytes(array->type, test->type));
    if (array->type == CALL_BYTES)
        return operation_values(NUMBER_BF16, (array->n + 1) / 2, seed); /* any codes, and in bf16 numbers */
    return operation_values(number_of(array->type, test->type), array->n, seed);
}

void call_make(struct call_test *test)
{
    test->host = test->call;
    call_describe(&test->work, &test->host,
                  &(struct call_device){backend_get()->plan, test->type, 1, PLAN_ATTENTION_OWN, false, 0});
    for (unsigned i = 0; i < test->work.n_arrays; i++)
        if (is_drawn(&test->work.arrays[i]) && !lies_on(test, test->work.arrays[i].name))
            call_set(&test->work.arrays[i], draw(test, &test->work.arrays[i], i + 1));
    for (unsigned i = 0; i < test->work.n_arrays; i++) {
        const char *on = lies_on(test, test->work.arrays[i].name);
        if (on)
            call_set(&test->work.arrays[i], call_get(call_find(test, on)));
    }
    if (test->prepare)
        test->prepare(test);
}

static const double *widen_words(const uint32_t *words, size_t n)
{
    double *wide = operation_zeros(n);

    for (size_t i = 0; i < n; i++)
        wide[i] = words[i];
    return wide;
}

void call_expect(const struct call_test *test, const double *expected[CALL_ARRAYS])
{
    struct call exact = test->host;
    struct call_work work;

    call_describe(&work, &exact,
                  &(struct call_device){backend_get()->plan, test->type, 1, PLAN_ATTENTION_OWN, false, 0});
    for (unsigned i = 0; i < work.n_arrays; i++) {
        const struct call_array *a = &work.arrays[i];
        if (a->type != CALL_WORDS && a->type != CALL_BYTES) {
            const enum number_type type = number_of(a->type, test->type);
            expected[i] =
                is_drawn(a) && a->type != CALL_FP64 ? operation_widen(type, call_get(a), a->n) : operation_zeros(a->n);
            call_set(a, expected[i]);
        } else if (a->type == CALL_WORDS && a->use & CALL_WRITTEN) {
            call_set(a, mirror_host_array(a->n, sizeof(uint32_t)));
        }
    }
    reference_run(&exact);
    for (unsigned i = 0; i < work.n_arrays; i++)
        if (work.arrays[i].type == CALL_WORDS && work.arrays[i].use & CALL_WRITTEN)
            expected[i] = widen_words(call_get(&work.arrays[i]), work.arrays[i].n);
}

static void run_call(struct mirror *at, void *const out[], const void *context)
{
    const struct call_test *test = context;
    struct call call = test->host;
    struct call_work work;
    struct error err = {""};
    const void *lent = NULL;

    call_describe(&work, &call,
                  &(struct call_device){at->plan, test->type, at->n_threads, PLAN_ATTENTION_OWN, false, 0});
    for (unsigned i = 0, p = 0; i < work.n_arrays; i++) {
        const struct call_array *a = &work.arrays[i];
        const size_t bytes = a->n * call_type_bytes(a->type, test->type);
        if (a->use & CALL_WRITTEN) {
            call_set(a, out[p++]);
        } else if (!is_drawn(a)) {
            call_set(a, mirror_scratch(at, bytes));
        } else if (!(a->use & CALL_ANYWHERE) || test->table == CALL_ON_DEVICE) {
            call_set(a, mirror_of(at, call_get(a)));
        } else if (test->table == CALL_LENT) {
            lent = call_get(a);
            ck_assert_msg(at->ops->lend(at->dev, lent, bytes, false, &err) == 0, "%s", err.text);
        }
    }
    for (unsigned i = 0; i < work.n_arrays; i++) {
        const char *on = lies_on(test, work.arrays[i].name);
        if (on)
            call_set(&work.arrays[call_find(test, on) - test->work.arrays], call_get(&work.arrays[i]));
    }
    if (test->before)
        test->before(at, &call, test);
    call_run(at->ops, at->dev, &call);
    if (lent) {
        ck_assert_int_eq(at->ops->sync(at->dev), 0);
        at->ops->unlend(at->dev, lent);
    }
}

static struct operation operation_of(struct call_test *test)
{
    struct operation operation = {.type = test->type,
                                  .run = run_call,
                                  .context = test,
                                  .is_elementwise = test->is_elementwise};

    for (unsigned i = 0, p = 0; i < test->work.n_arrays; i++) {
        const struct call_array *a = &test->work.arrays[i];
        if (a->use & CALL_WRITTEN)
            operation.parts[p++] =
                (struct operation_part){.name = a->name, .n = a->n, .initial = call_get(a), .type = a->type};
    }
    return operation;
}

void call_check(struct call_test *test)
{
    const double *expected[CALL_ARRAYS] = {NULL};

    call_make(test);
    call_expect(test, expected);
    struct operation operation = operation_of(test);
    for (unsigned i = 0, p = 0; i < test->work.n_arrays; i++)
        if (test->work.arrays[i].use & CALL_WRITTEN) {
            operation.parts[p].tolerance = test->near(test, test->work.arrays[i].name);
            operation.parts[p++].expected = expected[i];
        }
    operation_check(&operation);
}

void call_once(struct call_test *test)
{
    call_describe(&test->work, &test->host,
                  &(struct call_device){backend_get()->plan, test->type, 1, PLAN_ATTENTION_OWN, false,
                                        0}); /* it may be a copy */
    const struct operation operation = operation_of(test);
    void *out[OPERATION_PARTS] = {NULL};

    for (unsigned p = 0; p < OPERATION_PARTS && operation.parts[p].n; p++)
        out[p] = operation_room(NUMBER_FP32, operation.parts[p].n * 2); /* room for any type */
    operation_run(&operation, out);
    for (unsigned i = 0, p = 0; i < test->work.n_arrays; i++)
        if (test->work.arrays[i].use & CALL_WRITTEN)
            call_set(&test->work.arrays[i], out[p++]);
}
