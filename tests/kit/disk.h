/* tests/kit/disk.h - a directory as a disk may have it after a crash.
 *
 * Recorded calls (tests/kit/preload/record.h) are played onto a model of the directory that keeps, of every file and of every
 * directory, what it holds and what it held when it was last flushed. A crash may leave
 *   the content of a file: as it is, or as last flushed (never: empty);
 *   a directory one level down: as it is, or as last flushed;
 *   the directory itself: in any state since it was last flushed, its symbolic links in the present one all the same,
 *   since not every file system keeps changes of names in order.
 * A program that is killed loses nothing: all as it is. A machine that stops may lose all that was not flushed. */
#ifndef TESTS_KIT_DISK_H
#define TESTS_KIT_DISK_H

#include "tests/kit/preload/record.h"

#include <stdbool.h>
#include <stddef.h>

struct disk;

/* The directory as it is, all of it flushed. Everything asserts. Undo: disk_close. */
struct disk *disk_open(const char *directory);
void disk_close(struct disk *disk);

/* Plays one record of those at `at`; its bytes. */
size_t disk_play(struct disk *disk, const char *at);

struct disk_loss {
    bool data;     /* contents are as last flushed */
    bool names;    /* directories one level down too */
    bool links;    /* symbolic links of the directory itself are not behind */
    size_t behind; /* the directory itself is as it was so many changes before, less than disk_n_states */
};

/* States of the directory itself since it was last flushed, that one and the present one included. */
size_t disk_n_states(const struct disk *disk);

/* Makes a new directory that looks like this after a crash. */
void disk_crash(const struct disk *disk, const char *directory, const struct disk_loss *loss);

/* A directory with all that is in it. */
void disk_remove(const char *directory);

#endif
