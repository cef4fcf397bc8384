/* tests/sim/symbols.cpp - what the symbol table of a program or module tells of its kernels: their names, for faults,
 * and where their static shared memory is. The dynamic linker knows of nothing that is static; the file does. */
#include "tests/sim/state.hpp"

#include <algorithm>
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A variable that is static shared memory. */
struct variable {
    char *at;
    size_t bytes;
    std::string name; /* mangled */
};

struct object {
    std::map<uint64_t, std::string> functions; /* by offset */
    std::vector<variable> shared;              /* by address */
    std::set<uint64_t> kernels;                /* offsets */
    /* Those that a kernel may touch: its own, and those of functions that are no kernels. */
    std::map<const void *, std::vector<const variable *>> of_kernels;
};

static std::map<const struct link_map *, object> &objects = *new std::map<const struct link_map *, object>;
static std::map<const void *, std::string> &names = *new std::map<const void *, std::string>;

/* Whether a variable is one of a C++ function that has parameters, as kernels are, and launchers, which are extern "C",
 * are not. */
static bool is_in_kernel(const char *mangled)
{
    int length, digits;

    if (strncmp(mangled, "_ZZ", 3) != 0)
        return false;
    return sscanf(mangled + 3, "%d%n", &length, &digits) != 1 || mangled[3 + digits + length] != 'E';
}

static void read_symbols(object &to, const char *file, const Elf64_Shdr *sections, const Elf64_Shdr &table,
                         uint64_t address)
{
    const Elf64_Sym *symbols = (const Elf64_Sym *)(file + table.sh_offset);
    const char *text = file + sections[table.sh_link].sh_offset;
    std::set<std::string> made_once; /* they have a guard: whatever they are, they are no shared memory */

    for (size_t i = 0; i < table.sh_size / sizeof *symbols; i++)
        if (strncmp(text + symbols[i].st_name, "_ZGVZ", 5) == 0)
            made_once.insert(std::string("_Z") + (text + symbols[i].st_name + 4));
    for (size_t i = 0; i < table.sh_size / sizeof *symbols; i++) {
        const Elf64_Sym &s = symbols[i];
        const char *name = text + s.st_name;
        if (ELF64_ST_TYPE(s.st_info) == STT_FUNC)
            to.functions[s.st_value] = name;
        if (ELF64_ST_TYPE(s.st_info) == STT_OBJECT && s.st_shndx < SHN_LORESERVE &&
            sections[s.st_shndx].sh_type == SHT_NOBITS && is_in_kernel(name) && !made_once.count(name))
            to.shared.push_back({(char *)address + s.st_value, s.st_size, name});
    }
}

/* Kernels are the functions with an entry that could be patched (__global__): each has its address there. */
static void read_kernels(object &to, const Elf64_Shdr &entries, uint64_t address)
{
    const uint64_t *const all = (const uint64_t *)(address + entries.sh_addr);

    for (size_t i = 0; i < entries.sh_size / sizeof *all; i++)
        to.kernels.insert(all[i] - address);
}

static object &object_of(const void *kernel, uint64_t *offset)
{
    struct link_map *map = NULL;
    Dl_info found;
    struct stat status;

    if (!dladdr1(kernel, &found, (void **)&map, RTLD_DL_LINKMAP) || !map)
        cudasim_fault("kernel %p is in no program", kernel);
    *offset = (uint64_t)kernel - map->l_addr;
    if (objects.count(map))
        return objects[map];
    object &to = objects[map];
    const int fd = open(*map->l_name ? map->l_name : "/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status))
        return to;
    void *file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return to;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)((const char *)file + header->e_shoff);
    const char *const names_of_sections = (const char *)file + sections[header->e_shstrndx].sh_offset;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type == SHT_SYMTAB)
            read_symbols(to, (const char *)file, sections, sections[i], map->l_addr);
        if (strcmp(names_of_sections + sections[i].sh_name, "__patchable_function_entries") == 0)
            read_kernels(to, sections[i], map->l_addr);
    }
    munmap(file, (size_t)status.st_size);
    std::sort(to.shared.begin(), to.shared.end(), [](const variable &a, const variable &b) { return a.at < b.at; });
    return to;
}

/* Asked for at each block, and at each access that is counted. Not the functions' own: those would be taken for shared
 * memory. */
static const void *last_kernel;
static object *last_object;
static struct {
    const void *kernel;
    const std::vector<const variable *> *touched;
} forgotten;

static object &program_of(const void *kernel)
{
    uint64_t offset;

    if (kernel != last_kernel)
        last_object = &object_of(kernel, &offset), last_kernel = kernel;
    return *last_object;
}

const char *cudasim_kernel_name(const void *kernel)
{
    std::string &name = names[kernel];
    uint64_t offset;

    if (name.empty()) {
        const std::string mangled = object_of(kernel, &offset).functions[offset];
        char *plain = abi::__cxa_demangle(mangled.c_str(), NULL, NULL, NULL);
        name = plain ? plain : mangled.empty() ? "?" : mangled;
        free(plain);
    }
    return name.c_str();
}

/* Whether the variable is the function's; both as mangled: _ZZ1fvE1x of _Z1fv. */
static bool is_of(const std::string &variable, const std::string &function)
{
    const size_t n = function.size() - strlen("_Z");

    return function.compare(0, 2, "_Z") == 0 && variable.compare(strlen("_ZZ"), n, function, strlen("_Z"), n) == 0 &&
           variable[strlen("_ZZ") + n] == 'E';
}

static std::vector<const variable *> find_touched(object &program, const void *kernel)
{
    std::vector<const variable *> touched;
    uint64_t offset;

    object_of(kernel, &offset);
    for (const variable &v : program.shared) {
        bool is_others = false;
        for (const uint64_t other : program.kernels)
            is_others |= other != offset && is_of(v.name, program.functions[other]);
        if (!is_others)
            touched.push_back(&v);
    }
    return touched;
}

static const std::vector<const variable *> &touched_by(const void *kernel)
{
    object &program = program_of(kernel);
    const auto known = program.of_kernels.find(kernel);

    if (known != program.of_kernels.end())
        return known->second;
    return program.of_kernels[kernel] = find_touched(program, kernel);
}

void cudasim_forget_shared(const void *kernel)
{
    if (kernel != forgotten.kernel)
        forgotten = {kernel, &touched_by(kernel)};
    for (const variable *v : *forgotten.touched) {
        char *at = v->at;
        size_t n = v->bytes;
        asm volatile("rep stosb" : "+D"(at), "+c"(n) : "a"(CUDASIM_POISON_BYTE) : "memory"); /* unseen by sanitizers */
    }
}

bool cudasim_is_static_shared(const void *kernel, const void *address)
{
    const auto &shared = program_of(kernel).shared;
    const char *const at = (const char *)address;
    const auto after =
        std::upper_bound(shared.begin(), shared.end(), at, [](const char *x, const variable &v) { return x < v.at; });

    return after != shared.begin() && at < std::prev(after)->at + std::prev(after)->bytes;
}
