/* Only a daemon that a launcher started asks for the module, so all others run without Open MPI. */
#include "eps/hosts/hosts.h"
#include "proto/base/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

/* RTLD_GLOBAL: Open MPI loads plugins of its own, which look for its symbols among the global ones. */
static const struct module_kind mpi = {
    .file = "eps-mpi.so",
    .symbol = "hosts_module",
    .ops_bytes = sizeof(struct hosts_ops),
    .version = EPS_VERSION,
    .flags = RTLD_GLOBAL,
    .library = "libmpi",
    .remedy = "install Open MPI (apt-get install openmpi-bin)",
};

const struct hosts_ops *hosts_find(const char *name, struct error *err)
{
    char directory[PATH_MAX], path[PATH_MAX];

    if (strcmp(name, "mpi") != 0) {
        error_set(err, -ENODEV, "hosts are not reached by '%s': it is mpi", name);
        return NULL;
    }
    if (module_find(path, directory, &mpi))
        return module_load(path, &mpi, err);
    error_set(
        err, -ENODEV,
        "this build of eps has no MPI: eps-mpi.so is neither in %s nor in %s/" EPS_MODULES_FROM_PROGRAMS
        "; install the package eps-mpi, or Open MPI (apt-get install libopenmpi-dev openmpi-bin) and build eps again",
        directory, directory);
    return NULL;
}
