/* proto/net/key.h - the key that a daemon shares with its workers on other hosts.
 *
 * A key is 32 random bytes. Its file is one line, so that it can be copied through a terminal:
 *   eps-key-1 64 lowercase hexadecimal digits
 * Whoever reads the file can attach a worker, read the weights and spoil a run, so nobody but its owner may. */
#ifndef PROTO_NET_KEY_H
#define PROTO_NET_KEY_H

#include "proto/base/error.h"

#include <stdint.h>

enum { KEY_BYTES = 32 };

/* Makes a new key and writes it to a file that does not exist yet, mode 0600. -EEXIST, -errno with a sentence. */
int key_make(const char *path, struct error *err);
/* Reads a key of KEY_BYTES into pages of its own, which neither swap nor a core dump gets. -EACCES if others may read
 * the file, -EBADMSG if it is no key, -ENOMEM, -errno, with a sentence. Undo: key_free. */
int key_read(uint8_t **out, const char *path, struct error *err);
void key_free(uint8_t *key); /* wipes it; safe on NULL */

#endif
