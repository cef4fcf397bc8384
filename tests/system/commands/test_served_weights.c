/* on_weights of libeps in real runs: a server, another process, takes the weights after steps, by name and in an order
 * of its own, and finds those of the checkpoint of that step, bit for bit; nobody can write them; the run's bits
 * stay. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 4, SEQ = 16, STEPS = 4, NAME = 128, MOST = 400 };

static const char *const text[] = {"data.txt"}, *const pairs[] = {"pairs.jsonl"}, *const images[] = {"images.npy"},
                         *const ids[] = {"ids.bin"};

/* ---- the server ---- */

struct head { /* of a tensor that is sent: its elements follow, in the order of a file */
    enum eps_number type;
    bool frozen;
    uint32_t n_dims, n_pieces;
    uint64_t shape[4], n_bytes;
};

struct kept {
    char name[NAME];
    struct head head;
    void *bytes;
};

static void get(int fd, void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = read(fd, (char *)bytes + done, n - done);
        if (got <= 0)
            _exit(20);
        done += (size_t)got;
    }
}

static void put(int fd, const void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t sent = write(fd, (const char *)bytes + done, n - done);
        ck_assert_int_gt(sent, 0);
        done += (size_t)sent;
    }
}

/* A file of tensors, by its header's own words. */
struct tensors {
    char *bytes;
    const char *data;
    json_t *header;
};

static struct tensors read_file(const char *path)
{
    struct tensors file = {processes_read(path), NULL, NULL};
    uint64_t n;

    memcpy(&n, file.bytes, sizeof n);
    file.header = json_loadb(file.bytes + 8, n, 0, NULL);
    file.data = file.bytes + 8 + n;
    ck_assert_ptr_nonnull(file.header);
    return file;
}

/* To nearest; ties of a master away from zero, of frozen weights to even. */
static uint16_t to_bf16(float value, bool frozen)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + (frozen ? 0x7fff + (bits >> 16 & 1) : 0x8000)) >> 16);
}

/* The file's tensor of this name, all fp32, has these elements. False: the file has none of this name. */
static bool check(const struct tensors *file, const struct kept *kept)
{
    const json_t *entry = json_object_get(file->header, kept->name), *shape = json_object_get(entry, "shape");
    const size_t value = kept->head.type == EPS_FP32 ? 4 : 2;
    size_t n = 1;

    if (!entry)
        return false;
    ck_assert_str_eq(json_string_value(json_object_get(entry, "dtype")), "F32");
    ck_assert_uint_eq(json_array_size(shape), kept->head.n_dims);
    for (uint32_t d = 0; d < kept->head.n_dims; n *= kept->head.shape[d++])
        ck_assert_int_eq(json_integer_value(json_array_get(shape, d)), (json_int_t)kept->head.shape[d]);
    const char *want = file->data + json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
    ck_assert_uint_eq(kept->head.n_bytes, n * value);
    for (size_t i = 0; i < n; i++) {
        float x;
        uint16_t half;
        memcpy(&x, want + 4 * i, sizeof x);
        half = to_bf16(x, kept->head.frozen);
        ck_assert_msg(memcmp((char *)kept->bytes + value * i, value == 4 ? (void *)&x : (void *)&half, value) == 0,
                      "%s: element %zu", kept->name, i);
    }
    return true;
}

static int backwards(const void *a, const void *b)
{
    return -strcmp(a, b);
}

/* Asks for all tensors, the last names first. */
static size_t take(int fd, struct kept *kept)
{
    static char names[MOST][NAME];
    uint64_t n;

    get(fd, &n, sizeof n);
    ck_assert_uint_le(n, MOST);
    get(fd, names, n * NAME);
    qsort(names, n, NAME, backwards);
    for (size_t i = 0; i < n; i++) {
        put(fd, names[i], NAME);
        memcpy(kept[i].name, names[i], NAME);
        get(fd, &kept[i].head, sizeof kept[i].head);
        kept[i].bytes = malloc(kept[i].head.n_bytes + 1);
        get(fd, kept[i].bytes, kept[i].head.n_bytes);
    }
    put(fd, (char[NAME]){""}, NAME);
    return n;
}

/* ---- the run ---- */

static const struct eps_tensor *find(const struct eps_weights *weights, const char *name)
{
    for (size_t i = 0; i < weights->n_tensors; i++)
        if (strcmp(weights->tensors[i].name, name) == 0)
            return &weights->tensors[i];
    return NULL;
}

/* Its elements in the order of a file, by strides. */
static void send_rows(int fd, const struct eps_tensor *t, const struct eps_tensor_piece *piece)
{
    const size_t value = t->type == EPS_FP32 ? 4 : 2;
    uint64_t shape[4] = {1, 1, 1, 1}, strides[4] = {0, 0, 0, 0};
    char *row;
    size_t n = 0;

    for (uint32_t d = 0; d < t->n_dims; d++)
        shape[d] = t->shape[d], strides[d] = t->strides[d];
    row = malloc(shape[1] * shape[2] * shape[3] * value);
    for (uint64_t r = 0; r < piece->n_rows; r++, n = 0) {
        for (uint64_t j = 0; j < shape[1]; j++)
            for (uint64_t k = 0; k < shape[2]; k++)
                for (uint64_t l = 0; l < shape[3]; l++, n += value)
                    memcpy(row + n,
                           (const char *)piece->at +
                               (r * strides[0] + j * strides[1] + k * strides[2] + l * strides[3]) * value,
                           value);
        put(fd, row, n);
    }
    free(row);
}

static void send_tensor(int fd, const struct eps_tensor *t)
{
    struct head head = {.type = t->type, .frozen = t->frozen, .n_dims = t->n_dims, .n_pieces = (uint32_t)t->n_pieces};
    uint64_t n_bytes = t->type == EPS_FP32 ? 4 : 2, n_rows = 0;

    ck_assert_int_eq(t->why != NULL, t->n_pieces == 0);
    for (uint32_t d = 0; d < t->n_dims; n_bytes *= t->shape[d++])
        head.shape[d] = t->shape[d];
    head.n_bytes = t->why ? 0 : n_bytes;
    put(fd, &head, sizeof head);
    for (size_t i = 0; i < t->n_pieces; i++) {
        ck_assert_uint_eq(t->pieces[i].first_row, n_rows);
        n_rows += t->pieces[i].n_rows;
        send_rows(fd, t, &t->pieces[i]);
    }
    ck_assert(t->why || n_rows == t->shape[0]);
}

/* Start, the tensors that are asked for, finish. */
static void serve(void *user, const struct eps_weights *weights)
{
    const int fd = *(int *)user;
    char name[NAME] = "";

    put(fd, &weights->step, sizeof weights->step);
    put(fd, &(uint64_t){weights->n_tensors}, sizeof(uint64_t));
    for (size_t i = 0; i < weights->n_tensors; i++) {
        strncpy(name, weights->tensors[i].name, NAME - 1);
        put(fd, name, NAME);
    }
    for (;;) {
        get(fd, name, NAME);
        if (!*name)
            return;
        send_tensor(fd, find(weights, name));
    }
}

/* ---- runs ---- */

static void put_images(void)
{
    enum { N = 12, SIDE = 13, EACH = 3 * SIDE * SIDE };
    static const char *const shapes[] = {"(12, 13, 13, 3)", "(12,)"};
    static uint8_t bytes[128 + N * EACH];

    for (int labels = 0; labels < 2; labels++) {
        memset(bytes, ' ', 128);
        memcpy(bytes, "\x93NUMPY\1\0\x76\0", 10);
        bytes[10 + sprintf((char *)bytes + 10, "{'descr': '|u1', 'fortran_order': False, 'shape': %s, }",
                           shapes[labels])] = ' ';
        bytes[127] = '\n';
        for (size_t i = 0; i < N * EACH; i++)
            bytes[128 + i] = labels ? (uint8_t)(i % 5) : (uint8_t)processes_token(i);
        processes_write(labels ? "labels.npy" : "images.npy", bytes, 128 + (labels ? N : N * EACH));
    }
}

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_config("tied.json", 2, 4, 32, SEQ);
    processes_config_with("divided.json", 1, 1, 7, SEQ, "\"vocab_size\": 8200, \"tie_word_embeddings\": false");
    expect("for f in qwen3 gemma3_tied llama3; do sed 's/\"vocab_size\": 61/\"vocab_size\": 256/; "
           "s/\"max_position_embeddings\": [0-9]*/\"max_position_embeddings\": 64/' " TESTS_DIR
           "/fixtures/$f/config.json "
           ">$f.json; done; cp " TESTS_DIR "/fixtures/resnet_basic/config.json resnet.json; "
           "for i in $(seq 40); do printf '{\"source\": \"%s+1=\", \"target\": \"%s\"}\\n' $i $((i + 1)); done "
           ">pairs.jsonl",
           0);
    processes_put_text("t5.json", quoted("{'model_type': 't5', 'd_model': 16, 'd_kv': 8, 'd_ff': 24, 'num_layers': 1, "
                                         "'num_heads': 2, 'vocab_size': 256}"));
    put_images();
    uint16_t tokens[2000];
    for (size_t i = 0; i < COUNT(tokens); i++)
        tokens[i] = (uint16_t)(processes_token(i) * 60);
    processes_write("ids.bin", tokens, sizeof tokens);
    expect("eps train --model tied.json --data data.txt --batch 4 --seq 16 --steps 1 --device cpu --out begun && "
           "eps export --model begun/latest --out base",
           0);
}

SUITE_TIMEOUT(240)
SUITE_FIXTURE_ONCE(setup, processes_remove)

static struct eps_train_options options_of(const char *model, const char *const *data, const char *out)
{
    struct eps_train_options o = processes_options(model, data, out);

    o.batch = ROWS, o.steps = STEPS, o.lr = 1e-2, o.warmup = 0, o.device = "cpu", o.device_mem = 64 << 20;
    o.save_every = 1, o.keep = 0, o.deterministic = true, o.parts = 1;
    if (data == text || data == ids)
        o.seq = SEQ;
    else
        o.eval_tokens = UINT64_MAX;
    return o;
}

struct looked {
    uint64_t step;
    size_t n;
    struct kept kept[MOST];
};

/* Trains; what a server, which is another process, is given after each look is found here. Returns how many looks that
 * are. */
static size_t train(struct eps_train_options *o, struct looked looks[STEPS + 1])
{
    int ends[2], status;
    size_t n = 0;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t trainer = fork();
    if (trainer == 0) {
        struct eps_error error = {""};
        close(ends[0]);
        o->on_weights = serve, o->weights_user = &ends[1];
        const int rc = eps_train(o, NULL, NULL, &error);
        processes_put_text("said", error.text);
        _exit(-rc);
    }
    close(ends[1]);
    for (uint64_t step; n <= STEPS && read(ends[0], &step, sizeof step) == sizeof step; n++) {
        looks[n].step = step;
        looks[n].n = take(ends[0], looks[n].kept);
    }
    close(ends[0]);
    ck_assert_int_eq(waitpid(trainer, &status, 0), trainer);
    char *said = processes_read(processes_path("said"));
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d: %s", status, said);
    free(said);
    return n;
}

static void forget(struct looked *looks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < looks[i].n; t++)
            free(looks[i].kept[t].bytes);
}

static void train_alone(struct eps_train_options o, const char *out)
{
    o.out = out;
    processes_train(&o);
}

static const struct {
    const char *model, *const *data;
    struct eps_train_options how;
    uint64_t divided; /* rows of tables that lie in two places; 0: there are none */
} kinds[] = {
    {"tied.json", text, {.weights_every = 1}, 0},
    {"divided.json", ids, {.weights_every = 2}, 8200},
    {"qwen3.json", text, {.weights_every = 1, .precision = EPS_BF16}, 0},
    {"qwen3.json",
     text,
     {.weights_every = 2, .precision = EPS_BF16, .master = EPS_MASTER_NONE, .optimizer = EPS_ADAMW},
     0},
    {"gemma3_tied.json", text, {.weights_every = 1, .freeze = "layers.0.*,*norm*"}, 0},
    {"gemma3_tied.json", text, {.weights_every = 1, .freeze = "layers.0.*", .freeze_until = 2}, 0},
    {"llama3.json", text, {.weights_every = 1, .commit = EPS_FENCED, .clip_norm = 1}, 0},
    {"llama3.json", text, {.weights_every = 1, .freeze = "embed_tokens*,layers.1.*", .base = EPS_BASE_BF16}, 0},
    {"tied.json", text, {.weights_every = 1, .drop_layers = 0.5}, 0},
    {"t5.json", pairs, {.weights_every = 2}, 0},
    {"resnet.json", images, {.weights_every = 2}, 0},
};

/* The options of kinds[i] that differ. */
static struct eps_train_options kind(int i, const char *out)
{
    struct eps_train_options o = options_of(kinds[i].model, kinds[i].data, out);
    const struct eps_train_options *how = &kinds[i].how;

    o.weights_every = how->weights_every, o.precision = how->precision, o.master = how->master;
    o.optimizer = how->optimizer, o.freeze = how->freeze, o.base = how->base, o.commit = how->commit;
    o.freeze_until = how->freeze_until ? how->freeze_until : o.freeze_until;
    o.clip_norm = how->clip_norm > 0 ? how->clip_norm : o.clip_norm;
    o.drop_layers = how->drop_layers > 0 ? how->drop_layers : o.drop_layers;
    return o;
}

TEST_EACH(a_server_gets_the_weights_of_each_steps_checkpoint_by_name, COUNT(kinds))
{
    static struct looked looks[STEPS + 1];
    const char *out = print("kind-%d", _i);
    struct eps_train_options o = kind(_i, out);
    const size_t n = train(&o, looks);

    ck_assert_uint_eq(n, STEPS / o.weights_every);
    for (size_t i = 0; i < n; i++) {
        struct tensors saved =
            read_file(processes_path(print("%s/step-%d/model.safetensors", out, (int)looks[i].step)));
        ck_assert_uint_eq(looks[i].step, (i + 1) * o.weights_every);
        ck_assert_uint_eq(looks[i].n,
                          json_object_size(saved.header) - (json_object_get(saved.header, "__metadata__") != NULL));
        for (size_t t = 0; t < looks[i].n; t++) {
            const struct kept *kept = &looks[i].kept[t];
            ck_assert_msg(check(&saved, kept), "%s has no %s", out, kept->name);
            ck_assert_uint_eq(kept->head.n_pieces, kept->head.shape[0] == kinds[_i].divided ? 2 : 1);
        }
        json_decref(saved.header);
        free(saved.bytes);
    }
    forget(looks, n);
    o.weights_every = 0;
    train_alone(o, print("alone-%d", _i));
    outputs_check_same_latest(out, print("alone-%d", _i));
}

static void die_after_two(void *user, const struct eps_step *step)
{
    (void)user;
    if (step->step == 2)
        raise(SIGKILL);
}

/* Whoever takes a job over sees them, from what it finds on. */
TEST(the_next_client_of_a_job_is_shown_them_too)
{
    static struct looked looks[STEPS + 1];
    struct eps_train_options o = options_of("qwen3.json", text, "taken"), attach = eps_train_defaults();
    int status;

    processes_daemon("lab", 1, NULL);
    o.connect = "lab", o.device = NULL, o.device_mem = 0;
    const pid_t first = fork();
    if (first == 0)
        _exit(-eps_train(&o, &(struct eps_train_events){.on_step = die_after_two}, NULL, NULL));
    ck_assert_int_eq(waitpid(first, &status, 0), first);
    ck_assert(WIFSIGNALED(status));
    attach.attach = "lab", attach.weights_every = 1;
    const size_t n = train(&attach, looks);
    ck_assert(n >= 1 && looks[n - 1].step == STEPS);
    for (size_t i = 0; i < n; i++) {
        struct tensors saved = read_file(processes_path(print("taken/step-%d/model.safetensors", (int)looks[i].step)));
        for (size_t t = 0; t < looks[i].n; t++)
            ck_assert(check(&saved, &looks[i].kept[t]));
        json_decref(saved.header);
        free(saved.bytes);
    }
    forget(looks, n);
}

/* What is trained by the names of PEFT, as the adapter's file has it; the base, which stays, by its own. */
TEST_EACH(adapters_come_with_their_base, 2)
{
    static struct looked looks[STEPS + 1];
    const char *out = print("adapters-%d", _i);
    struct eps_train_options o = options_of("base", text, out);

    o.lora = "rank=4,targets=c_attn", o.weights_every = STEPS, o.precision = _i ? EPS_BF16 : EPS_FP32;
    ck_assert_uint_eq(train(&o, looks), 1);
    struct tensors base = read_file("base/model.safetensors"),
                   saved = read_file(processes_path(print("%s/latest/adapter_model.safetensors", out)));
    size_t n_adapters = 0;
    for (size_t t = 0; t < looks->n; t++) {
        const struct kept *kept = &looks->kept[t];
        ck_assert_msg(check(kept->head.frozen ? &base : &saved, kept), "no %s", kept->name);
        n_adapters += !kept->head.frozen;
    }
    ck_assert_uint_eq(n_adapters, 2 * 2); /* A and B, of two blocks */
    ck_assert_uint_eq(looks->n - n_adapters, json_object_size(base.header) - 1);
    json_decref(base.header), json_decref(saved.header);
    free(base.bytes), free(saved.bytes);
    forget(looks, 1);
}

/* ---- what is asked for between steps, and what there is to see ---- */

struct asker {
    unsigned n_asked, n_looks;
    enum eps_rows answers[8];
    const char *name, *why; /* this tensor has no pieces, because: */
};

static enum eps_rows ask(void *user, struct eps_step_rows *rows)
{
    struct asker *asker = user;

    (void)rows;
    return asker->answers[asker->n_asked++];
}

/* True if writing there is the end of whoever does. */
static bool is_fatal(const char *at)
{
    int status;
    const pid_t pid = fork();

    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)(uintptr_t)at = 0;
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

/* Neither there, nor by the descriptor. */
static void check_read_only(const struct eps_weights *weights)
{
    char *at = (char *)(uintptr_t)weights->tensors[0].pieces[0].at;
    char *page = (char *)((uintptr_t)at & ~(uintptr_t)4095);

    ck_assert(is_fatal(at));
    ck_assert(mprotect(page, 4096, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
    ck_assert(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, weights->fd, 0) == MAP_FAILED && errno == EPERM);
    ck_assert(pwrite(weights->fd, "x", 1, 0) < 0 && errno == EPERM);
    ck_assert(ftruncate(weights->fd, 0) < 0 && errno == EPERM);
    ck_assert(fallocate(weights->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0 && errno == EPERM);
}

/* A mapping of the program's own has the same at the same places. */
static void check_own_mapping(const struct eps_weights *weights)
{
    const char *own = mmap(NULL, weights->bytes, PROT_READ, MAP_SHARED, weights->fd, 0);

    ck_assert(own != MAP_FAILED);
    for (size_t i = 0; i < weights->n_tensors; i++) {
        const struct eps_tensor_piece *piece = weights->tensors[i].pieces;
        ck_assert_mem_eq(own + piece->offset, piece->at, piece->n_rows * weights->tensors[i].strides[0] * 4);
    }
    munmap((void *)(uintptr_t)own, weights->bytes);
}

static void look(void *user, const struct eps_weights *weights)
{
    struct asker *asker = user;
    const struct eps_tensor *t = asker->name ? find(weights, asker->name) : NULL;

    asker->n_looks++;
    ck_assert_uint_eq(weights->step, asker->n_asked > 3);
    if (t) {
        ck_assert_uint_eq(t->n_pieces, 0);
        ck_assert_str_eq(t->why, asker->why);
    } else {
        check_read_only(weights);
        check_own_mapping(weights);
    }
    processes_put_text("looks", print("%u %u", asker->n_asked, asker->n_looks));
}

static int train_asking(struct eps_train_options o, struct asker asker)
{
    o.on_rows = ask, o.rows_user = &asker, o.on_weights = look, o.weights_user = &asker;
    return processes_train_with(&o, NULL, NULL);
}

/* Twice before the first step, once after it, beside a save. */
TEST(weights_are_shown_whenever_rows_are_asked_for)
{
    const struct asker asker = {
        .answers = {EPS_ROWS_WEIGHTS, EPS_ROWS_WEIGHTS, EPS_ROWS_TRAIN, EPS_ROWS_SAVE, EPS_ROWS_WEIGHTS, EPS_ROWS_END}};

    ck_assert_int_eq(train_asking(options_of("tied.json", text, "asked"), asker), -EINTR);
    expect("cat looks", 0, "5 3");
}

static const struct {
    const char *model, *lora, *sparse, *name, *why;
    enum eps_base base;
} refused[] = {
    {"base", "rank=2", NULL, "transformer.h.0.attn.c_attn.weight",
     "is coded in nf4, as base says: the base's own files have it", EPS_BASE_NF4},
    {"base", "rank=2", NULL, "transformer.h.1.mlp.c_fc.weight",
     "is coded in int8, as base says: the base's own files have it", EPS_BASE_INT8},
    {"tied.json", NULL, "keep=0.3", "transformer.h.1.mlp.c_fc.weight", "is sparse: a checkpoint has all of it",
     EPS_BASE_DEFAULT},
};

TEST_EACH(what_lies_there_in_another_form_says_so, COUNT(refused))
{
    struct eps_train_options o = options_of(refused[_i].model, text, print("refused-%d", _i));
    struct asker asker = {.answers = {EPS_ROWS_WEIGHTS, EPS_ROWS_END}};

    o.lora = refused[_i].lora, o.sparse = refused[_i].sparse, o.base = refused[_i].base;
    asker.name = refused[_i].name, asker.why = refused[_i].why;
    expect("rm -f looks", 0);
    train_asking(o, asker);
    expect("cat looks", 0, "1 1");
}

TEST(who_asks_for_weights_must_look_at_them)
{
    struct eps_train_options o = options_of("tied.json", text, "blind");
    struct asker asker = {.answers = {EPS_ROWS_WEIGHTS}};

    o.on_rows = ask, o.rows_user = &asker;
    ck_assert_int_eq(processes_train_with(&o, NULL, NULL), -EINVAL);
    expect("cat said", 0, "on_rows of step 1: it asks for weights, and there is no on_weights");
}
