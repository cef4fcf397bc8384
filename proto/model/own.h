/* proto/model/own.h - numbers of config.json that one family of models has, or a group of families.
 *
 * A config holds them as bytes. What these mean is known to the files of the families alone: they have a struct, and an
 * accessor that takes the bytes for it (decoder_of in proto/model/decoder.h). All others copy the bytes with the
 * config, and ask the family's table. Every process makes them from config.json's text: they are never sent. */
#ifndef PROTO_MODEL_OWN_H
#define PROTO_MODEL_OWN_H

enum { MODEL_OWN_BYTES = 5120, MODEL_OWN_ALIGNMENT = 8 };

struct model_own {
    _Alignas(MODEL_OWN_ALIGNMENT) unsigned char bytes[MODEL_OWN_BYTES]; /* what the struct leaves over is 0 */
};

/* An attribute of each such struct, and of structs within it. Without it the compiler may take a copy of a whole config
 * and an access through the accessor for different memory, and change their order (C11, 6.5, paragraph 7). */
#define MODEL_OWN __attribute__((may_alias))

/* Beside each such struct. */
#define MODEL_OWN_HOLDS(type)                                                                                          \
    _Static_assert(sizeof(type) <= MODEL_OWN_BYTES && _Alignof(type) <= MODEL_OWN_ALIGNMENT,                           \
                   "a family's own numbers have room in a config")

#endif
