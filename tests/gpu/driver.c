/* A stand-in for NVIDIA's driver, of which cuDNN asks what device there is, and to which it hands the kernels that it
 * has compiled: it says yes to everything, and remembers their names. All of the driver's other functions are in the
 * generated driver_names.c, and do nothing. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define STAND_IN __attribute__((visibility("default")))

static char something[4096], kernel[512];

/* Of the latest kernel; for the test. */
STAND_IN const char *stand_in_kernel(void)
{
    return kernel;
}

STAND_IN int cuDriverGetVersion(int *version)
{
    *version = STAND_IN_CUDA;
    return 0;
}

STAND_IN int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}

STAND_IN int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

STAND_IN int cuDeviceGetName(char *to, int size, int device)
{
    snprintf(to, (size_t)size, "stand-in");
    return 0;
}

STAND_IN int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = (size_t)80 << 30;
    return 0;
}

/* Of a Hopper, where a number matters. */
STAND_IN int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    static const struct {
        int attribute, value;
    } known[] = {{1, 1024},   {2, 1024},      {3, 1024},  {4, 64},     {5, 65535}, {6, 65535},
                 {7, 65535},  {8, 49152},     {10, 32},   {12, 65536}, {16, 132},  {36, 2600000},
                 {37, 5120},  {38, 50 << 20}, {39, 2048}, {75, 9},     {76, 0},    {81, 233472},
                 {82, 65536}, {97, 232448},   {106, 32},  {111, 1024}};

    *value = 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute)
            *value = known[i].value;
    return 0;
}

static int give(void **to)
{
    *to = something;
    return 0;
}

STAND_IN int cuDevicePrimaryCtxRetain(void **context, int device)
{
    return give(context);
}

STAND_IN int cuCtxGetCurrent(void **context)
{
    return give(context);
}

STAND_IN int cuLibraryLoadData(void **library, const void *code)
{
    return give(library);
}

STAND_IN int cuModuleLoadData(void **module, const void *code)
{
    return give(module);
}

static int give_kernel(void **to, const char *name)
{
    snprintf(kernel, sizeof kernel, "%s", name);
    return give(to);
}

STAND_IN int cuLibraryGetKernel(void **to, void *library, const char *name)
{
    return give_kernel(to, name);
}

STAND_IN int cuModuleGetFunction(void **to, void *module, const char *name)
{
    return give_kernel(to, name);
}

STAND_IN int cuKernelGetFunction(void **to, void *from)
{
    return give(to);
}

STAND_IN int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    *value = 64;
    return 0;
}

STAND_IN int cuKernelGetAttribute(int *value, int attribute, void *function, int device)
{
    return cuFuncGetAttribute(value, attribute, function);
}

int nothing(void); /* of driver_names.c */

/* By the name that it has in the library, which may end in _v2. */
static void *find(const char *symbol)
{
    Dl_info self;
    char newer[128];
    void *function = NULL;

    if (dladdr(kernel, &self)) {
        void *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        snprintf(newer, sizeof newer, "%s_v2", symbol);
        function = dlsym(library, newer);
        if (!function)
            function = dlsym(library, symbol);
    }
    return function;
}

STAND_IN int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    *function = find(symbol);
    if (!*function)
        *(int (**)(void))function = nothing;
    if (status)
        *status = 0;
    return 0;
}

STAND_IN int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

STAND_IN int cuGetExportTable(const void **table, const void *name)
{
    *table = NULL;
    return 1; /* there is none */
}
