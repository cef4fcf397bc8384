#include "eps/hosts/hosts.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* RTLD_GLOBAL: Open MPI loads plugins of its own, which look for its symbols among the global ones. */
static const struct hosts_ops *load(const char *path, struct error *err)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);

    if (!library) {
        const char *why = dlerror();
        error_set(err, -ENODEV, "%s does not load: %s%s", path, why,
                  strstr(why, "libmpi") ? ": install Open MPI (apt-get install openmpi-bin)" : "");
        return NULL;
    }
    const struct hosts_module *module = dlsym(library, "hosts_module");
    if (module && strncmp(module->version, EPS_VERSION, sizeof module->version) == 0 &&
        module->ops_bytes == sizeof(struct hosts_ops))
        return module->ops;
    if (module)
        error_set(err, -ENODEV, "%s is of eps %.16s, of another build than this program (%s): install both from one",
                  path, module->version, EPS_VERSION);
    else
        error_set(err, -ENODEV, "%s is no module of eps for several hosts: it has no hosts_module", path);
    dlclose(library);
    return NULL;
}

const struct hosts_ops *hosts_find(const char *name, struct error *err)
{
    static const char *const places[] = {"eps-mpi.so", EPS_MODULES_FROM_PROGRAMS "/eps-mpi.so"};
    char program[PATH_MAX], path[PATH_MAX];

    if (strcmp(name, "mpi") != 0) {
        error_set(err, -ENODEV, "hosts are not reached by '%s': it is mpi", name);
        return NULL;
    }
    const ssize_t n = readlink("/proc/self/exe", program, PATH_MAX - 1);
    program[n > 0 ? n : 0] = 0;
    const char *directory = dirname(program);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(path, sizeof path, "%s/%s", directory, places[i]) < (int)sizeof path && access(path, F_OK) == 0)
            return load(path, err);
    error_set(err, -ENODEV,
              "this build of eps has no MPI: eps-mpi.so is neither in %s nor in %s/" EPS_MODULES_FROM_PROGRAMS
              "; install Open MPI (apt-get install libopenmpi-dev openmpi-bin) and build eps again",
              directory, directory);
    return NULL;
}
