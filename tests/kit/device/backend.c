#include "tests/kit/device/backend.h"

#include "device/find.h"
#include "tests/kit/test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* Also called where no test runs yet, so there is nothing to assert with. */
static void load(struct backend *backend, const char *path)
{
    struct error err = {""};
    struct device_facts facts;

    backend->ops = device_load(path, &err);
    if (!backend->ops) {
        fprintf(stderr, "EPS_TEST_CUDA: %s\n", err.text);
        exit(1);
    }
    device_check(backend->ops);
    backend->plan = &plan_cuda;
    backend->cuda = true;
    if (backend->ops->probe(0, &facts, &err)) {
        fprintf(stderr, "EPS_TEST_CUDA: %s\n", err.text);
        exit(1);
    }
    backend->attention = facts.attention;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* the same one */
    *(void **)&backend->order = dlsym(module, "cudasim_order");
    dlclose(module);
    backend->simulated = backend->order != NULL;
}

const struct backend *backend_get(void)
{
    static struct backend backend;
    const char *path = getenv("EPS_TEST_CUDA");

    if (backend.ops)
        return &backend;
    if (path && *path)
        load(&backend, path);
    else
        backend.ops = &device_cpu, backend.plan = &plan_cpu;
    return &backend;
}

struct plan_backend backend_beside(const struct plan_backend *plan)
{
    struct plan_backend beside = *plan;

    beside.takes_turns = false;
    return beside;
}

bool backend_suits(double n_steps)
{
    const struct backend *backend = backend_get();
    const char *few = getenv("EPS_TEST_STEPS");

    return n_steps <= (few ? atof(few) : backend->simulated ? (SANITIZED ? 1e5 : 1e6) : backend->cuda ? 1e10 : 1e8);
}
