/* tests/sim/target.cpp - which device is simulated, as far as launches are concerned: how much shared memory a block may
 * have, and whether its threads' registers fit. How many registers a kernel takes there, nvcc says: build/cuda-kernels.txt,
 * where the toolkit is.
 *
 * Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; registers are handed out to a warp
 * by 256. */
#include "tests/sim/state.hpp"

#include <fstream>
#include <map>
#include <string>
#include <string.h>

static const struct kind {
    const char *name;
    int major, minor;
    size_t shared;    /* of a block, at most */
    const char *code; /* that it runs */
} targets[] = {{"sm_90", 9, 0, 227 << 10, "sm_90"},
               {"sm_80", 8, 0, 163 << 10, "sm_80"},
               {"sm_86", 8, 6, 99 << 10, "sm_80"},
               {"sm_89", 8, 9, 99 << 10, "sm_80"},
               {"sm_100", 10, 0, 227 << 10, "sm_100"}};

enum { REGISTERS = 64 << 10, OF_WARP = 256 /* are handed out at a time */ };

struct needs {
    unsigned registers; /* of a thread */
    size_t shared;      /* static, of a block */
};

static struct target_state {
    const kind *target = &targets[0];
    std::map<std::string, needs> kernels; /* by name; none: nobody knows */
} &state = *new target_state();           /* never destroyed: the end of the program looks into it */

/* Lines of the table: target, registers, static shared memory, stack, spilled, kernel. Kernels need not be compiled for every
 * target. */
static void read_table(const char *path)
{
    std::ifstream table(path);
    std::string of, name;
    needs n;
    size_t stack, spilled, lines = 0;

    std::getline(table, name);
    for (; table >> of >> n.registers >> n.shared >> stack >> spilled && std::getline(table >> std::ws, name); lines++)
        if (of == state.target->code)
            state.kernels[name] = n;
    if (lines == 0)
        cudasim_fault("%s says nothing of any kernel", path);
}

void cudasim_target(const char *name, const char *table)
{
    cudasim_call call(NULL);

    state.kernels.clear();
    for (const kind &t : targets)
        if (!strcmp(t.name, name)) {
            state.target = &t;
            if (table)
                read_table(table);
            return;
        }
    cudasim_fault("%s is no device that is simulated", name);
}

int cudasim_capability(int *minor)
{
    *minor = state.target->minor;
    return state.target->major;
}

size_t cudasim_most_shared(void)
{
    return state.target->shared;
}

cudaError_t cudasim_fits(const cudasim_launch &launch)
{
    if (state.kernels.empty())
        return cudaSuccess;
    const char *name = cudasim_kernel_name(launch.kernel);
    const auto found = state.kernels.find(name);
    if (found == state.kernels.end())
        cudasim_fault("kernel %s was not compiled for %s", name, state.target->code);
    const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    const unsigned of_warp = (found->second.registers * warpSize + OF_WARP - 1) / OF_WARP * OF_WARP;
    if ((threads + warpSize - 1) / warpSize * of_warp > REGISTERS)
        return cudaErrorLaunchOutOfResources;
    return found->second.shared + launch.shared > state.target->shared ? cudaErrorInvalidValue : cudaSuccess;
}
