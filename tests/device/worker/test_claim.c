#include "device/find.h"
#include "device/worker/claim.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static struct device_claim claimed(const char *device)
{
    struct device_claim claim;
    struct device_name name;
    struct error err = {""};

    ck_assert_int_eq(device_name_parse(&name, "--device", device, NULL), 0);
    ck_assert_msg(device_claim_find(&claim, &name, &err) == 0, "%s", err.text);
    return claim;
}

TEST_IF(without_cuda_auto_is_the_cpu_whatever_the_number, !device_find_cuda())
{
    static const char *const names[] = {"auto", "auto:3", "cpu"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct device_claim claim = claimed(names[i]);
        ck_assert_ptr_eq(claim.ops, &device_cpu);
        ck_assert_str_eq(claim.name, "cpu");
        ck_assert_uint_eq(claim.index, 0);
    }
}

/* Where the toolkit is, the module is built, and a driver is what is missing. */
TEST_IF(cuda_that_is_not_there_is_missed_in_one_sentence, !device_find_cuda())
{
    const bool built = access(BIN_DIR "/eps-cuda.so", F_OK) == 0;
    struct device_claim claim;
    struct device_name name = {.kind = DEVICE_CUDA};
    struct error err = {""};

    ck_assert_int_eq(device_claim_find(&claim, &name, &err), built ? -ENODEV : -ENOSYS);
    ck_assert_msg(strstr(err.text, built ? "driver" : "eps-cuda.so") != NULL, "%s", err.text);
}

TEST(a_budget_is_what_was_asked_or_the_default)
{
    struct device_claim claim = claimed("cpu");

    claim.facts.available_bytes = (uint64_t)100 << 20;
    ck_assert_int_eq(device_claim_budget(&claim, 0, 3, NULL), 0);
    ck_assert_uint_eq(claim.budget, 29 << 20); /* seven eighths of 100 / 3 */
    ck_assert_int_eq(device_claim_budget(&claim, 12345, 3, NULL), 0);
    ck_assert_uint_eq(claim.budget, 12345);
    ck_assert_int_eq(device_claim_budget(&claim, (uint64_t)1 << 40, 1, NULL), 0); /* the daemon looks at its host */
}

TEST(a_device_of_its_own_is_not_asked_for_more_than_it_has)
{
    struct device_claim claim = {.name = "cuda:1", .facts.available_bytes = (uint64_t)1000 << 20};
    struct error err = {""};

    ck_assert_int_eq(device_claim_budget(&claim, (uint64_t)1000 << 20, 1, NULL), 0);
    ck_assert_uint_eq(claim.budget, 1000 << 20);
    ck_assert_int_eq(device_claim_budget(&claim, 0, 2, NULL), 0);
    ck_assert_uint_eq(claim.budget, 968 << 20);
    ck_assert_int_eq(device_claim_budget(&claim, ((uint64_t)1000 << 20) + 1, 1, &err), -ENOMEM);
    ck_assert_msg(strstr(err.text, "--device-mem 1048576001") && strstr(err.text, "1048576000 bytes (1000.0 MiB)") &&
                      strstr(err.text, "cuda:1"),
                  "%s", err.text);
}
