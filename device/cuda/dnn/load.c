/* cuDNN, found at run time. */
#include "device/cuda/dnn/dnn.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *open_library(void)
{
    static const char file[] = "libcudnn_graph.so.9";
    static const char *const places[] = {"", "/usr/local/cuda/lib64/"};
    const char *directory = getenv("EPS_CUDNN");
    char path[4096];

    if (directory) {
        snprintf(path, sizeof path, "%s/%s", directory, file);
        return *directory ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s%s", places[i], file);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
    }
    return NULL;
}

bool dnn_api_load(struct dnn_api *api, const char **why)
{
    const struct {
        const char *name;
        void *function; /* where its address goes */
    } names[] = {
        {"cudnnGetVersion", &api->version},
        {"cudnnGetErrorString", &api->error_string},
        {"cudnnCreate", &api->create},
        {"cudnnDestroy", &api->destroy},
        {"cudnnSetStream", &api->set_stream},
        {"cudnnBackendCreateDescriptor", &api->create_descriptor},
        {"cudnnBackendDestroyDescriptor", &api->destroy_descriptor},
        {"cudnnBackendSetAttribute", &api->set},
        {"cudnnBackendGetAttribute", &api->get},
        {"cudnnBackendFinalize", &api->finalize},
        {"cudnnBackendExecute", &api->execute},
    };

    *api = (struct dnn_api){.library = open_library()};
    if (!api->library) {
        *why = getenv("EPS_CUDNN") ? "EPS_CUDNN has no libcudnn_graph.so.9 that loads"
                                   : "no libcudnn_graph.so.9 was found; EPS_CUDNN=DIR says where it is";
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *function = dlsym(api->library, names[i].name);
        if (!function) {
            *why = "libcudnn_graph.so.9 lacks a function of cuDNN 9";
            dnn_api_unload(api);
            return false;
        }
        memcpy(names[i].function, &function, sizeof function);
    }
    return true;
}

void dnn_api_unload(struct dnn_api *api)
{
    if (api->library)
        dlclose(api->library);
    *api = (struct dnn_api){0};
}
