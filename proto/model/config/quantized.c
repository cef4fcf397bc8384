/* Keys that say how a run of the model would quantise activations, or which modules were left out, change no weight and
 * are not read: each tensor's type says whether it is fp8. */
#include "proto/model/config/quantized.h"

#include "proto/model/model_internal.h"

#include <jansson.h>
#include <string.h>

/* Of a file without the key, as of transformers' FineGrainedFP8Config. */
enum { DEFAULT_BLOCK = 128, MOST_BLOCK = 1 << 24 };

static int quantized_read_block(struct quantized *out, const json_t *value, struct error *err)
{
    const json_int_t rows = json_integer_value(json_array_get(value, 0)),
                     columns = json_integer_value(json_array_get(value, 1));

    if (json_is_null(value))
        return 0;
    if (value && (json_array_size(value) != 2 || rows < 1 || rows > MOST_BLOCK || columns < QUANTIZED_LEAST_COLUMNS ||
                  columns > MOST_BLOCK))
        return model_config_refuse(err, QUANTIZED_KEY ".weight_block_size", value,
                                   "it must be null, for one scale a tensor, or [rows, columns] of a block, with 32 "
                                   "columns or more");
    out->block_rows = value ? (uint32_t)rows : DEFAULT_BLOCK;
    out->block_columns = value ? (uint32_t)columns : DEFAULT_BLOCK;
    return 0;
}

static int quantized_read_fp8(struct quantized *out, const json_t *object, struct error *err)
{
    const json_t *format = json_object_get(object, "fmt");
    const char *name = json_string_value(format);

    if (format && !json_is_null(format) && (!name || strcmp(name, "e4m3") != 0))
        return model_config_refuse(err, QUANTIZED_KEY ".fmt", format, "only e4m3 is read");
    out->fp8 = true;
    return quantized_read_block(out, json_object_get(object, "weight_block_size"), err);
}

int quantized_read(struct quantized *out, const json_t *object, struct error *err)
{
    const char *method = json_string_value(json_object_get(object, "quant_method"));

    *out = (struct quantized){0};
    if (method && (strcmp(method, "bitsandbytes") == 0 || strcmp(method, "mxfp4") == 0))
        return 0;
    if (method && strcmp(method, "fp8") == 0)
        return quantized_read_fp8(out, object, err);
    return model_config_refuse(err, QUANTIZED_KEY, object,
                               "weights that are quantised are read in the forms of bitsandbytes, mxfp4 and fp8 "
                               "(quant_method); begin from those that they were made from, in fp32, fp16 or bf16");
}
