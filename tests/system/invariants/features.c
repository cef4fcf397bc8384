#include "tests/system/invariants/features.h"

#include "tests/kit/command.h"
#include "tests/kit/images.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

/* ---- models and data ---- */

#define BERT(family, positions, vocabulary)                                                                            \
    "{'model_type': '" family "', 'vocab_size': " #vocabulary ", 'hidden_size': 32, 'num_hidden_layers': 2, "          \
    "'num_attention_heads': 2, 'intermediate_size': 64, 'max_position_embeddings': " #positions ", "                   \
    "'hidden_dropout_prob': 0.1, 'attention_probs_dropout_prob': 0.1}"
#define T5(vocabulary)                                                                                                 \
    "{'model_type': 't5', 'd_model': 32, 'd_kv': 8, 'd_ff': 40, 'num_layers': 2, 'num_decoder_layers': 2, "            \
    "'num_heads': 4, 'vocab_size': " #vocabulary ", 'dropout_rate': 0.1, 'feed_forward_proj': 'relu', "                \
    "'relative_attention_num_buckets': 8, 'relative_attention_max_distance': 20, 'is_encoder_decoder': true, "         \
    "'decoder_start_token_id': 0, 'eos_token_id': 1}"

/* Two columns of a head's four are divided by these, in rows up to 8 tokens and in longer ones. */
#define LONGROPE                                                                                                       \
    "'original_max_position_embeddings': 8, 'rope_parameters': {'rope_type': 'longrope', 'rope_theta': 100.0, "        \
    "'partial_rotary_factor': 0.67, 'short_factor': [1.0, 1.5], 'long_factor': [2.0, 3.5]}"
#define DYNAMIC                                                                                                        \
    "'head_dim': 10, 'rope_parameters': {'rope_type': 'dynamic', 'rope_theta': 100.0, 'factor': 1.0, 'alpha': 3.0}"
#define DECODER(family, more)                                                                                          \
    "{'model_type': '" family "', 'vocab_size': 256, 'hidden_size': 24, 'num_hidden_layers': 2, "                      \
    "'num_attention_heads': 4, 'num_key_value_heads': 2, 'intermediate_size': 28, 'max_position_embeddings': 256, "    \
    "'pad_token_id': null, 'initializer_range': 0.3, " more "}"

static const struct {
    const char *path, *config;
} configs[] = {
    {"t5.json", T5(256)},
    {"spans/config.json", T5(180)},
    {"conv.json",
     "{'model_type': 'dynamic_conv', 'd_model': 32, 'num_heads': 2, 'ffn_dim': 40, 'encoder_layers': 2, "
     "'decoder_layers': 2, 'encoder_kernel_sizes': [3, 7], 'decoder_kernel_sizes': [4, 11], 'vocab_size': 256, "
     "'decoder_start_token_id': 0, 'eos_token_id': 1, 'dropout': 0.1, 'weight_dropout': 0.1}"},
    {"bert/config.json", BERT("bert", 32, 330)},
    {"roberta/config.json", BERT("roberta", 34, 332)},
    {"net.json", "{'model_type': 'wide_resnet', 'depth': 10, 'widen_factor': 1, 'image_size': 8, 'num_labels': 5}"},
    {"ghosts.json", "{'model_type': 'wide_resnet', 'depth': 10, 'widen_factor': 1, 'image_size': 8, 'num_labels': 5, "
                    "'ghost_batch_size': 2}"},
    {"basic.json", "{'model_type': 'torchvision_resnet', 'layer_type': 'basic', 'depths': [2, 1, 1, 1], "
                   "'embedding_size': 4, 'stem': 'cifar', 'image_size': 8, 'num_labels': 5}"},
    {"bottleneck.json", "{'model_type': 'torchvision_resnet', 'layer_type': 'bottleneck', 'depths': [1, 2, 1, 1], "
                        "'embedding_size': 4, 'stem': 'imagenet', 'image_size': 35, 'num_labels': 5}"},
    {"longrope.json", DECODER("phi3", LONGROPE)},
    {"dynamic.json", DECODER("hunyuan_v1_dense", DYNAMIC)},
};

enum {
    TEXT,
    FEW,
    LONG,
    TARGETS,
    SPANS,
    MASKED,
    CLASSES,
    NUMBERS,
    CONVERSATIONS,
    PACKED,
    PREFERENCES,
    IMAGES,
    LARGE_IMAGES
};

/* How a run is told of its data, and what a plan must be told besides. */
static const struct {
    const char *train, *plan;
    uint32_t n_tokens; /* of data that are read again, whose norms of gradients are remembered */
} kinds[] = {
    [TEXT] = {"--data text.txt --eval-data held.txt --seq 16", "", 0},
    [FEW] = {"--data few.txt --eval-data held.txt --seq 16", "", 400},
    [LONG] = {"--data text.txt --eval-data held.txt --seq 20", "", 0},
    [TARGETS] = {"--data sums.jsonl --eval-data few.jsonl --seq 24 --source-seq 10", "", 0},
    [SPANS] = {"--data text.txt --eval-data held.txt --seq 24 --source-seq 18 --mask-fraction 0.15", "", 0},
    [MASKED] = {"--data fox.jsonl --eval-data held.txt --seq 16", "", 0},
    [CLASSES] = {"--task classify --data fox.tsv --eval-data fox.tsv --seq 14", "", 0},
    [NUMBERS] = {"--task regress --data score.tsv --eval-data score.tsv --seq 14", "", 0},
    [CONVERSATIONS] = {"--data talks.jsonl --eval-data talk.jsonl --seq 24", "", 0},
    [PACKED] = {"--data talks.jsonl --eval-data talk.jsonl --seq 32 --pack", "", 0},
    [PREFERENCES] = {"--data pairs.jsonl --eval-data pair.jsonl --seq 16 --microbatch 2", "--dpo-beta 0.1", 0},
    [IMAGES] = {"--data images.npy --eval-data held-images.npy", "--seq 64", 0},
    [LARGE_IMAGES] = {"--data images.npy --eval-data held-images.npy", "--seq 1225", 0},
};

void features_setup(void)
{
    const char *dropout = "\"attn_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.1";

    processes_config_with("gpt2.json", 2, 4, 32, 32, dropout);
    processes_config_with("deep.json", 4, 4, 32, 32, dropout);
    processes_config_with("untied.json", 2, 4, 32, 32, "\"tie_word_embeddings\": false, \"resid_pdrop\": 0.1");
    processes_config_with("relu.json", 2, 4, 32, 32, "\"activation_function\": \"relu\", \"resid_pdrop\": 0.1");
    /* So large weights that gradients overflow in fp16 at first. */
    processes_config_with("large.json", 2, 4, 32, 32, "\"initializer_range\": 1.0");
    expect(
        "mkdir bert roberta spans modernbert electra eurobert && for f in modernbert electra eurobert; do cp " TESTS_DIR
        "/fixtures/tokenizers/bert.json $f/tokenizer.json && sed 's/\"vocab_size\": 61/\"vocab_size\": 330/' " TESTS_DIR
        "/fixtures/$f/config.json >$f/config.json; done && cp " TESTS_DIR
        "/fixtures/tokenizers/bert.json bert/tokenizer.json && "
        "cp " TESTS_DIR "/fixtures/tokenizers/bert.json roberta/tokenizer.json && "
        "cp " TESTS_DIR
        "/fixtures/tokenizers/t5.json spans/tokenizer.json; for f in llama3 qwen3 gemma3 guests alternating "
        "chunked experts crossing part_norm pictures gemma2 ministral3 smollm3 olmo3 granite cohere gpt_neox bloom "
        "apertus opt nanochat phi lfm2 lfm3 qwen3_5_text muse_glimmer_text olmo_hybrid qwen2_moe qwen3_moe lfm2_moe "
        "qwen3_5_moe_text; do sed "
        "'s/\"vocab_size\": "
        "61/\"vocab_size\": 256/; "
        "s/\"original_max_position_embeddings\": 64/\"original_max_position_embeddings\": 4/' " TESTS_DIR
        "/fixtures/$f/config.json >$f.json; done",
        0);
    for (int i = 0; i < COUNT(configs); i++)
        processes_put_text(configs[i].path, quoted(configs[i].config));
    processes_text("text.txt", 12000);
    processes_text("few.txt", 400);
    processes_text("held.txt", 200);
    images_put("images.npy", "labels.npy", 48, 8, 0);
    images_put("held-images.npy", "held-labels.npy", 5, 8, 1000);
    expect(
        "for i in $(seq 60); do printf '{\"source\": \"%s+1\", \"target\": \"is %s\"}\\n' $i $((i + 1)) >&3; "
        "printf '{\"prompt\": \"%s+%s=\", \"completion\": \"%s\"}\\n' $i $i $((2 * i)) >&4; "
        "printf '{\"prompt\": \"%s+1=\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\\n' $i $((i + 1)) $((i - 1)) >&5; "
        "printf '{\"text\": \"%s: the quick brown fox jumps over the lazy dog\"}\\n' $i >&6; done "
        "3>sums.jsonl 4>talks.jsonl 5>pairs.jsonl 6>fox.jsonl; "
        "for f in sums,few talks,talk pairs,pair; do head -n 6 ${f%,*}.jsonl >${f#*,}.jsonl; done; "
        "{ printf 'sentence\\tlabel\\n'; for i in $(seq 31); do a=$(seq -s ' ' 1 $((i % 6))); "
        "printf '%s fox %s\\tfox\\n%s dog\\tdog\\n' \"$a\" \"$a\" \"$a\"; done; } >fox.tsv; "
        "{ printf 'sentence1\\tsentence2\\tscore\\n'; for i in $(seq 40); do "
        "printf 'the %s\\tquick fox\\t%s\\n' $((i % 5)) $((i % 5)); done; } >score.tsv; "
        "for f in untied granite gpt_neox qwen3_moe; do eps train --model $f.json --data text.txt --batch 4 --seq 16 "
        "--device "
        "cpu "
        "--steps 1 --lr 0.01 --out begun-$f && eps export --model begun-$f/latest --out base-$f || exit 1; done; "
        "mv base-untied base",
        0);
}

/* ---- the features ---- */

#define HALF "--precision bf16 --moments bf16 --grad-dtype bf16 --clip-norm 0.5"

const struct feature features[] = {
    /* Optimizers and commits. */
    {"adama", "gpt2.json", TEXT, "--optimizer adama"},
    {"adamw", "gpt2.json", TEXT, "--optimizer adamw --weight-decay 0.1"},
    {"sgd", "gpt2.json", TEXT, "--optimizer sgd --momentum 0.9 --weight-decay 0.1"},
    {"nesterov", "gpt2.json", TEXT, "--optimizer sgd --momentum 0.8 --nesterov"},
    {"schedule", "untied.json", TEXT, "--schedule cosine --warmup 3 --order sequential --weight-decay 0.1"},
    {"clip-norm", "gpt2.json", TEXT, "--commit fenced --clip-norm 0.5"},
    {"clip-update", "gpt2.json", TEXT, "--optimizer adama --clip-update 0.5"},
    {"folded", "gpt2.json", TEXT, "--commit folded --optimizer adama --precision bf16 --moments bf16"},
    {"row-groups", "gpt2.json", TEXT, "--commit fenced --optimizer adamw --microbatch 3"},
    /* Numbers. */
    {"bf16", "gpt2.json", TEXT, "--precision bf16 --moments bf16 --grad-dtype bf16"},
    {"fp16", "large.json", TEXT, "--precision fp16 --grad-dtype fp16 --optimizer adamw --moments bf16 --clip-norm 0.5"},
    {"moments-coded", "gpt2.json", TEXT, "--precision bf16 --moments coded"},
    {"no-master", "gpt2.json", TEXT, "--precision bf16 --master none --optimizer adamw"},
    {"sums", "gpt2.json", TEXT, "--sums bf16 --optimizer adamw --commit fenced --precision bf16"},
    {"sums-fp16", "gpt2.json", TEXT,
     "--sums bf16 --optimizer adamw --moments bf16 --clip-norm 0.5 --precision fp16 --grad-dtype bf16 --master none"},
    {"sgd-16", "gpt2.json", TEXT, "--optimizer sgd --precision bf16 --moments bf16 --grad-dtype bf16"},
    /* What is trained. */
    {"drop-layers", "deep.json", TEXT, "--drop-layers 0.5"},
    {"drop-16", "untied.json", TEXT, "--drop-layers 0.3 --precision bf16 --moments bf16"},
    {"drop-fenced", "deep.json", TEXT, "--drop-layers 0.7 --commit fenced --clip-norm 0.5"},
    {"drop-frozen", "deep.json", TEXT, "--drop-layers 0.4 --freeze 'wte.*' 'h.1.*' --optimizer adama --parts 2"},
    {"drop-lora", "base", TEXT, "--lora rank=2,dropout=0.1 --drop-layers 0.8"},
    {"drop-t5", "t5.json", TARGETS, "--drop-layers 0.5"},
    {"freeze", "gpt2.json", TEXT, "--freeze wte.weight 'h.*.mlp.*' --precision bf16 --moments bf16"},
    {"freeze-lower", "untied.json", TEXT, "--freeze 'wpe.*' --freeze 'wte.*,h.0.*'"},
    {"freeze-weights", "gpt2.json", TEXT, "--freeze '*.weight' --commit fenced --clip-norm 0.5"},
    {"thaw-late", "gpt2.json", TEXT, "--freeze 'h.*.mlp.*' wte.weight --freeze-until 5"},
    {"thaw-early", "gpt2.json", TEXT, "--freeze 'h.*.mlp.*' wte.weight --freeze-until 2"},
    {"base-bf16", "untied.json", TEXT, "--freeze 'wte.*' 'h.1.*' 'lm_head.*' --base bf16"},
    {"base-int8", "untied.json", TEXT, "--freeze 'wpe.*' 'h.0.*,h.1.attn.*' --base int8"},
    {"base-int8-16", "gpt2.json", TEXT,
     "--freeze 'w*' 'h.*.c_*.*' --base int8 --precision bf16 --commit fenced --clip-norm 0.5"},
    {"base-nf4", "gpt2.json", TEXT, "--freeze wte.weight 'h.*.mlp.*' --base nf4 --moments bf16"},
    {"lora", "base", TEXT, "--lora rank=4,targets=c_attn,alpha=6 --precision bf16 --moments bf16"},
    {"lora-all", "base", TEXT, "--lora rank=3"},
    {"lora-wta", "base", TEXT,
     "--lora rank=3,targets=h.1.attn.c_attn,h.0.attn.c_attn,h.1.mlp.c_fc --approximate wta=0.3"},
    {"lora-variance", "base", TEXT, "--lora rank=4 --approximate wta=0.3,rule=variance"},
    {"lora-coded", "base", TEXT, "--lora rank=4,dropout=0.1 --approximate wta=0.3,coded=8"},
    {"rslora", "base", TEXT,
     "--lora rank=2,rslora,dropout=0.2,targets=attn.c_proj,c_fc --commit fenced --clip-norm 0.5"},
    {"qlora", "base", TEXT, "--lora rank=4 --base nf4"},
    {"sparse", "untied.json", TEXT, "--sparse keep=0.3,every=1,until=100,moved=0.2 --lr 1e-2"},
    {"sparse-adama", "untied.json", TEXT, "--sparse keep=0.3,every=3,until=12,moved=0.2 --optimizer adama --parts 4"},
    {"sparse-16", "untied.json", TEXT,
     "--sparse keep=0.3,every=3,until=12,moved=0.2 --precision bf16 --moments bf16 --commit fenced"},
    /* Gradients that are approximate. */
    {"wta", "gpt2.json", TEXT, "--approximate wta=0.3,attention=0.3"},
    {"variance", "gpt2.json", TEXT, "--approximate wta=0.3,attention=0.3,rule=variance,coded=4"},
    {"coded", "gpt2.json", TEXT, "--approximate coded=8"},
    {"norms", "relu.json", FEW, "--approximate wta=0.3"},
    {"norms-t5", "t5.json", TARGETS, "--approximate wta=0.3 --batch 20"},
    {"pool", "net.json", IMAGES, "--approximate pool=2"},
    /* Data and tasks. */
    {"masked", "bert/config.json", MASKED, "--mask-fraction 0.3"},
    {"roberta", "roberta/config.json", MASKED, "--optimizer adamw"},
    {"classify", "bert/config.json", CLASSES, "--lr 1e-3"},
    {"regress", "bert/config.json", NUMBERS, "--lr 1e-3"},
    {"targets", "t5.json", TARGETS, "--label-smoothing 0.1"},
    {"spans", "spans/config.json", SPANS, "--optimizer adamw"},
    {"convolutions", "conv.json", TARGETS, "--label-smoothing 0.1 --schedule inverse-sqrt --warmup 3"},
    {"conversations", "gpt2.json", CONVERSATIONS, "--train-on all"},
    {"packed", "gpt2.json", PACKED, "--optimizer adamw"},
    {"preferences", "gpt2.json", PREFERENCES, "--optimizer adamw --batch 8"},
    {"preferences-lora", "base", PREFERENCES, "--lora rank=4,dropout=0.1 --base int8 --batch 8"},
    {"images", "net.json", IMAGES,
     "--augment crop=2,flip --precision bf16 --moments bf16 --optimizer sgd --momentum 0.9"},
    {"basic-net", "basic.json", IMAGES, "--optimizer adamw"},
    {"bottleneck-net", "bottleneck.json", LARGE_IMAGES,
     "--precision bf16 --moments bf16 --grad-dtype bf16 --optimizer sgd --momentum 0.9 --clip-norm 2"},
    {"ghosts", "ghosts.json", IMAGES, "--microbatch 2 --batch 16 --optimizer adamw"},
    /* Families. */
    {"llama", "llama3.json", TEXT, "--optimizer adamw"},
    {"qwen3", "qwen3.json", TEXT, "--precision bf16"},
    {"gemma3", "gemma3.json", TEXT, "--freeze 'model.layers.0.*'"},
    /* Parts of blocks, by the family that has them alone or first. */
    {"capped-scores", "gemma2.json", PACKED, "--optimizer adamw"},
    {"longrope", "longrope.json", TEXT, "--precision bf16 --moments bf16"},
    {"yarn", "ministral3.json", TEXT, "--optimizer adamw"}, /* and queries that grow with the position */
    {"dynamic-rope", "dynamic.json", TEXT, HALF},           /* norms of heads behind it */
    {"unrotated", "smollm3.json", PACKED, "--optimizer adamw"},
    {"normed-after", "olmo3.json", TEXT, HALF}, /* norms of queries and keys over the whole width */
    {"multipliers", "base-granite", TEXT, "--lora rank=4 --base nf4"},
    {"side-by-side", "cohere.json", TEXT, "--precision bf16"}, /* neighbours rotated, each head's norm its own */
    {"by-head", "base-gpt_neox", PACKED, "--lora rank=4,dropout=0.1 --base nf4"}, /* one map: a query, a key, a value */
    {"alibi", "bloom.json", PACKED, "--optimizer adamw"},
    {"xielu", "apertus.json", TEXT, "--optimizer adamw --weight-decay 0.1"},
    {"offset-positions", "opt.json", PACKED, "--precision bf16"},
    {"bare-norms", "nanochat.json", TEXT, "--optimizer adamw"}, /* rotated backwards */
    {"column-gates", "muse_glimmer_text.json", PACKED, HALF},
    {"norms-by-mean", "phi.json", TEXT, HALF},
    {"both-sides", "modernbert/config.json", MASKED, "--mask-fraction 0.3"},
    {"full-rotated", "eurobert/config.json", MASKED, "--precision bf16"},
    {"embedding-map", "electra/config.json", MASKED, "--optimizer adamw"},
    {"lfm2-packed", "lfm2.json", PACKED, "--optimizer adamw"},
    {"head-gates", "lfm3.json", PACKED, "--optimizer adamw"},
    {"delta", "qwen3_5_text.json", PACKED, "--optimizer adamw"},
    {"gates", "qwen3_5_text.json", TEXT, HALF},
    {"mixture", "qwen3_moe.json", PACKED, "--optimizer adamw"},
    {"mixture-16", "qwen2_moe.json", TEXT, HALF}, /* and an expert that every token has */
    {"mixture-coded", "qwen3_moe.json", PACKED,
     "--precision bf16 --moments coded --master none --clip-norm 0.5 --check-memory"},
    {"mixture-sigmoid", "lfm2_moe.json", PACKED, HALF}, /* and a bias in fp32 beside */
    {"mixture-delta", "qwen3_5_moe_text.json", PACKED, HALF},
    {"mixture-frozen", "qwen2_moe.json", TEXT, "--freeze 'model.layers.0.mlp.experts.*' --base int8"},
    {"mixture-lora", "base-qwen3_moe", PACKED, "--lora rank=4 --base nf4"}, /* of experts and routers, too */
    {"mixture-lora-16", "base-qwen3_moe", TEXT, "--lora rank=2,targets=experts " HALF},
    {"delta-parts", "olmo_hybrid.json", PACKED, "--optimizer adamw"},
    {"guests", "guests.json", LONG, "--freeze 'h.1.*,layers.[23].*' " HALF},
    {"alternating", "alternating.json", LONG, "--freeze 'layers.1.*' " HALF},
    {"chunked", "chunked.json", LONG, "--freeze 'layers.1.*,layers.2.mlp.[02].*' " HALF},
    {"experts", "experts.json", LONG, "--freeze 'layers.0.self_attn.*,layers.1.experts.3.*' " HALF},
    {"crossing", "crossing.json", LONG, "--freeze 'layers.0.*' " HALF},
    {"part-norm", "part_norm.json", LONG, "--freeze 'layers.1.part_norm.*' " HALF},
    {"pictures", "pictures.json", LONG, "--freeze 'layers.0.conv1.*' " HALF},
    {"guests-whole", "guests.json", LONG, "--optimizer adama"},
    {"alternating-whole", "alternating.json", LONG, "--optimizer adamw"},
    {"crossing-whole", "crossing.json", LONG, "--optimizer adamw"},
    {"part-norm-whole", "part_norm.json", LONG, "--optimizer adamw"},
    {"pictures-whole", "pictures.json", LONG, "--optimizer adama"},
    /* What looks at a run. */
    {"audit", "gpt2.json", TEXT, "--audit 2"},
    {"check-memory", "gpt2.json", TEXT, "--check-memory"},
};
const int n_features = COUNT(features);

/* Cells that the product refuses, by the beginning of its sentence. */
static const struct {
    const char *feature;
    enum invariant invariant;
    const char *refusal;
} holes[] = {
    {"folded", INVARIANT_HOSTS, "a folded commit is of one host"},
    {"fp16", INVARIANT_HOSTS, "on several hosts no loss is scaled"},
    {"sums-fp16", INVARIANT_HOSTS, "on several hosts no loss is scaled"},
    {"drop-layers", INVARIANT_HOSTS, "on several hosts no layers are dropped"},
    {"drop-16", INVARIANT_HOSTS, "on several hosts no layers are dropped"},
    {"drop-fenced", INVARIANT_HOSTS, "on several hosts no layers are dropped"},
    {"drop-frozen", INVARIANT_HOSTS, "on several hosts no layers are dropped"},
    {"drop-lora", INVARIANT_HOSTS, "on several hosts no layers are dropped"},
    {"drop-t5", INVARIANT_HOSTS, "on several hosts no layers are dropped"},
    {"sparse", INVARIANT_HOSTS, "on several hosts all weights are trained"},
    {"sparse-adama", INVARIANT_HOSTS, "on several hosts all weights are trained"},
    {"sparse-16", INVARIANT_HOSTS, "on several hosts all weights are trained"},
    {"audit", INVARIANT_HOSTS, "`audit` is for one host"},
};

const char *feature_refusal(const struct feature *feature, enum invariant invariant)
{
    for (int i = 0; i < COUNT(holes); i++)
        if (strcmp(holes[i].feature, feature->name) == 0 && holes[i].invariant == invariant)
            return holes[i].refusal;
    return NULL;
}

/* By which it is seen that a row's options still do what the row is for, where a silent change could undo it. */
static const struct {
    const char *feature, *shown;
} shown[] = {
    {"norms", "norms of gradients are remembered"},
    {"norms-t5", "norms of gradients are remembered"},
    {"thaw-late", "after step 5, --freeze-until: h.*.mlp.*,wte.weight is frozen no more"},
    {"thaw-early", "after step 2, --freeze-until: h.*.mlp.*,wte.weight is frozen no more"},
    {"fp16", "skipped"},
    {"packed", "packed"},
    {"lfm2-packed", "packed"},
    {"head-gates", "packed"},
    {"delta", "packed"},
    {"mixture", "packed"},
    {"mixture-16", "no load-balance loss is added"},
    {"mixture-lora", "packed"},
    {"delta-parts", "packed"},
    {"ghosts", "batch norms over 2"},
};

const char *feature_shown(const struct feature *feature)
{
    for (int i = 0; i < COUNT(shown); i++)
        if (strcmp(shown[i].feature, feature->name) == 0)
            return shown[i].shown;
    return "";
}

/* ---- runs ---- */

const char *feature_line(const struct feature *feature, const char *more)
{
    return print("--model %s --batch 12 --parts 4 --microbatch 1 --steps %d --save-every 2 --keep 0 --eval-every 3 "
                 "--schedule constant --warmup 0 --seed 11 --deterministic %s %s %s",
                 feature->model, FEATURE_STEPS, kinds[feature->data].train, feature->options, more);
}

void feature_run_init(struct feature_run *run, const struct feature *feature, const char *more)
{
    const char *line = print("%s %s", feature->name, feature_line(feature, more));

    *run = (struct feature_run){.options = eps_train_defaults(), .table.options = &run->options};
    ck_assert_int_eq(wordexp(line, &run->words, WRDE_NOCMD | WRDE_UNDEF), 0);
    table_options_take(&run->table, EPS_COMMAND_TRAIN);
    const struct command command = {feature->name, "", run->table.arguments, run->table.n};
    const int status = table_options_parse(&run->table, &command, (int)run->words.we_wordc, run->words.we_wordv);
    ck_assert_msg(status < 0, "%s", line);
    run->options.programs = processes_programs();
}

uint64_t feature_minimum(const struct feature *feature)
{
    struct feature_run run;
    struct eps_error error = {""};
    uint64_t bytes = 0;

    feature_run_init(&run, feature, kinds[feature->data].plan);
    run.options.data_tokens = kinds[feature->data].n_tokens;
    ck_assert_msg(eps_plan_minimum(&bytes, &run.options, &error) == 0, "%s: %s", feature->name, error.text);
    feature_run_free(&run);
    return bytes;
}

void feature_run_free(struct feature_run *run)
{
    table_options_free(&run->table);
    wordfree(&run->words);
}
