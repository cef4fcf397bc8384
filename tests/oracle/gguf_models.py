"""The small models of check_gguf.py: a row for each family, and the tokenizers that they come with.

GPT-2, Llama 3, Qwen and BERT have their published vocabularies,
which llama.cpp's converter recognises by what they make of
a text. Of the others small ones are learned: by sentencepiece where the converter reads tokenizer.model,
otherwise those of
family_tokens.py, whose pre-tokenizer's name the converter is told."""
import pathlib
from typing import Any, Callable, NamedTuple

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import family_tokens
import tokens

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEXT = [(ROOT / folder / "README.md").read_text() for folder in ("client", "", "tests", "eps")]


# ---- Tokenizers ----

def special(text):
    return AddedToken(text, special=True, normalized=False)


def published(llama, name):
    """The tokens, their types and the merges of a vocabulary that llama.cpp has."""
    fields = gguf.GGUFReader(llama / "models" / f"ggml-vocab-{name}.gguf").fields
    merges = fields.get("tokenizer.ggml.merges")
    return (fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents(),
            merges and [tuple(merge.split(" ")) for merge in merges.contents()])


def byte_level(llama, name, pattern=None, **options):
    words, kinds, merges = published(llama, name)
    normal = [kind == gguf.TokenType.NORMAL for kind in kinds]
    t = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words) if normal[i]}, merges=merges, **options))
    t.add_tokens([special(w) for i, w in enumerate(words) if kinds[i] == gguf.TokenType.CONTROL])
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), t.pre_tokenizer])
    t.decoder, t.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    return t


def llama3(llama, _):
    t = byte_level(llama, "llama-bpe", tokens.LLAMA3, ignore_merges=True)
    t.post_processor = processors.Sequence([t.post_processor, tokens.begins_with(t, "<|begin_of_text|>")])
    return t


def qwen(llama, _):
    t = byte_level(llama, "qwen2", tokens.QWEN)
    t.normalizer = normalizers.NFC()
    return t


def word_pieces(llama, _):
    words, kinds, _ = published(llama, "bert-bge")
    control = [kind == gguf.TokenType.CONTROL for kind in kinds]
    pieces = [w if control[i] else w.removeprefix("▁") if w.startswith("▁") else "##" + w for i, w in enumerate(words)]
    t = Tokenizer(models.WordPiece({w: i for i, w in enumerate(pieces)}, unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    t.add_special_tokens([special(w) for i, w in enumerate(pieces) if control[i]])
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                     special_tokens=[(w, pieces.index(w)) for w in ("[CLS]", "[SEP]")])
    t.decoder = decoders.WordPiece()
    return t


def sentence_pieces(folder, prefix, first, extra, keep_model=True):
    """BPE over characters: tokenizer.model, learned by sentencepiece, and the same as a tokenizer.json."""
    (folder / "text").write_text("\n".join(TEXT))
    ids = {f"{name}_id": first.index(text) if text in first else -1
           for name, text in dict(unk="<unk>", bos=first[-2] if prefix else "<bos>",
                                  eos=first[-1] if prefix else "<eos>", pad="<pad>").items()}
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=600,
        byte_fallback=True, add_dummy_prefix=prefix, remove_extra_whitespaces=False,
        normalization_rule_name="identity", control_symbols=extra, bos_piece="<s>" if prefix else "<bos>",
        eos_piece="</s>" if prefix else "<eos>", minloglevel=2, **ids)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for name in ("text", "tokenizer.vocab") + (() if keep_model else ("tokenizer.model",)):
        (folder / name).unlink()
    vocabulary = {pieces.id_to_piece(i): i for i in range(pieces.vocab_size())}
    merges = [sorted((vocabulary[w[:n]], vocabulary[w[n:]]) for n in range(1, len(w))
                     if w[:n] in vocabulary and w[n:] in vocabulary)
              for w, i in vocabulary.items() if not (pieces.is_control(i) or pieces.is_byte(i) or pieces.is_unknown(i))]
    words = list(vocabulary)
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=[(words[a], words[b]) for all_of in merges for a, b in all_of],
                             unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.add_special_tokens([special(text) for text in [*first, *extra]])
    replace = normalizers.Replace(" ", "▁")
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    t.decoder = decoders.Sequence(tokens.LLAMA_DECODER + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    t.post_processor = tokens.begins_with(t, "<s>" if prefix else "<bos>")
    return t


def llama2(_, folder):
    return sentence_pieces(folder, True, ["<unk>", "<s>", "</s>"], [])


def mistral(_, folder):
    return sentence_pieces(folder, True, ["<unk>", "<s>", "</s>"], ["[INST]", "[/INST]"], keep_model=False)


def gemma(_, folder):
    return sentence_pieces(folder, False, ["<pad>", "<eos>", "<bos>", "<unk>"], ["<start_of_turn>", "<end_of_turn>"])


# ---- Families ----

class Row(NamedTuple):
    kind: str  # model_type
    arch: str  # in gguf
    tokenizer: Callable | str  # (llama, folder) -> tokenizer; or the name in family_tokens.TOKENIZERS
    special: tuple  # the tokens that begin and end a text, and that of padding
    numbers: dict  # of the config
    template: str | None = None  # in llama.cpp's models/templates
    pre: str | None = None  # the pre-tokenizer, where the converter is told it
    published: dict[str, Any] = {}  # keys that published files have, and transformers leaves out
    adapted: bool = True  # its adapters are converted, too
    classes: bool = False  # a classifier


DECODER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
               max_position_embeddings=128, initializer_range=0.3)
ENCODER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
               max_position_embeddings=66, initializer_range=0.3, hidden_dropout_prob=0.0,
               attention_probs_dropout_prob=0.0)
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3, attn_pdrop=0.0, embd_pdrop=0.0,
            resid_pdrop=0.0)
DISTILBERT = dict(dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=66, initializer_range=0.3,
                  dropout=0.0, attention_dropout=0.0)
MODERNBERT = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                  max_position_embeddings=66, local_attention=16, initializer_range=0.3)
NEOX = {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32, beta_fast=32.0,
            beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=64,
                short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.5, 2.0, 3.0, 4.0])
HALF_ROPE = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)
GEMMA3_ROPE = dict(sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                   full_attention=dict(rope_type="default", rope_theta=1000000.0))
WINDOW = dict(sliding_window=16, layer_types=["sliding_attention", "full_attention"])
NO_WINDOW = dict(sliding_window=None)
SCALED = dict(embedding_multiplier=2.0, attention_multiplier=0.2, residual_multiplier=0.5, logits_scaling=3.0)

END = family_tokens.END
PLAIN, LLAMA2, LLAMA3 = (END, END, END), ("<s>", "</s>", None), ("<|begin_of_text|>", "<|eot_id|>", None)
QWEN, GEMMA, PIECES = (None, "<|im_end|>", END), ("<bos>", "<eos>", "<pad>"), ("[CLS]", "[SEP]", "[PAD]")
BART = ("<s>", "</s>", "<pad>")

MODELS = {
    "gpt2": Row("gpt2", "GPT2", lambda llama, _: byte_level(llama, "gpt-2"), (END, END, None), GPT2,
                published={"n_ctx": 128}, adapted=False),
    "llama3": Row("llama", "LLAMA", llama3, LLAMA3, DECODER | dict(rope_parameters=LLAMA3_ROPE),
                  "meta-llama-Llama-3.1-8B-Instruct"),
    "llama2": Row("llama", "LLAMA", llama2, LLAMA2, DECODER | dict(tie_word_embeddings=True)),
    "mistral": Row("mistral", "LLAMA", mistral, LLAMA2, DECODER | dict(head_dim=12, sliding_window=None),
                   "unsloth-mistral-Devstral-Small-2507"),
    "qwen2": Row("qwen2", "QWEN2", qwen, QWEN, DECODER, "Qwen-Qwen2.5-7B-Instruct"),
    "qwen3": Row("qwen3", "QWEN3", qwen, QWEN, DECODER | dict(head_dim=16, tie_word_embeddings=True),
                 "Qwen-Qwen3-0.6B"),
    "gemma": Row("gemma", "GEMMA", gemma, GEMMA, DECODER | dict(head_dim=16), "google-gemma-2-2b-it"),
    "gemma2": Row("gemma2", "GEMMA2", gemma, GEMMA, DECODER | WINDOW | dict(head_dim=16, query_pre_attn_scalar=8),
                  "google-gemma-2-2b-it"),
    "gemma3": Row("gemma3_text", "GEMMA3", gemma, GEMMA, DECODER | dict(
        head_dim=16, num_hidden_layers=3, sliding_window=16, query_pre_attn_scalar=16, rope_parameters=GEMMA3_ROPE,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"]), "google-gemma-2-2b-it"),
    "arcee": Row("arcee", "ARCEE", "arcee", LLAMA3, DECODER | dict(head_dim=8), pre="llama-bpe"),
    "cohere": Row("cohere", "COMMAND_R", "cohere", ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<PAD>"), DECODER,
                  "CohereForAI-c4ai-command-r-plus-tool_use", "command-r"),
    "cohere2": Row("cohere2", "COHERE2", "cohere", ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<PAD>"), DECODER | WINDOW,
                   "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r", published={"rotary_pct": 1.0}),
    "ernie4_5": Row("ernie4_5", "ERNIE4_5", llama2, LLAMA2, DECODER | dict(head_dim=8)),
    "exaone4": Row("exaone4", "EXAONE4", "exaone4", ("[BOS]", "[|endofturn|]", "[PAD]"), DECODER | WINDOW,
                   pre="exaone4"),
    "exaone4_full": Row("exaone4", "EXAONE4", "exaone4", ("[BOS]", "[|endofturn|]", "[PAD]"),
                        DECODER | NO_WINDOW | dict(rope_parameters=LLAMA3_ROPE, layer_types=["full_attention"] * 2),
                        pre="exaone4"),
    "glm": Row("glm", "CHATGLM", "glm", PLAIN, DECODER | dict(head_dim=8), "GLM-4.6", "glm4"),
    "glm4": Row("glm4", "GLM4", "glm4", PLAIN, DECODER | dict(head_dim=8, attention_bias=True), "GLM-4.6", "glm4"),
    "gpt_neox": Row("gpt_neox", "GPTNEOX", "gpt_neox", (END, END, "<|padding|>"), NEOX, pre="gpt-neox",
                    published={"rotary_pct": 0.25}),
    "granite": Row("granite", "GRANITE", "granite", PLAIN, DECODER | SCALED, "ibm-granite-granite-3.3-2B-Instruct",
                   "refact"),
    "hunyuan": Row("hunyuan_v1_dense", "HUNYUAN_DENSE", "hunyuan", ("<｜hy_begin▁of▁sentence｜>", "<｜hy_User｜>", None),
                   DECODER | dict(head_dim=8), pre="hunyuan-dense"),
    "lfm2": Row("lfm2", "LFM2", "lfm2", ("<|startoftext|>", "<|im_end|>", "<|pad|>"), DECODER | dict(
        num_hidden_layers=3, block_multiple_of=16, layer_types=["conv", "full_attention", "conv"]), pre="lfm2",
        adapted=False),
    "ministral3": Row("ministral3", "MISTRAL3", "ministral3", LLAMA2,
                      DECODER | NO_WINDOW | dict(head_dim=8, rope_parameters=YARN),
                      "mistralai-Ministral-3-14B-Reasoning-2512", "tekken", adapted=False),
    "olmo": Row("olmo", "OLMO", "olmo", (END, END, "<|padding|>"), DECODER, pre="olmo"),
    "olmo2": Row("olmo2", "OLMO2", "olmo2", PLAIN, DECODER, pre="dbrx"),
    "olmo3": Row("olmo3", "OLMO2", "olmo3", PLAIN, DECODER | WINDOW, pre="dbrx"),
    "phi": Row("phi", "PHI2", "phi", PLAIN,
               DECODER | dict(num_key_value_heads=4, intermediate_size=128, rope_parameters=HALF_ROPE), pre="phi-2"),
    "phi3": Row("phi3", "PHI3", llama2, LLAMA2,
                DECODER | dict(pad_token_id=None, original_max_position_embeddings=64, rope_parameters=LONGROPE),
                "microsoft-Phi-3.5-mini-instruct"),
    "phi4": Row("phi3", "PHI3", "phi4", PLAIN, DECODER | dict(original_max_position_embeddings=128), pre="dbrx"),
    "seed_oss": Row("seed_oss", "SEED_OSS", "seed_oss", ("<seed:bos>", "<seed:eos>", "<seed:pad>"), DECODER | dict(
        head_dim=8, attention_bias=True), "ByteDance-Seed-OSS", "seed-coder"),
    "smollm3": Row("smollm3", "SMOLLM3", "smollm3", (None, "<|im_end|>", None), DECODER | dict(no_rope_layers=[1, 0]),
                   "HuggingFaceTB-SmolLM3-3B", "smaug-bpe"),
    "stablelm": Row("stablelm", "STABLELM", "stablelm", PLAIN, DECODER | dict(rope_parameters=HALF_ROPE),
                    pre="stablelm2"),
    "starcoder2": Row("starcoder2", "STARCODER2", "starcoder2", PLAIN, DECODER | NO_WINDOW, pre="starcoder"),
    "bert": Row("bert", "BERT", word_pieces, PIECES, ENCODER, adapted=False),
    "bert_classes": Row("bert", "BERT", word_pieces, PIECES, ENCODER, adapted=False, classes=True),
    "roberta_classes": Row("roberta", "BERT", lambda *_: tokens.roberta(TEXT, 500), BART,
                           ENCODER | dict(type_vocab_size=1), pre="roberta-bpe", adapted=False, classes=True),
    "xlm_roberta_classes": Row("xlm-roberta", "BERT", "xlm_roberta", BART, ENCODER | dict(type_vocab_size=1),
                               adapted=False, classes=True),
    "distilbert": Row("distilbert", "BERT", word_pieces, PIECES, DISTILBERT, adapted=False),
    "distilbert_classes": Row("distilbert", "BERT", word_pieces, PIECES, DISTILBERT, adapted=False, classes=True),
    "modernbert_classes": Row("modernbert", "MODERN_BERT", "modernbert", PIECES, MODERNBERT, pre="modern-bert",
                              adapted=False, classes=True),
}
