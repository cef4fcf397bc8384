/* eps bench: prints what eps_profile measured. A worker measures, in a process of its own, as it will be one that
 * computes. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static void bench_print_row(const char *name, double value, const char *unit, const char *meaning)
{
    printf("%-22s %8.1f %-14s  %s\n", name, value, unit, meaning);
}

static void print_products(const char *name, const double flops[4], const char *meaning)
{
    printf("  %-20s", name);
    for (int i = 0; i < 4; i++)
        printf(" %8.0f", flops[i] / 1e9);
    printf("  GFLOP/s: %s\n", meaning);
}

static void print_convolutions(const struct eps_profile *p)
{
    static const struct {
        const char *name, *by;
        int path, type;
    } rows[] = {{"convolutions, fp32", "", 0, 0},
                {"convolutions, bf16", "", 0, 1},
                {"convolutions, bf16", ", by cuDNN", 1, 1}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int path = rows[i].path, type = rows[i].type;
        if (p->conv2d_flops[0][path][type] > 0)
            printf("%-22s %8.0f %8.0f %8.0f GFLOP/s: forward, gradients of inputs and of weights%s\n", rows[i].name,
                   p->conv2d_flops[0][path][type] / 1e9, p->conv2d_flops[1][path][type] / 1e9,
                   p->conv2d_flops[2][path][type] / 1e9, rows[i].by);
    }
}

static const char *const attention_ways[] = {"", ", tensor cores", ", these with dropout", ", cuDNN"};

static void print_attention(const struct eps_profile *p)
{
    for (int type = 0; type < 2; type++)
        for (int path = 0; path < (type == 0 ? 1 : 4); path++)
            if (p->attention_flops[0][path][type] > 0)
                printf("%-22s %8.0f %8.0f GFLOP/s: forward and backward%s\n",
                       type == 0 ? "attention, fp32" : "attention, bf16", p->attention_flops[0][path][type] / 1e9,
                       p->attention_flops[1][path][type] / 1e9, attention_ways[path]);
}

static void print_lengths(const double flops[3])
{
    for (int i = 0; i < 3; i++)
        if (flops[i] > 0)
            printf(" %8.0f", flops[i] / 1e9);
        else
            printf(" %8s", "-");
}

/* What was measured. */
static void print_shapes(const struct eps_profile *p)
{
    printf("\n%-22s", "attention, by rows of");
    for (int i = 0; i < 6; i++)
        printf(" %8u", p->lengths[i % 3]);
    printf("  tokens: forward, then backward\n");
    for (int i = 0; i < 2 * 4 * 2 * 3; i++) {
        const int head = i % 3, keys = i / 3 % 2, path = i / 6 % 4, type = i / 24;
        if (p->attention_by_shape[0][path][type][keys][head][0] == 0)
            continue;
        printf("  %s, heads of %-6u", type == 0 ? "fp32" : "bf16", p->heads[head]);
        for (int direction = 0; direction < 2; direction++)
            print_lengths(p->attention_by_shape[direction][path][type][keys][head]);
        printf("  GFLOP/s%s%s\n", keys == 1 ? ": they share keys" : "", attention_ways[path]);
    }
    putchar('\n');
}

/* found: the file is where eps plan looks for it. */
static void print_profile(const struct eps_profile *p, bool found)
{
    static const char *const names[] = {"fp32", "bf16"};

    printf("%-22s", "matrix products");
    for (int i = 0; i < 4; i++)
        printf(" %8u", p->rows[i]);
    printf("  rows (tokens at once)\n");
    for (int type = 0; type < 2; type++)
        print_products(names[type], p->matmul_flops[type],
                       type == 0 ? "computing speed with --precision fp32" : "with --precision bf16");
    for (int i = 0; i < 3; i++)
        if (p->narrow_flops[i][1][0] > 0) {
            char name[24];
            snprintf(name, sizeof name, "bf16, %u wide", p->narrow[i]);
            print_products(name, p->narrow_flops[i][1], "the others are 4096 wide");
        }
    putchar('\n');
    print_convolutions(p);
    print_attention(p);
    print_shapes(p);
    bench_print_row("host to device", p->link_bytes_per_s / 1e9, "GB/s", "transfer of weights and gradients");
    bench_print_row("device memory", p->memory_bytes_per_s / 1e9, "GB/s", "activations");
    bench_print_row("  in norms", p->norm_bytes_per_s[0] / 1e9, "GB/s", "forward");
    bench_print_row("", p->norm_bytes_per_s[1] / 1e9, "GB/s", "backward");
    bench_print_row("optimizer", p->update_parameters_per_s / 1e6, "M parameters/s", "AdamW on the host");
    if (p->call_s > 0)
        bench_print_row("launch", p->call_s * 1e9, "ns", "of each operation on the device");
    bench_print_row("message", p->message_s * 1e6, "us", "between worker and daemon, each way");
    printf("\nwritten to %s%s\n", p->path, found ? ": eps plan and eps train predict times by it" : "");
}

int command_bench(int argc, char **argv)
{
    struct eps_profile_options options = eps_profile_defaults();
    const char *file = NULL;
    const struct argument arguments[] = {
        {"--profile", "[FILE]", ARGUMENT_MAYBE, &file,
         "write the figures to FILE; default: profile-cpu.json or profile-cuda.json in $XDG_CACHE_HOME/eps or "
         "~/.cache/eps, where eps plan finds it"},
        {"--device", "auto|cpu|cuda[:ID]", ARGUMENT_TEXT, &options.device, "device to measure; default: the CPU"},
    };
    const struct command command = {
        "eps bench",
        "Measures the speed of this machine, prints and explains the figures, and stores them: eps plan and the daemon "
        "predict times from them. Takes some seconds, on a GPU less than a minute; nothing else should run meanwhile.",
        arguments, sizeof arguments / sizeof *arguments};
    const int status = arguments_parse(&command, argc, argv);
    struct eps_error error;
    struct eps_profile profile;

    if (status >= 0)
        return status;
    options.path = !file || strcmp(file, "-") == 0 ? NULL : file;
    const int rc = eps_profile(&profile, &options, &error);
    if (rc)
        return arguments_fail(&command, rc, error.text);
    print_profile(&profile, !options.path);
    return 0;
}
