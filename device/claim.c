#include "device/claim.h"

#include "plan/backend.h"
#include "proto/process.h"

#include <errno.h>
#include <inttypes.h>

enum { HOST_MARGIN = 8, DEVICE_MARGIN = 32 };

static int find(const struct device_ops **out, enum device_kind kind, struct error *err)
{
    if (kind == DEVICE_CPU) {
        *out = &device_cpu;
        return 0;
    }
    return error_set(err, -ENOENT, "--device cuda: this build has cpu only");
}

static int take(struct device_claim *out, enum device_kind kind, unsigned index, struct error *err)
{
    const struct device_name name = {kind, index, kind != DEVICE_CPU};

    *out = (struct device_claim){.index = index};
    device_name_print(out->name, &name);
    const int rc = find(&out->ops, kind, err);
    return rc ? rc : out->ops->probe(index, &out->facts, err);
}

int device_claim_find(struct device_claim *out, const struct device_name *wanted, struct error *err)
{
    struct error why = {""};
    int rc;

    if (wanted->kind != DEVICE_AUTO)
        return take(out, wanted->kind, wanted->index, err);
    rc = take(out, DEVICE_CUDA, wanted->index, &why);
    if (rc == -ENODEV && wanted->index > 0 && take(out, DEVICE_CUDA, 0, NULL) == 0)
        return error_set(err, rc, "%s", why.text);
    if (rc != -ENODEV && rc != -ENOENT)
        return rc ? error_set(err, rc, "%s", why.text) : 0;
    if (rc == -ENODEV)
        log_line("%s: the CPU computes", why.text);
    return take(out, DEVICE_CPU, 0, err);
}

static uint64_t default_budget(const struct device_claim *claim, uint32_t n_sharers)
{
    const bool of_host = plan_backend_find(claim->name)->takes_turns;
    const uint64_t available = claim->facts.available_bytes;
    const uint64_t margin = available / (of_host ? HOST_MARGIN : DEVICE_MARGIN);
    char free_text[PROCESS_BYTES_TEXT], margin_text[PROCESS_BYTES_TEXT];

    log_line("no --device-mem for %s: of %s that are free it may be all but a margin of %s", claim->name,
             process_format_bytes(free_text, available), process_format_bytes(margin_text, margin));
    return (available - margin) / (of_host ? n_sharers : 1);
}

int device_claim_budget(struct device_claim *claim, uint64_t asked, uint32_t n_sharers, struct error *err)
{
    char asked_text[PROCESS_BYTES_TEXT], free_text[PROCESS_BYTES_TEXT];

    claim->budget = asked ? asked : default_budget(claim, n_sharers);
    if (plan_backend_find(claim->name)->takes_turns || claim->budget <= claim->facts.available_bytes)
        return 0;
    return error_set(err, -ENOMEM,
                     "--device-mem %" PRIu64 " (%s): of %s only %" PRIu64
                     " bytes (%s) can be had now: lower it, leave it out, or end what else runs there",
                     asked, process_format_bytes(asked_text, asked), claim->name, claim->facts.available_bytes,
                     process_format_bytes(free_text, claim->facts.available_bytes));
}
