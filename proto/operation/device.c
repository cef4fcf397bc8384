/* One check at start instead of one at each call: a backend that lacks an operation fails when it is loaded, not in the
 * step that needs it. */
#include "proto/operation/device.h"

#include <assert.h>
#include <string.h>

/* The table holds function pointers and one name, all of a pointer's size: none may be NULL. */
void device_check(const struct device_ops *ops)
{
    static_assert(sizeof *ops % sizeof(void (*)(void)) == 0, "members of one size");
    for (size_t i = 0; i < sizeof *ops / sizeof(void (*)(void)); i++) {
        void (*member)(void);
        memcpy(&member, (const char *)ops + i * sizeof member, sizeof member);
        assert(member);
    }
}
