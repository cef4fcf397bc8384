/* device/cpu/kernels/table.kernel.c - this compilation's kernel of each operation. */
#include "device/cpu/cpu.h"

#define ROW(name, type) .name = KERNEL_NAME(cpu_##name),
const struct cpu_operations KERNEL_NAME(cpu_operations) = {DEVICE_CALLS(ROW)};
