/* A module is found from the running program's own place, never through a search path of the environment, so a build
 * does not pick up another build's. Its version and the size of its table are compared before any function of it is
 * called: a table of another build would be called with other arguments. */
#include "proto/base/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool module_find(char path[PATH_MAX], char directory[PATH_MAX], const struct module_kind *kind)
{
    static const char *const places[] = {"", EPS_MODULES_FROM_PROGRAMS "/"};
    const ssize_t n = readlink("/proc/self/exe", directory, PATH_MAX - 1);

    directory[n > 0 ? n : 0] = 0;
    dirname(directory); /* cuts it off in place */
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(path, PATH_MAX, "%s/%s%s", directory, places[i], kind->file) < PATH_MAX && access(path, F_OK) == 0)
            return true;
    return false;
}

const void *module_load(const char *path, const struct module_kind *kind, struct error *err)
{
    void *library = dlopen(path, RTLD_NOW | kind->flags);

    if (!library) {
        const char *why = dlerror();
        const bool lacks = strstr(why, kind->library) != NULL;
        error_set(err, -ENODEV, "%s does not load: %s%s%s", path, why, lacks ? ": " : "", lacks ? kind->remedy : "");
        return NULL;
    }
    const struct module *module = dlsym(library, kind->symbol);
    if (module && strncmp(module->version, kind->version, sizeof module->version) == 0 &&
        module->ops_bytes == kind->ops_bytes)
        return module->ops;
    if (module)
        error_set(err, -ENODEV, "%s is of eps %.16s, of another build than this program (%s): install both from one",
                  path, module->version, kind->version);
    else
        error_set(err, -ENODEV, "%s is no module of eps: it has no %s", path, kind->symbol);
    dlclose(library);
    return NULL;
}
