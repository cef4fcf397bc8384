/* Which cuDNN is loaded, and which engines with it, where the loader's path leads to an older one. */
#include "device/cuda/dnn/dnn.h"
#include "tests/kit/test.h"

#include <stdint.h>
#include <stdlib.h>

SUITE_LABELS(cuda)

enum { OLD = 91900, NEW = 92800 }; /* of the stand-ins in directories of these names beside the program */

#define OLD_DIRECTORY   BIN_DIR "/dnn/old"
#define NEW_DIRECTORY   BIN_DIR "/dnn/new"
#define OTHER_DIRECTORY BIN_DIR "/dnn/other" /* the newest of all, for another CUDA */

/* In the environment of each: LD_LIBRARY_PATH=OLD_DIRECTORY. */
static const struct {
    const char *directories;
    size_t version; /* 0: none is loaded */
    const char *why;
} rows[] = {
    {OLD_DIRECTORY, OLD, NULL},
    {NEW_DIRECTORY, NEW, NULL},
    {OLD_DIRECTORY ":" NEW_DIRECTORY, NEW, NULL},
    {NEW_DIRECTORY ":" OLD_DIRECTORY, NEW, NULL},
    {":" NEW_DIRECTORY, NEW, NULL}, /* an empty one is the loader's path */
    {BIN_DIR ":" OLD_DIRECTORY, OLD, NULL},
    {":", OLD, NULL},
    {"", 0, "EPS_CUDNN has no libcudnn_graph.so.9 of this CUDA that loads"},
    {NEW_DIRECTORY ":" OTHER_DIRECTORY, NEW, NULL},
    {OTHER_DIRECTORY, 0, "EPS_CUDNN has no libcudnn_graph.so.9 of this CUDA that loads"},
    {BIN_DIR, 0, "EPS_CUDNN has no libcudnn_graph.so.9 of this CUDA that loads"},
};

TEST_EACH(the_newest_that_is_named_is_loaded_with_its_own_engines, COUNT(rows))
{
    const char *why = NULL;
    struct dnn_api api;
    void *handle;

    setenv("EPS_CUDNN", rows[_i].directories, 1);
    ck_assert_int_eq(dnn_api_load(&api, &why), rows[_i].version > 0);
    if (rows[_i].version == 0) {
        ck_assert_str_eq(why, rows[_i].why);
        return;
    }
    ck_assert_uint_eq(api.version(), rows[_i].version);
    ck_assert_int_eq(api.create(&handle), 0);
    ck_assert_uint_eq((uintptr_t)handle, rows[_i].version);
}
