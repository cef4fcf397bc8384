#include "tests/simulated.h"

#include "device/find.h"

#include <check.h>
#include <dlfcn.h>

struct simulated simulated;

#define LOOK_UP(member) *(void **)&simulated.member

void simulated_load(void)
{
    static const char path[] = BIN_DIR "/cudasim/eps-cuda.so";
    struct error err = {""};

    simulated.ops = device_load(path, &err);
    ck_assert_msg(simulated.ops != NULL, "%s", err.text);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* the same one */
    LOOK_UP(order) = dlsym(module, "cudasim_order");
    LOOK_UP(limit) = dlsym(module, "cudasim_limit");
    LOOK_UP(fail_call) = dlsym(module, "cudasim_fail");
    LOOK_UP(lose) = dlsym(module, "cudasim_lose");
    LOOK_UP(count) = dlsym(module, "cudasim_count");
    LOOK_UP(finish) = dlsym(module, "cudasim_finish");
    dlclose(module);
    ck_assert(simulated.order && simulated.limit && simulated.fail_call && simulated.lose && simulated.count &&
              simulated.finish);
}

struct device *simulated_open(enum number_type type, int order)
{
    struct error err = {""};
    struct device *dev;
    int rc = simulated.ops->open(&dev, 0, type, SIMULATED_ARENA, 1, &err);

    ck_assert_msg(rc == 0, "%s", err.text);
    simulated.order((enum cudasim_streams)order, CUDASIM_THREADS_FORWARD, 1);
    return dev;
}

void simulated_close(struct device *dev)
{
    simulated.ops->close(dev);
    simulated.finish();
}
