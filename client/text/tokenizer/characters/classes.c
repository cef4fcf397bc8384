/* transformers' classes of tokenizers: those that take the vocabulary of tokenizer.json and make everything else anew,
 * by their own names of tokens and by switches of tokenizer_config.json. eps takes tokenizer.json as it is, so what
 * says otherwise is refused here. */
#include "client/text/tokenizer/side.h"

#include "proto/model/file/model_files.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

const char *const tokenizer_names[TOKENIZER_NAMES] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                      "pad_token", "cls_token", "mask_token"};

#define END "<|endoftext|>"
#define BERT                                                                                                           \
    {                                                                                                                  \
        NULL, NULL, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"                                                       \
    }
#define BART                                                                                                           \
    {                                                                                                                  \
        "<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"                                                       \
    }
#define COHERE                                                                                                         \
    {                                                                                                                  \
        "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<SEP>", "<PAD>", "<CLS>", "<MASK_TOKEN>"                     \
    }

/* Those that are made anew from the vocabulary, of transformers 5.24. Others take tokenizer.json as it is. */
static const struct tokenizer_class classes[] = {
    {.name = "LlamaTokenizer", .named = {"<s>", "</s>", "<unk>"}},
    {.name = "CodeLlamaTokenizer", .named = {"<s>", "</s>", "<unk>"}},
    {.name = "GemmaTokenizer", .named = {"<bos>", "<eos>", "<unk>", NULL, "<pad>", NULL, "<mask>"}, .unknown = true},
    {.name = "T5Tokenizer", .named = {NULL, "</s>", "<unk>", NULL, "<pad>"}, .around = true},
    {.name = "AlbertTokenizer", .named = {"[CLS]", "[SEP]", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]"}},
    {.name = "XLMRobertaTokenizer", .named = BART, .ends = true},
    {.name = "CamembertTokenizer", .named = BART, .ends = true},
    {.name = "GPT2Tokenizer", .named = {END, END, END}, .letters = true},
    {.name = "Qwen2Tokenizer", .named = {NULL, END, END, NULL, END}, .plain = true, .letters = true},
    {.name = "GPTNeoXTokenizer", .named = {END, END, END, NULL, "<|padding|>"}, .letters = true},
    {.name = "CodeGenTokenizer", .named = {END, END, END}, .letters = true},
    {.name = "CohereTokenizer", .named = COHERE, .plain_own = true, .letters = true},
    {.name = "RobertaTokenizer", .named = BART, .around = true, .letters = true},
    {.name = "BartTokenizer", .named = BART, .around = true, .letters = true},
    {.name = "BertTokenizer", .named = BERT, .around = true, .unknown = true, .bert = true},
    {.name = "DistilBertTokenizer", .named = BERT, .around = true, .unknown = true, .bert = true},
    {.name = "ElectraTokenizer", .named = BERT, .around = true, .unknown = true, .bert = true},
    {.name = "MobileBertTokenizer", .named = BERT, .around = true, .unknown = true, .bert = true},
};

/* AutoTokenizer's classes of the families that are read here. Those that are not among them (llama, smollm3, arcee,
 * exaone4, ...) have none, and take what tokenizer_config.json says. only: whatever tokenizer_config.json says. A class
 * of NULL takes tokenizer.json as it is. */
static const struct {
    const char *model_type, *class;
    bool only;
} types[] = {
    {"gpt2", "GPT2Tokenizer", false},
    {"phi", "GPT2Tokenizer", false},
    {"opt", "GPT2Tokenizer", false},
    {"starcoder2", "GPT2Tokenizer", false},
    {"qwen2", "Qwen2Tokenizer", true}, /* whose published files often name another one */
    {"qwen3", "Qwen2Tokenizer", false},
    {"gpt_neox", "GPTNeoXTokenizer", false},
    {"olmo", "GPTNeoXTokenizer", false},
    {"cohere", "CohereTokenizer", false},
    {"cohere2", "CohereTokenizer", false},
    {"gemma", "GemmaTokenizer", false},
    {"gemma2", "GemmaTokenizer", false},
    {"gemma3_text", "GemmaTokenizer", false},
    {"bert", "BertTokenizer", false},
    {"distilbert", "BertTokenizer", false},
    {"electra", "BertTokenizer", false},
    {"roberta", "RobertaTokenizer", false},
    {"xlm-roberta", "XLMRobertaTokenizer", false},
    {"t5", "T5Tokenizer", false},
    {"mistral", NULL, true},
    {"ministral3", NULL, true},
    {"phi3", NULL, true},
    {"olmo2", NULL, true},
    {"olmo3", NULL, true},
    {"granite", NULL, true},
    {"stablelm", NULL, true},
    {"glm", NULL, true},
    {"glm4", NULL, true},
    {"ernie4_5", NULL, true},
    {"modernbert", NULL, true},
};

/* With or without Fast. */
static const struct tokenizer_class *classes_find_class(const char *name)
{
    for (size_t i = 0; name && i < sizeof classes / sizeof *classes; i++) {
        const size_t n = strlen(classes[i].name);
        if (strncmp(name, classes[i].name, n) == 0 && (!name[n] || strcmp(name + n, "Fast") == 0))
            return &classes[i];
    }
    return NULL;
}

const struct tokenizer_class *tokenizer_class_of(const json_t *config, const char *model_type, bool byte_level)
{
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));

    for (size_t i = 0; model_type && i < sizeof types / sizeof *types; i++)
        if (strcmp(model_type, types[i].model_type) == 0 && (types[i].only || !name))
            return classes_find_class(types[i].class);
    const struct tokenizer_class *class = classes_find_class(name);
    return class == &classes[0] && byte_level ? NULL : class; /* files of Llama 3 say LlamaTokenizer */
}

const struct tokenizer_class *tokenizer_class_gpt2(void)
{
    return classes_find_class("GPT2Tokenizer");
}

static const char *classes_text_of(const json_t *token)
{
    return json_string_value(json_object_get(token, "content"));
}

static bool classes_flag(const json_t *part, const char *key)
{
    return json_is_true(json_object_get(part, key));
}

/* ---- Switches ---- */

/* A part of tokenizer.json of this type: itself, or one of a Sequence. */
static const json_t *find_part(const json_t *root, const char *part, const char *list, const char *type)
{
    const json_t *found = json_object_get(root, part), *one;
    const char *is = json_string_value(json_object_get(found, "type"));
    size_t i;

    if (is && strcmp(is, type) == 0)
        return found;
    json_array_foreach(json_object_get(found, list), i, one)
    {
        is = json_string_value(json_object_get(one, "type"));
        if (is && strcmp(is, type) == 0)
            return one;
    }
    return NULL;
}

/* A switch as the class has it, and as tokenizer.json's part does. without: what the class takes if it is not given. */
static int classes_compare(const struct tokenizer_class *class, const json_t *config, const char *key, bool without,
                           bool in_part, struct error *err)
{
    const json_t *given = json_object_get(config, key);
    const bool value = json_is_boolean(given) ? json_is_true(given) : without;

    if (value == in_part)
        return 0;
    return error_set(
        err, -EINVAL,
        "tokenizer_config.json: %s is %s%s, and tokenizer.json's %s has it %s: transformers' %.40s follows "
        "the former: write the one that is right into both",
        key, value ? "true" : "false", json_is_boolean(given) ? "" : " unless it is given",
        class->letters ? "ByteLevel" : "BertNormalizer", in_part ? "true" : "false", class->name);
}

/* A name that is the class's own, or that no file gives, is the post-processor's business. */
static int check_around(const struct tokenizer_side *side, int name, const uint32_t *ids, size_t n, struct error *err)
{
    const char *text = classes_text_of(json_object_get(side->named, tokenizer_names[name])),
               *own = side->class->named[name];

    if (!text || !own || strcmp(text, own) == 0 || (n == 1 && ids[0] == tokenizer_side_id(side, tokenizer_names[name])))
        return 0;
    return error_set(err, -EINVAL,
                     "its post-processor does not put the %s %.60s %s a text, as transformers' %s does by the other "
                     "files: write it there, too",
                     tokenizer_names[name], text, name == TOKENIZER_CLS || name == TOKENIZER_BOS ? "before" : "after",
                     side->class->name);
}

int tokenizer_side_check_names(const struct tokenizer_side *side, const json_t *root, const uint32_t *const ends[2],
                               const size_t n_ends[2], struct error *err)
{
    const struct tokenizer_class *class = side->class;
    const char *is = json_string_value(json_object_get(json_object_get(root, "model"), "unk_token")),
               *text = classes_text_of(json_object_get(side->named, tokenizer_names[TOKENIZER_UNK]));
    int rc = 0;

    if (!class)
        return 0;
    if ((class->around && class->named[TOKENIZER_CLS]) || class->ends)
        rc = check_around(side, class->ends ? TOKENIZER_BOS : TOKENIZER_CLS, ends[0], n_ends[0], err);
    if (!rc && (class->around || class->ends))
        rc = check_around(side, class->around && class->named[TOKENIZER_SEP] ? TOKENIZER_SEP : TOKENIZER_EOS, ends[1],
                          n_ends[1], err);
    if (rc || !class->unknown || !text || (is && strcmp(is, text) == 0))
        return rc;
    return error_set(err, -EINVAL,
                     "its unk_token is %.60s, and %.60s by the other files, which transformers' %s follows: write the "
                     "one that is right into both",
                     is ? is : "none", text, class->name);
}

/* A mark before the text, as LlamaTokenizer has it by these switches, and as tokenizer.json's Metaspace does. */
static int check_lead(const json_t *config, const json_t *root, struct error *err)
{
    const json_t *space = find_part(root, "pre_tokenizer", "pretokenizers", "Metaspace"),
                 *prefix = json_object_get(config, "add_prefix_space"), *legacy = json_object_get(config, "legacy");
    const char *scheme = json_string_value(json_object_get(space, "prepend_scheme"));
    const char *want = json_is_false(prefix) ? "never" : json_is_true(legacy) ? "always" : "first";

    if (!space || (!json_is_boolean(prefix) && !json_is_boolean(legacy)) ||
        strcmp(scheme ? scheme : "always", want) == 0)
        return 0;
    return error_set(err, -EINVAL,
                     "tokenizer_config.json: by its add_prefix_space and legacy, transformers' LlamaTokenizer has the "
                     "prepend_scheme %s, and tokenizer.json's Metaspace has %s: make them agree",
                     want, scheme ? scheme : "always");
}

int tokenizer_side_check(const struct tokenizer_class *class, const json_t *config, const json_t *root,
                         struct error *err)
{
    const json_t *bytes = find_part(root, "pre_tokenizer", "pretokenizers", "ByteLevel"),
                 *bert = find_part(root, "normalizer", "normalizers", "BertNormalizer");
    int rc = 0;

    if (class == &classes[0])
        rc = check_lead(config, root, err);
    if (!rc && class && class->letters && bytes)
        rc = classes_compare(class, config, "add_prefix_space", false,
                             !json_is_false(json_object_get(bytes, "add_prefix_space")), err);
    if (!rc && class && class->bert && bert)
        rc = classes_compare(class, config, "do_lower_case", true, classes_flag(bert, "lowercase"), err);
    if (!rc && class && class->bert && bert)
        rc = classes_compare(class, config, "tokenize_chinese_chars", true, classes_flag(bert, "handle_chinese_chars"),
                             err);
    return rc;
}
