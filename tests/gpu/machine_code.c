/* machine_code [--loops] OBJECT...: what kernels are made of, from the objects that nvcc wrote: a line for each kernel
 * and architecture, of how many instructions it has of the kinds that a fast one lives on, and of how many bytes a
 * thread has in flight: the most that are loaded from global memory before an instruction waits for any of them, in the
 * order of the code. With --loops, of kernels that multiply on tensor cores, what a warp issues in each turn of that
 * loop (machine_loop.h).
 *
 * An object holds a "fat binary": a header of 16 bytes and entries, of which those of kind 2 are ELF files of machine
 * code, one for each architecture; kernels are their sections .text.NAME. An instruction is 16 bytes from compute
 * capability 7.0 on: its low 12 bits say which, and bits 73 to 75 of a load or store how wide.
 *
 * From bit 105 on are 4 of stalls, 1 of yielding, 3 that name the barrier that a load sets (7: none), 3 of another, and
 * the 6 barriers that the instruction waits for.
 *
 * Sources: what nvdisasm of CUDA 12 and 13 prints beside the bytes, where it is; Jia et al., arXiv:1804.06826, section
 * 2.1, on barriers. NVIDIA documents neither. So a toolkit that writes otherwise is told as such, with exit status
 * 77. */
#include "tests/gpu/machine_loop.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAT_MAGIC = 0xba55ed50u, MACHINE_CODE = 2, ENTRY_BYTES = 64, BARRIERS = 6, UNREADABLE = 77 };

enum count { MATRIX_LOADS, PRODUCTS, COPIES, LOADS_16, LOADS_SMALL, STORES_16, STORES_SMALL, COUNTS };

static const struct kind {
    unsigned opcode;
    enum count of_16, small, other; /* COUNTS: not counted */
} kinds[] = {
    {OPCODE_LDSM, MATRIX_LOADS, MATRIX_LOADS, MATRIX_LOADS},
    {OPCODE_HMMA, PRODUCTS, PRODUCTS, PRODUCTS},
    {OPCODE_LDGSTS, COPIES, COPIES, COPIES},
    {0x381, LOADS_16, LOADS_SMALL, COUNTS},   /* LDG */
    {0x981, LOADS_16, LOADS_SMALL, COUNTS},   /* LDG, by a descriptor */
    {0x386, STORES_16, STORES_SMALL, COUNTS}, /* STG */
    {0x986, STORES_16, STORES_SMALL, COUNTS},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static enum count count_of(struct instruction in)
{
    for (int i = 0; i < N_KINDS; i++)
        if (opcode_of(in) == kinds[i].opcode)
            return bytes_of(in) == 16 ? kinds[i].of_16 : bytes_of(in) < 4 ? kinds[i].small : kinds[i].other;
    return COUNTS;
}

/* Bytes that this thread has in flight by each barrier, the instruction included; all of them. */
static unsigned count_in_flight(unsigned by_barrier[BARRIERS], struct instruction in)
{
    const bool loads = opcode_of(in) == 0x381 || opcode_of(in) == 0x981;
    const unsigned sets = in.high >> 46 & 7, waits = in.high >> 52 & 63;
    unsigned all = 0;

    if (loads && sets < BARRIERS)
        by_barrier[sets] += bytes_of(in);
    for (unsigned i = 0; i < BARRIERS; i++) {
        if (waits >> i & 1)
            by_barrier[i] = 0;
        all += by_barrier[i];
    }
    return all;
}

static void print_kernel(unsigned target, const char *name, const struct instruction *code, size_t length)
{
    unsigned n[COUNTS + 1] = {0}, by_barrier[BARRIERS] = {0}, most = 0;

    for (size_t i = 0; i < length; i++) {
        const unsigned in_flight = count_in_flight(by_barrier, code[i]);
        n[count_of(code[i])]++;
        most = in_flight > most ? in_flight : most;
    }
    printf("sm_%-5u", target);
    for (int i = 0; i < COUNTS; i++)
        printf(" %12u", n[i]);
    printf(" %12u  %s\n", most, name);
}

static void print_loop(unsigned target, const char *name, const struct instruction *code, size_t length)
{
    struct machine_loop loop;

    if (machine_loop_find(&loop, target, code, length))
        printf("sm_%-5u %12u %12u %12u %12u %12u %12u %12u %12u %12u  %s\n", target, loop.issued, loop.products,
               loop.matrix_loads, loop.specials, loop.copies, loop.wide_copies, loop.shared_bytes, loop.inner_issued,
               loop.inner_copies, name);
}

typedef void print_code(unsigned target, const char *name, const struct instruction *code, size_t length);

/* Kernels of one ELF file of `size` bytes; how many there are. */
static unsigned print_elf(print_code *print, unsigned target, const unsigned char *file, size_t size)
{
    static const char prefix[] = ".text.";
    Elf64_Ehdr header;
    Elf64_Shdr names, section;
    unsigned n = 0;

    memcpy(&header, file, sizeof header);
    if (header.e_shoff + (uint64_t)header.e_shnum * sizeof section > size || header.e_shstrndx >= header.e_shnum)
        return 0;
    memcpy(&names, file + header.e_shoff + header.e_shstrndx * sizeof names, sizeof names);
    for (unsigned i = 0; i < header.e_shnum; i++) {
        memcpy(&section, file + header.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type != SHT_PROGBITS || names.sh_offset + section.sh_name >= size ||
            section.sh_offset + section.sh_size > size)
            continue;
        const char *name = (const char *)file + names.sh_offset + section.sh_name;
        if (strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        struct instruction *code = malloc(section.sh_size + sizeof *code); /* the file's may not be aligned */
        if (!code)
            abort();
        memcpy(code, file + section.sh_offset, section.sh_size);
        print(target, name + strlen(prefix), code, section.sh_size / sizeof *code);
        free(code);
        n++;
    }
    return n;
}

/* Entries from `at` to `end`: kind u16 | version u16 | header bytes u32 | payload bytes u64 | ... | architecture u32 at
 * 28. */
static unsigned print_entries(print_code *print, const unsigned char *at, const unsigned char *end)
{
    unsigned n = 0;

    while (end - at >= ENTRY_BYTES) {
        uint16_t kind;
        uint32_t header, target;
        uint64_t payload;
        memcpy(&kind, at, sizeof kind);
        memcpy(&header, at + 4, sizeof header);
        memcpy(&payload, at + 8, sizeof payload);
        memcpy(&target, at + 28, sizeof target);
        if (header < ENTRY_BYTES || header > (uint64_t)(end - at) || payload > (uint64_t)(end - at) - header)
            break;
        if (kind == MACHINE_CODE && payload > sizeof(Elf64_Ehdr) && !memcmp(at + header, ELFMAG, SELFMAG))
            n += print_elf(print, target, at + header, payload);
        at += header + payload;
    }
    return n;
}

/* Every fat binary of an object, which are aligned to 8. */
static unsigned print_object(print_code *print, const unsigned char *file, size_t size)
{
    unsigned n = 0;

    for (size_t at = 0; at + 16 <= size; at += 8) {
        uint32_t magic;
        uint64_t bytes;
        memcpy(&magic, file + at, sizeof magic);
        memcpy(&bytes, file + at + 8, sizeof bytes);
        if (magic == FAT_MAGIC && bytes <= size - at - 16)
            n += print_entries(print, file + at + 16, file + at + 16 + bytes);
    }
    return n;
}

static unsigned char *read_whole(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    unsigned char *all = NULL;
    long end = -1;

    if (file && fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) > 0 && fseek(file, 0, SEEK_SET) == 0)
        all = malloc((size_t)end);
    *size = all ? fread(all, 1, (size_t)end, file) : 0;
    if (file)
        fclose(file);
    return all;
}

int main(int argc, char **argv)
{
    const bool loops = argc > 1 && strcmp(argv[1], "--loops") == 0;
    print_code *print = loops ? print_loop : print_kernel;

    if (loops)
        printf("target         issued     products matrix_loads     specials       copies  wide_copies shared_bytes "
               "inner_issued inner_copies  kernel\n");
    else
        printf("target   matrix_loads     products       copies     loads_16  loads_small    stores_16 stores_small "
               "   in_flight  kernel\n");
    for (int i = 1 + loops; i < argc; i++) {
        size_t size;
        unsigned char *file = read_whole(argv[i], &size);
        if (!file) {
            fprintf(stderr, "%s cannot be read\n", argv[i]);
            return EXIT_FAILURE;
        }
        const unsigned n = print_object(print, file, size);
        free(file);
        if (n == 0) {
            fprintf(stderr, "%s has no machine code that is written as it was up to CUDA 13\n", argv[i]);
            return UNREADABLE;
        }
    }
    return EXIT_SUCCESS;
}
