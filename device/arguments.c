/* What is refused here needs no device and no daemon. The budget and the share are parsed, but not judged: what a
 * device has is known after its probe (device/worker/claim.c). */
#include "device/arguments.h"

#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/process.h"
#include "proto/net/port.h"
#include "proto/wire/message.h"
#include "proto/wire/session.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>

static const char usage[] =
    "usage: eps-worker --connect ADDRESS [--key FILE] [--device auto|cpu|cuda[:ID]] [--device-mem BYTES]\n"
    "\n"
    "Lends one device to a daemon: pulls the weights of one layer at a time, runs every micro-batch\n"
    "through it, and sends its gradients back. Ends when the daemon stops, or on SIGTERM, SIGINT or\n"
    "SIGHUP, once its share of the step is done; at the second of these signals, at once. If the daemon\n"
    "is killed, waits for the next one at its address; if it was out of the daemon's reach, or stopped,\n"
    "or if its connection breaks before it is attached, comes again. A handshake that fails three times\n"
    "in a row ends it.\n"
    "\n"
    "  --connect ADDRESS   the daemon, as given to epsd --listen; default: your only live daemon.\n"
    "                      tcp://HOST:PORT: one of another host, which needs --key. The job's weights are\n"
    "                      then kept in this host's memory, 4 bytes a parameter, 2 in bf16, and twice that\n"
    "                      with replay; also gradients on their way to the daemon\n"
    "  --key FILE          the key of that daemon\n"
    "  --plain-bulk        for trusted links: weights and gradients are authenticated, but not encrypted;\n"
    "                      the daemon needs it, too\n"
    "  --device auto|cpu|cuda[:ID]\n"
    "                      cuda:N is CUDA device N, from 0, of those in CUDA_VISIBLE_DEVICES if that is\n"
    "                      set; cuda:GPU-8f2c the one whose UUID begins so (nvidia-smi -L), and\n"
    "                      cuda:0000:3b:00.0 the one at this PCI address; default auto: CUDA if there is\n"
    "                      one, else the CPU\n"
    "  --device-mem BYTES  hard cap on the device's memory, as in 512MiB or 2GiB; default: 7/8 of free\n"
    "                      memory, on CUDA 31/32 of the device's\n"
    "  --share N           for one of N CPU workers on this host: divides that default by N\n"
    "  --profile FILE      measure the device and this host for eps plan and eps train, write the\n"
    "                      result to FILE, and exit\n"
    "  --log-level error|warning|info\n"
    "                      the least that is logged, on standard error; default: info\n"
    "  --private           end with the daemon, or do not begin if the process that started this one has\n"
    "                      ended; --private=PID names that process\n"
    "  --version           print the version\n"
    "  --help              print this text\n"
    "\n" PROCESS_BYTES_HELP "\n"
    "\n"
    "Exit status: 0 released, 1 failed, 2 wrong usage.\n";

static int parse_share(uint64_t *out, const char *text, struct error *err)
{
    char *end;

    *out = isdigit((unsigned char)*text) ? strtoul(text, &end, 10) : 0;
    if (*out >= 1 && *out <= MESSAGE_MAX_PARTS && !*end)
        return 0;
    return error_set(err, -EDOM, "--share %.40s: a number of workers, 1 to %d", text, MESSAGE_MAX_PARTS);
}

static int parse_parent(long *out, const char *text, struct error *err)
{
    char *end;

    *out = isdigit((unsigned char)*text) ? strtol(text, &end, 10) : 0;
    if (*out > 0 && *out <= INT_MAX && !*end)
        return 0;
    return error_set(err, -EDOM, "--private=%.40s: the number of a process", text);
}

bool device_arguments_parse(struct device_arguments *out, int argc, char **argv)
{
    static const struct option options[] = {
        {"connect", required_argument, NULL, 'c'},
        {"key", required_argument, NULL, 'K'},
        {"plain-bulk", no_argument, NULL, 'P'},
        {"device", required_argument, NULL, 'd'},
        {"device-mem", required_argument, NULL, 'm'},
        {"share", required_argument, NULL, 's'},
        {"profile", required_argument, NULL, 'f'},
        {"log-level", required_argument, NULL, 'e'},
        {"private", optional_argument, NULL, 'p'},
        {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    char name[PORT_NAME_BYTES], digits[PORT_DIGITS_BYTES];
    struct error err = {""};
    int option;

    opterr = 0;
    *out = (struct device_arguments){.n_sharers = 1};
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == '?') {
            log_error("%s: no such option, or its value is missing; see eps-worker --help", argv[optind - 1]);
            return false;
        }
        if (option == 'c')
            out->address = optarg;
        if (option == 'K')
            out->key = optarg;
        if (option == 'P')
            out->plain_bulk = true;
        if (option == 'f')
            out->profile = optarg;
        if ((option == 'd' && device_name_parse(&out->device, "--device", optarg, &err)) ||
            (option == 'm' && process_parse_bytes(&out->budget, "--device-mem", optarg, &err)) ||
            (option == 's' && parse_share(&out->n_sharers, optarg, &err)) ||
            (option == 'p' && optarg && parse_parent(&out->parent, optarg, &err)) ||
            (option == 'e' && log_set_level(optarg, &err))) {
            log_error("%s", err.text);
            return false;
        }
        if (option == 'p')
            out->is_private = true;
        if (option == 'h' || option == 'v') {
            out->answer = option == 'h' ? usage : "eps-worker " EPS_VERSION "\n";
            return true;
        }
    }
    if (optind < argc) {
        log_error("'%s' is not an option; see eps-worker --help", argv[optind]);
        return false;
    }
    if ((out->address && !*out->address) || (out->profile && !*out->profile)) {
        log_error("%s is empty", out->profile && !*out->profile ? "--profile" : "--connect");
        return false;
    }
    if (session_has_port(out->address)) {
        log_error("--connect %s: did you mean tcp://%s?", out->address, out->address);
        return false;
    }
    if (port_is_address(out->address) && port_split(name, digits, out->address, &err)) {
        log_error("%s", err.text);
        return false;
    }
    if (port_is_address(out->address) && !out->key) {
        log_error("--connect %s: --key FILE is needed, with the key of the daemon there", out->address);
        return false;
    }
    if (!port_is_address(out->address) && (out->key || out->plain_bulk)) {
        log_error("%s is for a daemon of another host: it needs --connect tcp://HOST:PORT",
                  out->key ? "--key" : "--plain-bulk");
        return false;
    }
    return true;
}
