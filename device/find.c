/* libcuda is opened first, as its absence is found at once; loading the module, with cuBLAS, takes a tenth of a second.
 * It stays open: the module needs it anyway. */
#include "device/find.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

static const struct module_kind cuda = {
    .file = "eps-cuda.so",
    .symbol = "device_module",
    .ops_bytes = sizeof(struct device_ops),
    .version = EPS_VERSION,
    .flags = RTLD_LOCAL,
    .library = "libcublasLt",
    .remedy = "install NVIDIA's cuBLAS, or name its folder in LD_LIBRARY_PATH",
};

const struct device_ops *device_load(const char *path, struct error *err)
{
    const struct device_ops *ops = module_load(path, &cuda, err);

    if (ops)
        device_check(ops);
    return ops;
}

bool device_find_cuda(void)
{
    char directory[PATH_MAX], path[PATH_MAX];

    return module_find(path, directory, &cuda) && dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

const struct device_ops *device_find(const char *name, struct error *err)
{
    char directory[PATH_MAX], path[PATH_MAX];

    if (strcmp(name, device_cpu.name) == 0)
        return &device_cpu;
    if (strcmp(name, "cuda") != 0) {
        error_set(err, -ENODEV, "there is no device '%s': it is cpu or cuda", name);
        return NULL;
    }
    if (module_find(path, directory, &cuda))
        return device_load(path, err);
    error_set(err, -ENODEV,
              "this build of eps has no CUDA: eps-cuda.so is neither in %s nor in %s/" EPS_MODULES_FROM_PROGRAMS
              "; install the CUDA toolkit and build eps again (cmake --preset release -DEPS_CUDA=ON)",
              directory, directory);
    return NULL;
}
