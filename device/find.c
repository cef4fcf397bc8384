#include "device/find.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const struct device_ops *device_load(const char *path, struct error *err)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        const char *why = dlerror();
        error_set(err, -ENODEV, "%s does not load: %s%s", path, why,
                  strstr(why, "libcublasLt") ? ": install NVIDIA's cuBLAS, or name its folder in LD_LIBRARY_PATH" : "");
        return NULL;
    }
    const struct device_module *module = dlsym(library, "device_module");
    if (module && strncmp(module->version, EPS_VERSION, sizeof module->version) == 0 &&
        module->ops_bytes == sizeof(struct device_ops)) {
        device_check(module->ops);
        return module->ops;
    }
    if (module)
        error_set(err, -ENODEV, "%s is of eps %.16s, of another build than this program (%s): install both from one",
                  path, module->version, EPS_VERSION);
    else
        error_set(err, -ENODEV, "%s is no module of eps: it has no device_module", path);
    dlclose(library);
    return NULL;
}

/* The running program's directory. */
static const char *find_directory(char program[PATH_MAX])
{
    const ssize_t n = readlink("/proc/self/exe", program, PATH_MAX - 1);

    program[n > 0 ? n : 0] = 0;
    return dirname(program);
}

static bool find_module(char path[PATH_MAX], const char *directory)
{
    static const char *const places[] = {"eps-cuda.so", EPS_MODULES_FROM_PROGRAMS "/eps-cuda.so"};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(path, PATH_MAX, "%s/%s", directory, places[i]) < PATH_MAX && access(path, F_OK) == 0)
            return true;
    return false;
}

bool device_find_cuda(void)
{
    char program[PATH_MAX], path[PATH_MAX];

    return find_module(path, find_directory(program)) && dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

const struct device_ops *device_find(const char *name, struct error *err)
{
    char program[PATH_MAX], path[PATH_MAX];

    if (strcmp(name, device_cpu.name) == 0)
        return &device_cpu;
    if (strcmp(name, "cuda") != 0) {
        error_set(err, -ENODEV, "there is no device '%s': it is cpu or cuda", name);
        return NULL;
    }
    const char *directory = find_directory(program);
    if (find_module(path, directory))
        return device_load(path, err);
    error_set(err, -ENODEV,
              "this build of eps has no CUDA: eps-cuda.so is neither in %s nor in %s/" EPS_MODULES_FROM_PROGRAMS
              "; install the CUDA toolkit and build eps again (cmake --preset release -DEPS_CUDA=ON)",
              directory, directory);
    return NULL;
}
