/* `auto` falls back to the CPU for one reason alone, -ENODEV: the device is missing, too old or not permitted. Any
 * other failure is reported, as a worker on the wrong device would slow all others down and hide its fault. */
#include "device/worker/claim.h"

#include "device/find.h"
#include "proto/base/process.h"
#include "proto/operation/backend.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* id: the device's instead of index; or "". */
static int claim_take(struct device_claim *out, enum device_kind kind, unsigned index, const char *id,
                      struct error *err)
{
    int rc;

    *out = (struct device_claim){.ops = device_find(kind == DEVICE_CPU ? "cpu" : "cuda", err)};
    if (!out->ops)
        return -ENODEV;
    if (*id && (rc = out->ops->find(&index, id, err)))
        return rc;
    out->index = index;
    snprintf(out->name, sizeof out->name, "cpu");
    if (kind != DEVICE_CPU)
        snprintf(out->name, sizeof out->name, "cuda:%u", index);
    rc = out->ops->probe(index, &out->facts, err);
    if (!rc && out->facts.bus[0])
        log_line("%s is the %s at %s", out->name, out->facts.model, out->facts.bus);
    return rc;
}

int device_claim_find(struct device_claim *out, const struct device_name *wanted, struct error *err)
{
    struct error why = {""};
    int rc;

    if (wanted->kind != DEVICE_AUTO) {
        rc = claim_take(out, wanted->kind, wanted->index, wanted->id, err);
        return out->ops ? rc : -ENOSYS;
    }
    if (!device_find_cuda())
        return claim_take(out, DEVICE_CPU, 0, "", err);
    rc = claim_take(out, DEVICE_CUDA, wanted->index, "", &why);
    if (rc == 0)
        return 0;
    if (rc != -ENODEV || (wanted->index > 0 && claim_take(out, DEVICE_CUDA, 0, "", NULL) == 0))
        return error_set(err, rc, "%s", why.text);
    log_warning("%s: the CPU computes instead", why.text);
    return claim_take(out, DEVICE_CPU, 0, "", err);
}

static uint64_t claim_default_budget(const struct device_claim *claim, uint32_t n_sharers)
{
    const uint64_t available = claim->facts.available_bytes;
    const uint64_t budget = plan_default_budget(plan_backend_find(claim->name), available, n_sharers);
    char budget_text[PROCESS_BYTES_TEXT], free_text[PROCESS_BYTES_TEXT];

    log_line("no --device-mem: it may be %s of %s; %s are free there", process_format_bytes(budget_text, budget),
             claim->name, process_format_bytes(free_text, available));
    return budget;
}

int device_claim_budget(struct device_claim *claim, uint64_t asked, uint32_t n_sharers, struct error *err)
{
    char asked_text[PROCESS_BYTES_TEXT], free_text[PROCESS_BYTES_TEXT];

    claim->budget = asked ? asked : claim_default_budget(claim, n_sharers);
    if (plan_backend_find(claim->name)->takes_turns || claim->budget <= claim->facts.available_bytes)
        return 0;
    return error_set(err, -ENOMEM,
                     "--device-mem %" PRIu64 " (%s): of %s only %" PRIu64
                     " bytes (%s) can be had now: lower it, leave it out, or end what else runs there",
                     asked, process_format_bytes(asked_text, asked), claim->name, claim->facts.available_bytes,
                     process_format_bytes(free_text, claim->facts.available_bytes));
}
