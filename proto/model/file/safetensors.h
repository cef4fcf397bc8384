/* proto/model/file/safetensors.h - weights on disk, as Hugging Face writes them.
 *
 * A file is: header length u64 little-endian | JSON header | data. The header names dtype, shape and byte range of
 * each tensor. The reader trusts nothing: every length, offset, overlap and gap is checked first. Files are not mapped:
 * if one is truncated meanwhile, or the disk is bad, a mapping would kill the process. The writer streams tensor by
 * tensor, so no copy of the model is needed.
 * Format: github.com/huggingface/safetensors, README "Format". */
#ifndef PROTO_MODEL_FILE_SAFETENSORS_H
#define PROTO_MODEL_FILE_SAFETENSORS_H

#include "proto/base/file.h"
#include "proto/base/reserve.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum safetensors_type {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I64,
    SAFETENSORS_U32,
    SAFETENSORS_U16, /* of eps alone: second moments in 8 + 8 bits (proto/base/number.h) */
    SAFETENSORS_I8,  /* and codes of moments (proto/model/groups.h): of first ones */
    SAFETENSORS_U8,  /* of second ones */
    SAFETENSORS_OTHER
};

/* "fp32", "fp16" or "bf16", as in options; asserts that it is one of these. */
const char *safetensors_type_name(enum safetensors_type type);

struct coded;

enum { SAFETENSORS_DIMS = 8 }; /* that a tensor has at most */

struct safetensors_entry {
    const char *name;
    bool taken;  /* set by whoever matches names; false at first */
    bool passed; /* so, too: it is outside of the model, and an export has it (proto/model/outside.h) */
    enum safetensors_type type;
    const char *dtype; /* the type's name in the file, "BF16" */
    uint32_t n_dims;
    uint64_t shape[SAFETENSORS_DIMS];
    uint64_t n;      /* elements; of a type that is not known here, bytes */
    uint64_t offset; /* position of the first element in the file, in bytes */
    struct file file;
    const struct coded *coded; /* how its values are coded (coded_find); NULL: they are not */
};

struct safetensors {
    struct safetensors_entry *entries; /* by name */
    size_t n_entries;
    struct reserve spare; /* what the entries did not need of their memory: coded_find's */
    void *memory;         /* (safetensors_memory), owned; NULL: in a reserve */
};

/* Length of a file's header with its length field: the bytes before its data. Errors as safetensors_open's. */
int safetensors_header_bytes(uint64_t *out, const struct file *file, struct error *err);
/* Bytes of memory that headers of header_bytes (one, or several together) take while their files are open. */
uint64_t safetensors_memory(uint64_t header_bytes);

/* Reads the header of an open regular file. fd is borrowed until safetensors_close. -EINVAL with a sentence (truncated,
 * header too long (over 100 MB) or not JSON, no name of a type, shape and range disagree, ranges overlap, leave gaps or
 * pass the end, a name twice), or -errno. On failure *out is zeroed. Undo: safetensors_close. */
int safetensors_open(struct safetensors *out, int fd, struct error *err);
/* safetensors_open, but a header longer than `most` bytes is refused before any of it is read. */
int safetensors_open_most(struct safetensors *out, int fd, uint64_t most, struct error *err);
/* safetensors_open for any file, own or served, with memory of the reserve, which stays the caller's. A header that
 * needs more than the reserve has is refused before any of it is read. */
int safetensors_open_within(struct safetensors *out, const struct file *file, struct reserve *reserve,
                            struct error *err);
void safetensors_close(struct safetensors *file); /* safe on a zeroed one */

/* True of F32, F16 and BF16: numbers that safetensors_read widens to fp32. */
bool safetensors_is_real(const struct safetensors_entry *entry);

/* Borrowed, or NULL. */
struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name);

/* Converts n elements from index first on to fp32. f16, bf16 and second moments (U16) widen exactly; coded ones are
 * decoded. Asserts the range and that the type is one of these four. -EIO if the file has become shorter, -errno, with a sentence; any
 * thread that may read the file. */
int safetensors_read(float *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n, struct error *err);

/* Bytes of consecutive elements; of a tensor that is coded its codes, with their scales. */
struct safetensors_window {
    const void *bytes; /* from those of element first on */
    uint64_t first, first_scale;
    float table[16];
    float *scales; /* the caller's, of SAFETENSORS_SCALES numbers */
};
enum { SAFETENSORS_SCALES = (1 << 15) + 1 };

/* safetensors_read in two steps, for a file that is served (asserted). safetensors_window brings the bytes of n
 * elements, at most safetensors_most; as file_server.window, they last until the next call. Those of `ahead` elements
 * more are requested, unless the tensor is coded. safetensors_convert (any thread) makes n of its elements fp32, from
 * `first` of the tensor on. */
uint64_t safetensors_most(const struct safetensors_entry *entry);
int safetensors_window(struct safetensors_window *out, const struct safetensors_entry *entry, uint64_t first,
                       uint64_t n, uint64_t ahead, struct error *err);
void safetensors_convert(float *out, const struct safetensors_entry *entry, const struct safetensors_window *window,
                         uint64_t first, uint64_t n);

/* Bytes of a tensor's data, of any type. Not for one that coded_find has found. */
uint64_t safetensors_entry_bytes(const struct safetensors_entry *entry);

/* safetensors_read for I64, unconverted. */
int safetensors_read_counts(int64_t *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n,
                            struct error *err);

struct safetensors_writer {
    int fd;            /* borrowed */
    uint64_t expected; /* data bytes that the header promises */
    uint64_t written;
};

/* A tensor to write: name, shape, type, but OTHER; in order. */
struct safetensors_plan {
    const char *name;
    uint32_t n_dims; /* 1 to 4 */
    uint64_t shape[SAFETENSORS_DIMS];
    enum safetensors_type type;
};

/* A file's layout, for writing it in any order. Tensors follow each other without gaps, in the order of the plan.
 * Larger elements should precede smaller ones, since readers may want them aligned. */
struct safetensors_layout {
    char *header; /* (header_bytes), owned: the length, the JSON, its padding: the file's first bytes */
    size_t header_bytes;
    uint64_t *offsets; /* (n), owned: position of each tensor's first byte, from the file's start */
    uint64_t file_bytes;
};

/* -ENOMEM, -EFBIG. Undo: safetensors_layout_free. */
int safetensors_layout_init(struct safetensors_layout *out, const struct safetensors_plan *plan, size_t n,
                            struct error *err);
void safetensors_layout_free(struct safetensors_layout *layout); /* safe on a zeroed one */

/* Writes the header (padded with blanks so that data starts at a multiple of 8; metadata {"format": "pt"}). -errno. */
int safetensors_begin(struct safetensors_writer *writer, int fd, const struct safetensors_plan *plan, size_t n,
                      struct error *err);

/* safetensors_begin, where the type and shape of tensor i are those of copied[i], of any type, unless that is NULL. */
int safetensors_begin_copies(struct safetensors_writer *writer, int fd, const struct safetensors_plan *plan,
                             const struct safetensors_entry *const *copied, size_t n, struct error *err);

/* Appends bytes of the next tensor, all or a run, in its type. -errno: -ENOSPC and short writes included. */
int safetensors_append(struct safetensors_writer *writer, const void *data, uint64_t bytes, struct error *err);

/* safetensors_append of bytes of another file, from offset on, by the system alone where it can. -EIO if that file is
 * shorter; the sentence then begins with "its source". */
int safetensors_append_file(struct safetensors_writer *writer, int fd, uint64_t offset, uint64_t bytes,
                            struct error *err);

/* Flushes (fsync). -EINVAL if less was appended than promised, -errno. */
int safetensors_end(struct safetensors_writer *writer, struct error *err);

#endif
