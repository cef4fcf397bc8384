/* libuv closes descriptors by syscall(SYS_close), which the thread sanitizer does not see: it then takes two threads,
 * of which one had the number before and one has it now, for two that share a file. In whatever is built with that
 * sanitizer, this takes the place of the C library's function, and lets it see. */
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((no_sanitize_thread, visibility("default"))) long syscall(long number, ...)
{
    long a[6], result;
    va_list args;

    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_close)
        return close((int)a[0]);
    register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (result >= 0 || result < -4095)
        return result;
    errno = (int)-result;
    return -1;
}
