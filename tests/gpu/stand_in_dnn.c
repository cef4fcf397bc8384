/* Stands for a library of cuDNN: of version STAND_IN_DNN for STAND_IN_CUDA, or, with STAND_IN_ENGINE, for its engines.
 * As cuDNN does, it finds its engines by their name alone: cudnnCreate gives their version for a handle. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#ifdef STAND_IN_ENGINE
size_t engine_version(void);
size_t engine_version(void)
{
    return STAND_IN_DNN;
}
#else
size_t cudnnGetVersion(void);
size_t cudnnGetCudartVersion(void);
int cudnnCreate(void **handle);
int nothing(void);
size_t cudnnGetVersion(void)
{
    return STAND_IN_DNN;
}

size_t cudnnGetCudartVersion(void)
{
    return STAND_IN_CUDA;
}

int cudnnCreate(void **handle)
{
    void *engines = dlopen("libcudnn_engines_runtime_compiled.so.9", RTLD_NOW | RTLD_LOCAL);
    void *symbol = engines ? dlsym(engines, "engine_version") : NULL;
    size_t (*version)(void);

    memcpy(&version, &symbol, sizeof version);
    *handle = (char *)NULL + (symbol ? version() : 0);
    return 0;
}

int nothing(void)
{
    return 0;
}
#define NOTHING(name) int name(void) __attribute__((alias("nothing")))
NOTHING(cudnnGetErrorString);
NOTHING(cudnnDestroy);
NOTHING(cudnnSetStream);
NOTHING(cudnnBackendCreateDescriptor);
NOTHING(cudnnBackendDestroyDescriptor);
NOTHING(cudnnBackendSetAttribute);
NOTHING(cudnnBackendGetAttribute);
NOTHING(cudnnBackendFinalize);
NOTHING(cudnnBackendExecute);
#endif
