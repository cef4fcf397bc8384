#include "proto/operation/backend.h"
#include "tests/kit/test.h"

TEST(a_backend_is_found_by_its_name_or_a_device_of_its)
{
    ck_assert_ptr_eq(plan_backend_find("cpu"), &plan_cpu);
    ck_assert_ptr_eq(plan_backend_find("cuda"), &plan_cuda);
    ck_assert_ptr_eq(plan_backend_find("cuda:1"), &plan_cuda);
    ck_assert_ptr_null(plan_backend_find("gpu"));
    ck_assert_ptr_null(plan_backend_find(""));
}

/* By hand: 100 MiB less an eighth are 87.5, a third of which is 29.2; 1000 MiB less a 32nd are 968.75. */
TEST(what_a_worker_may_take_is_whole_mebibytes_and_never_none)
{
    const uint64_t mib = 1 << 20;

    ck_assert_uint_eq(plan_default_budget(&plan_cpu, 8192 * mib, 1), 7168 * mib);
    ck_assert_uint_eq(plan_default_budget(&plan_cpu, 100 * mib, 3), 29 * mib);
    ck_assert_uint_eq(plan_default_budget(&plan_cpu, 100, 7), mib);
    ck_assert_uint_eq(plan_default_budget(&plan_cuda, 1000 * mib, 1), 968 * mib);
    ck_assert_uint_eq(plan_default_budget(&plan_cuda, 1000 * mib, 8), 968 * mib); /* each has a device of its own */
    ck_assert_uint_eq(plan_default_budget(&plan_cuda, 0, 1), mib);
}
