#include "tests/kit/device/backend.h"

#include "device/find.h"
#include "tests/kit/test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a child: a process that has opened a CUDA device has none in its own children, as tests are. Ends with what probe
 * said if it fails. */
static struct device_facts probe_apart(const struct device_ops *ops)
{
    struct device_facts facts = {0};
    struct error err = {""};
    int ends[2];
    pid_t child = -1;

    if (pipe(ends) == 0 && (child = fork()) == 0) {
        const bool found = ops->probe(0, &facts, &err) == 0;
        if (!found)
            fprintf(stderr, "EPS_TEST_CUDA: %s\n", err.text);
        _exit(found && write(ends[1], &facts, sizeof facts) == sizeof facts ? 0 : 1);
    }
    if (child < 0 || close(ends[1]) || read(ends[0], &facts, sizeof facts) != sizeof facts ||
        waitpid(child, NULL, 0) != child) {
        fprintf(stderr, "EPS_TEST_CUDA: the device was not probed\n");
        exit(1);
    }
    close(ends[0]);
    return facts;
}

/* Also called where no test runs yet, so there is nothing to assert with. */
static void load(struct backend *backend, const char *path)
{
    struct error err = {""};

    backend->ops = device_load(path, &err);
    if (!backend->ops) {
        fprintf(stderr, "EPS_TEST_CUDA: %s\n", err.text);
        exit(1);
    }
    device_check(backend->ops);
    backend->plan = &plan_cuda;
    backend->cuda = true;
    const struct device_facts facts = probe_apart(backend->ops);
    backend->attention = facts.attention, backend->convolution = facts.convolution;
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
