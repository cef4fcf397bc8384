/* Convolutional nets in real programs, on images: what torchvision's layout of weights gives, and that derived inputs
 * change no byte. That no other way to run them does: tests/system/invariants. */
#include "tests/kit/command.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/images.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/runs.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(240)
SUITE_FIXTURE(processes_setup, processes_remove)

static const char *const nets[] = {"wide_resnet", "resnet_basic", "resnet_bottleneck"};

enum { N_IMAGES = 48, N_HELD = 5 };

static unsigned open_net(int which, struct fixture *fixture)
{
    unsigned side = 1;

    fixture_open(fixture, nets[which]);
    while (side * side < fixture->seq)
        side++;
    expect("mkdir model", 0);
    fixture_write_model(fixture, processes_path("model"));
    images_put("images.npy", "labels.npy", N_IMAGES, side, 0);
    images_put("held-images.npy", "held-labels.npy", N_HELD, side, 1000);
    return side;
}

static double cross_entropy(const json_t *logits, uint32_t label)
{
    double sum = 0;

    for (size_t i = 0; i < json_array_size(logits); i++)
        sum += exp(json_number_value(json_array_get(logits, i)));
    return log(sum) - json_number_value(json_array_get(logits, label));
}

/* By running statistics, of weights in torchvision's layout. The loss is a mean in double of logits in fp32. */
TEST_EACH(an_evaluation_is_pytorchs, COUNT(nets))
{
    struct fixture fixture;
    const unsigned side = open_net(_i, &fixture);
    const size_t n = (size_t)fixture.batch * fixture.seq;
    uint32_t *ids = malloc(n * sizeof *ids), *labels = malloc(n * sizeof *labels);
    uint8_t *bytes = malloc(3 * n), classes[N_IMAGES];
    double want = 0;

    fixture_minibatch(ids, labels, &fixture, 0);
    for (size_t i = 0; i < 3 * n; i++)
        bytes[i] = (uint8_t)(ids[i / 3] >> 8 * (i % 3));
    for (uint32_t row = 0; row < fixture.batch; row++) {
        classes[row] = (uint8_t)labels[(size_t)row * fixture.seq];
        want += cross_entropy(json_array_get(json_object_get(fixture.reference, "logits"), row), classes[row]);
    }
    images_put_npy("images.npy", bytes, fixture.batch, side);
    images_put_npy("labels.npy", classes, fixture.batch, 0);
    json_t *got = expect_json("eps eval --model model --data images.npy --json", 0);
    ck_assert_double_eq_tol(json_number_value(json_object_get(got, "loss")), want / fixture.batch, 1e-5);
    json_decref(got);
    free(ids), free(labels), free(bytes);
    fixture_close(&fixture);
}

#define DATA "--data images.npy --eval-data held-images.npy --save-every 2 --keep 0 --augment crop=2,flip "

/* The least memory, in steps of a 200th of the least of all, in which inputs are derived again. */
static unsigned long long find_derived(const char *job, unsigned seq)
{
    bool derives = false;

    expect(print("eps plan %s --seq %u --minimum", job, seq), 0);
    const unsigned long long least = strtoull(command_out(), NULL, 10);
    unsigned long long memory = least;
    while (!derives) {
        memory += least / 200;
        ck_assert_uint_lt(memory, 2 * least);
        json_t *plan = expect_json(print("eps plan %s --seq %u --device-mem %llu --json", job, seq, memory), 0);
        derives = json_is_true(json_object_get(json_object_get(plan, "choice"), "derives_inputs"));
        json_decref(plan);
    }
    return memory;
}

/* A residual net's worker is killed, and its run resumed, at a budget in which inputs are derived again, and at
 * another. */
TEST_EACH(a_run_that_derives_inputs_is_killed_and_goes_on, 2)
{
    struct fixture fixture;
    char job[150];
    const unsigned side = open_net(1 + _i, &fixture);

    snprintf(job, sizeof job, "--model model --image %ux%u --batch 12 --microbatch 3 --parts 2", side, side);
    const unsigned long long memory = find_derived(job, side * side);
    expect(print("eps train %s " DATA "--steps 4 --out roomy --device-mem 1GiB", job), 0);
    expect(print("eps train %s " DATA "--steps 4 --out derived --device-mem %llu -v", job, memory), 0,
           "layers, the others derived again, on the device", "at most (as planned)");
    expect(print("eps train --resume roomy/step-2 --out on --device-mem %llu -v", memory), 0,
           "the others derived again");
    expect("eps train --resume derived/step-2 --out back --device-mem 1GiB", 0);
    for (int i = 0; i < 3; i++)
        outputs_check_same_latest("roomy", (const char *[]){"derived", "on", "back"}[i]);
    runs_check_killed_command(print("eps train %s " DATA "--steps 40 --device-mem %llu", job, memory));
    fixture_close(&fixture);
}

/* Ghost batches of a part's rows are the part: another order of sums alone is different. */
TEST_EACH(ghosts_of_whole_parts_lose_what_parts_do, COUNT(nets))
{
    struct fixture fixture;
    const unsigned side = open_net(_i, &fixture);
    static const char *const models[] = {"model", "ghosts"};
    double losses[2];

    expect("sed 's/{/{\"ghost_batch_size\": 6, /' model/config.json >ghosts.json && cp -r model ghosts && "
           "mv ghosts.json ghosts/config.json",
           0);
    for (int i = 0; i < 2; i++) {
        expect(print("eps train --model %s --data images.npy --image %ux%u --batch 12 --parts 2 --steps 4 --lr 1e-3 "
                     "--out %s-run --device cpu",
                     models[i], side, side, models[i]),
               0);
        json_t *got = expect_json(print("tail -n 1 %s-run/metrics.jsonl", models[i]), 0);
        losses[i] = json_number_value(json_object_get(got, "loss"));
        json_decref(got);
    }
    ck_assert_double_eq_tol(losses[0], losses[1], 1e-5 * losses[0]);
    ck_assert_double_gt(losses[0], 0);
    fixture_close(&fixture);
}

/* The mean of -log p of class k % 5 of row k, as n predictions say it. */
static double loss_of_predictions(const char *name, unsigned n)
{
    FILE *f = fopen(name, "r");
    char line[1000], class[2] = "0";
    double loss = 0;

    ck_assert_ptr_nonnull(f);
    for (unsigned k = 0; k < n; k++) {
        ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
        json_t *said = json_loads(line, 0, NULL);
        class[0] = (char)('0' + k % 5);
        loss -= log(json_number_value(json_object_get(json_object_get(said, "probability"), class))) / n;
        json_decref(said);
    }
    fclose(f);
    return loss;
}

/* A preset takes its classes from the data; what it saved goes on, is evaluated, and says what each row is. */
TEST(a_preset_learns_the_classes_of_its_images)
{
    images_put("images.npy", "labels.npy", 20, 16, 0);
    expect("eps train --model resnet-18 --image 16x16 --data images.npy --batch 4 --parts 2 --steps 1 --out run "
           "--device cpu",
           0, "5 classes: 0, 1, 2, 3, 4", "18 images of 16x16, in colour, 2 held out; batch norms over 2 of 4 images",
           " images/s over 1 step\n");
    expect("grep -q '\"stem\": \"cifar\"' run/latest/config.json && grep -q id2label run/latest/config.json", 0);
    expect("eps eval --model run/latest --data images.npy --predictions said.jsonl", 0, "over 20 rows", "accuracy ");
    expect("[ $(wc -l <said.jsonl) = 20 ] && grep -q '{\"row\":19,\"prediction\":\"[0-4]\",\"probability\":{\"0\":' "
           "said.jsonl",
           0);
    json_t *got = expect_json("eps eval --model run/latest --data images.npy --json", 0);
    const json_t *classes = json_object_get(got, "classes");
    double right = 0;
    for (size_t i = 0; i < 5; i++)
        right += 4 * json_number_value(json_object_get(json_array_get(classes, i), "accuracy"));
    ck_assert_double_eq_tol(right / 20, json_number_value(json_object_get(got, "accuracy")), 1e-12);
    const double loss = json_number_value(json_object_get(got, "loss"));
    ck_assert_double_eq_tol(loss_of_predictions("said.jsonl", 20), loss, 1e-5 * loss);
    ck_assert_ptr_null(json_object_get(got, "top5_accuracy")); /* of five classes it would be 1 */
    json_decref(got);
    expect("eps generate --model run/latest --ids 1,2 --tokens 2", 1, "cannot continue a text");
}

/* The middle of an image whose shorter side has these pixels already is 2 pixels from each edge. */
TEST(an_evaluation_sees_the_middle_of_a_scaled_image)
{
    enum { N = 6, BIG = 20, SIDE = 16, LINE = 3 * SIDE };
    uint8_t big[N * BIG * BIG * 3], middle[N * SIDE * LINE], classes[N] = {0, 1, 2, 3, 4, 0};

    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (uint8_t)processes_token(i);
    for (size_t line = 0; line < N * SIDE; line++)
        memcpy(middle + line * LINE, big + ((line / SIDE * BIG + line % SIDE + 2) * BIG + 2) * 3, LINE);
    images_put_npy("images.npy", big, N, BIG), images_put_npy("labels.npy", classes, N, 0);
    images_put_npy("middle-images.npy", middle, N, SIDE), images_put_npy("middle-labels.npy", classes, N, 0);
    processes_put_text("net.json",
                       "{\"model_type\": \"wide_resnet\", \"widen_factor\": 1, \"image_size\": 16, \"depth\": 10}");
    expect("eps train --model net.json --data middle-images.npy --eval-data middle-images.npy --batch 2 --steps 1 "
           "--out run --device cpu",
           0);
    expect("eps eval --model run/latest --data images.npy --image 16x16,shorter=20 --json >scaled && "
           "eps eval --model run/latest --data middle-images.npy --json >cut && cmp scaled cut",
           0);
    expect("eps eval --model run/latest --data images.npy --json >covered && ! cmp -s covered cut", 0);
    expect("eps eval --model run/latest --data images.npy --image 20x20", 2,
           "--image 20x20: the model sees images of 16x16");
    processes_config("text.json", 1, 4, 32, 32), processes_text("text.txt", 2000);
    expect("eps train --model text.json --data text.txt --batch 2 --seq 16 --steps 1 --out text --device cpu", 0);
    expect("eps eval --model text/latest --data text.txt --image 16x16", 2, "--image is for nets of images");
    expect("eps eval --model run/latest --data images.npy --long drop", 2, "--long is for text");
    expect("eps eval --model run/latest --data images.npy --source-seq 4", 2, "--source-seq 4 is for encoder-decoders");
}

/* Channels last, of a file that has them first. */
TEST(filters_are_those_of_the_first_convolution)
{
    struct fixture fixture;
    struct eps_filters got;
    struct outputs_tensors file;
    struct eps_error error;
    uint64_t n;

    open_net(2, &fixture);
    ck_assert_msg(eps_filters(&got, "model", &error) == 0, "%s", error.text);
    ck_assert(got.n == 4 && got.height == 7 && got.width == 7 && got.channels == 3);
    outputs_open_tensors(&file, "model", "model.safetensors");
    const float *const want = outputs_tensor(&file, "conv1.weight", &n);
    ck_assert_uint_eq(n, 4 * 49 * 3);
    for (size_t i = 0; i < n; i++) {
        const size_t filter = i / (49 * 3), tap = i / 3 % 49, channel = i % 3;
        ck_assert_float_eq(got.values[i], want[(filter * 3 + channel) * 49 + tap]);
    }
    outputs_close_tensors(&file);
    eps_filters_free(&got);
    processes_config("text.json", 1, 4, 32, 32);
    ck_assert_int_eq(eps_filters(&got, "text.json", &error), -EINVAL);
    ck_assert_str_eq(error.text, "text.json: it has no convolution of images, so there are no filters");
    if (system("gnuplot --version >/dev/null 2>&1") == 0)
        expect("eps report model --filters --out filters.svg && grep -q '<svg' filters.svg", 0, "filters of 1 model");
    expect("eps report model --filters", 2, "--out is needed with --filters");
    expect("eps report model --filters --bias", 2, "give only one of them");
    fixture_close(&fixture);
}

static const struct {
    const char *command;
    int status;
    const char *says;
} asked[] = {
    {"eps plan --model net.json --batch 4", 0, "\n4 images of 16x16 pixels in 1 part, "},
    {"eps plan --model net.json --batch 4 --timeline", 0, " images/s\n"},
    {"eps train --model resnet-18 --image 32x16 --data images.npy --out r", 2, "resnet-18 sees square images"},
    {"eps train --model resnet-18 --lora rank=4 --data images.npy --out r", 2, "--lora is for models of text"},
    {"eps train --model net.json --image 8x8 --data images.npy --out r", 2, "the model sees images of 16x16"},
    {"eps train --model net.json --data images.npy --mask-fraction 0.1 --out r", 2, "--mask-fraction is for text"},
    {"eps plan --model net.json --batch 4 --seq 64", 1, "the model sees images of 16 x 16"},
    {"eps train --model few.json --data images.npy --out r", 1, "depth is 11: it must be 4 and a multiple of 6"},
    {"eps train --model colours.json --data images.npy --out r", 1, "image_mean has 2 numbers"},
    {"eps train --model ghosts.json --data images.npy --batch 12 --parts 3 --out r", 1,
     "a part has 4 rows, which are not whole ghost batches of 3: --batch must be a multiple of 9"},
    {"eps train --model ghosts.json --data images.npy --batch 12 --microbatch 4 --out r", 1,
     "--microbatch 4: ghost batches of 3 rows need a multiple of them"},
    {"eps plan --model ghosts.json --batch 12 --microbatch 4", 1, "ghost batches of 3 rows need a multiple of them"},
    {"eps plan --model ghosts.json --batch 12 --microbatch 4 --minimum", 1, "need a multiple of them"},
    {"eps plan --model ghosts.json --find-depth", 2, "--find-depth is for models of like blocks"},
    {"eps train --model ghosts.json --data images.npy --precision fp16 --grad-dtype fp16 --device cpu --out r", 1,
     "running statistics are no gradients"},
    {"eps train --model ghosts.json --data images.npy --steps 1 --device cpu --out r", 0, "1 of 18 images"},
};

TEST_EACH(what_does_not_fit_is_refused, COUNT(asked))
{
    static const char net[] =
        "{\"model_type\": \"wide_resnet\", \"widen_factor\": 1, \"image_size\": 16, \"depth\": %s}";
    char text[200];

    images_put("images.npy", "labels.npy", 20, 16, 0);
    snprintf(text, sizeof text, net, "10");
    processes_put_text("net.json", text);
    snprintf(text, sizeof text, net, "11");
    processes_put_text("few.json", text);
    snprintf(text, sizeof text, net, "10, \"image_mean\": [0.5, 0.5]");
    processes_put_text("colours.json", text);
    snprintf(text, sizeof text, net, "10, \"ghost_batch_size\": 3");
    processes_put_text("ghosts.json", text);
    expect(asked[_i].command, asked[_i].status, asked[_i].says);
}
