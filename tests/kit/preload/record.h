/* tests/kit/preload/record.h - the calls by which a program changes one directory, written down as they are made.
 *
 * librecord.so, preloaded, appends a record to $RECORD_FILE after each call that succeeded and that changed something
 * below $RECORD_DIRECTORY, or flushed it. Paths are relative to that directory, as they were at that moment; "" is the
 * directory itself. tests/eps/save/test_save_crash.c plays the records back. */
#ifndef TESTS_KIT_PRELOAD_RECORD_H
#define TESTS_KIT_PRELOAD_RECORD_H

#include <stdint.h>

enum record_kind {
    RECORD_CREATE,   /* path: an empty file, or one that was there */
    RECORD_MKDIR,    /* path */
    RECORD_SYMLINK,  /* path; other: what it says */
    RECORD_WRITE,    /* path, offset, data */
    RECORD_SIZE,     /* path, offset: the new length */
    RECORD_EXTEND,   /* path, offset: the least length */
    RECORD_FLUSH,    /* path */
    RECORD_RENAME,   /* path to other */
    RECORD_EXCHANGE, /* path with other */
    RECORD_REMOVE,   /* path */
    RECORD_KINDS
};

/* In the file: this, then path, other and data, without anything between. */
struct record {
    uint32_t kind;
    uint32_t path_bytes, other_bytes;
    uint64_t offset, data_bytes;
};

#endif
