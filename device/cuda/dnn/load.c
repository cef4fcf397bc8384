/* cuDNN, found at run time: the newest for this CUDA in the directories of EPS_CUDNN or, if that is unset, in the usual
 * places.
 *
 * A version is asked for in a namespace of its own, since cuDNN 9.19 stays loaded once it was: engines of another
 * version would be linked with it. And the libraries load each other by name alone, so LD_LIBRARY_PATH could lead to
 * engines of another version, with which nothing can be planned. Therefore those beside the chosen one are loaded here,
 * by their paths. */
#include "device/cuda/dnn/dnn.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char graph[] = "libcudnn_graph.so.9";
/* What plans of attention and convolutions load. */
static const char *const beside[] = {"libcudnn_engines_runtime_compiled.so.9", "libcudnn_engines_tensor_ir.so.9",
                                     "libcudnn_engines_precompiled.so.9", "libcudnn_heuristic.so.9"};

static size_t load_number_of(void *library, const char *name)
{
    void *symbol = library ? dlsym(library, name) : NULL;
    size_t (*number)(void);

    memcpy(&number, &symbol, sizeof number);
    return symbol ? number() : 0;
}

/* The version of the library at this path or, without a slash, on the loader's; 0: there is none that loads, or it is
 * another CUDA's. Such a one ends the process at its first plan: it does not find the cuBLASLt of its CUDA. */
static size_t version_at(const char *path)
{
    void *library = dlmopen(LM_ID_NEWLM, path, RTLD_LAZY | RTLD_LOCAL);
    const size_t cuda = load_number_of(library, "cudnnGetCudartVersion"),
                 version = load_number_of(library, "cudnnGetVersion");

    if (library)
        dlclose(library);
    return cuda / 1000 == CUDART_VERSION / 1000 ? version : 0;
}

/* The newest in these directories, which colons separate; an empty one is the loader's path. NULL: none loads. */
static void *newest_open(const char *directories)
{
    char path[PATH_MAX], newest[PATH_MAX] = "";
    size_t best = 0;

    for (const char *rest = directories, *end = rest; *end; rest = end + 1) {
        end = strchrnul(rest, ':');
        snprintf(path, sizeof path, "%.*s%s%s", (int)(end - rest), rest, end > rest ? "/" : "", graph);
        const size_t version = version_at(path);
        if (version > best)
            memcpy(newest, path, sizeof newest);
        best = version > best ? version : best;
    }
    return best ? dlopen(newest, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* Those that lie beside it, and load; others are cuDNN's own to look for. */
static void beside_open(void *library)
{
    char own[PATH_MAX], path[2 * PATH_MAX];
    struct link_map *map;

    if (dlinfo(library, RTLD_DI_LINKMAP, &map))
        return;
    snprintf(own, sizeof own, "%s", map->l_name);
    const char *const directory = dirname(own);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, beside[i]);
        dlopen(path, RTLD_LAZY | RTLD_LOCAL); /* stays for as long as the process, as the library does after use */
    }
}

static void *library_open(void)
{
    const char *directories = getenv("EPS_CUDNN");

    if (directories && !*directories)
        return NULL;
    void *library = newest_open(directories ? directories : ":/usr/local/cuda/lib64:/usr/lib/x86_64-linux-gnu");
    if (library)
        beside_open(library);
    return library;
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

    *api = (struct dnn_api){.library = library_open()};
    if (!api->library) {
        *why = getenv("EPS_CUDNN") ? "EPS_CUDNN has no libcudnn_graph.so.9 of this CUDA that loads"
                                   : "no libcudnn_graph.so.9 of this CUDA was found; EPS_CUDNN=DIR says where it is";
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
