#include "tests/kit/device/simulated.h"

#include "device/find.h"

#include <check.h>
#include <dlfcn.h>

struct simulated simulated;

static void look_up(void *member, void *module, const char *name)
{
    *(void **)member = dlsym(module, name);
    ck_assert_msg(*(void **)member != NULL, "the module has no %s", name);
}

void simulated_load(void)
{
    static const char path[] = BIN_DIR "/cudasim/eps-cuda.so";
    struct error err = {""};

    simulated.ops = device_load(path, &err);
    ck_assert_msg(simulated.ops != NULL, "%s", err.text);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* the same one */
    look_up(&simulated.order, module, "cudasim_order");
    look_up(&simulated.limit, module, "cudasim_limit");
    look_up(&simulated.target, module, "cudasim_target");
    look_up(&simulated.no_algorithm, module, "cudasim_no_algorithm");
    look_up(&simulated.idle_products, module, "cudasim_idle_products");
    look_up(&simulated.have_dnn, module, "cudasim_have_dnn");
    look_up(&simulated.fail_call, module, "cudasim_fail");
    look_up(&simulated.lose, module, "cudasim_lose");
    look_up(&simulated.count, module, "cudasim_count");
    look_up(&simulated.finish, module, "cudasim_finish");
    look_up(&simulated.time, module, "cudasim_time");
    look_up(&simulated.now, module, "cudasim_now");
    look_up(&simulated.host_works, module, "cudasim_host_works");
    look_up(&simulated.thread, module, "cudasim_thread");
    look_up(&simulated.thread_works, module, "cudasim_thread_works");
    look_up(&simulated.thread_worked, module, "cudasim_thread_worked");
    look_up(&simulated.host_awaits, module, "cudasim_host_awaits");
    look_up(&simulated.tell_time, module, "cudasim_tell_time");
    look_up(&simulated.print_time, module, "cudasim_print_time");
    dlclose(module);
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
