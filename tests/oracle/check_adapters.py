"""Adapters that eps trains load in PEFT with no key missing, and give its logits: a small model of each family, with its
programs.

    python check_adapters.py [--bin build/bin]

Each model of tests/fixtures is tuned for a few steps, with settings of its own. PEFT loads the checkpoint's directory, and
what eps export wrote; transformers loads the same merged. The differences told are the largest of any logit, beside how far
the adapter moved them. Classifiers, whose head is trained as well, are begun from an encoder without one. Of T5 an adapter
that PEFT saved is tuned, too. Exit status 0 or 1.

Made with torch 2.15.0, transformers 5.23.0 and peft 0.21.2 on the CPU.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import warnings

import torch
import transformers
from peft import AutoPeftModelForSeq2SeqLM, PeftConfig, PeftModel

import families
import family_draws
import make_saved
import muse_glimmer  # noqa: F401: registers a class
from programs import BIN, eps

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
CAUSAL = {"tied": "rank=3,targets=c_attn,c_proj", "untied": "rank=2,rslora", "llama3": "rank=4,targets=q_proj,v_proj,down_proj",
          "mistral_window": "", "qwen2": "rank=8,alpha=4", "qwen3": "targets=gate_proj,o_proj", "gemma": "rank=3,dropout=0.1",
          "gemma3": "rank=2", "bloom": "", "apertus": "", "nanochat": "", "lfm2": "", "lfm3": "", "muse_glimmer_text": "", "olmo_hybrid": "", "qwen3_5_text": "", "qwen3_5_moe_text": "", "granite_swa": "",
          "mixtral": "rank=3,rslora", "lfm2_moe": "rank=2", "glm4_moe": "rank=2", "minimax_m2": "rank=3", "olmoe": "rank=2,targets=k_proj,experts",
          "qwen2_moe": "rank=2", "qwen3_moe": "rank=2"}
SEQUENCES = {"saved_t5": "rank=3,targets=q,v,wo", "saved_flan": "rank=2,rslora,dropout=0.1", "adapter_flan": None}
MASKED = {"bert": "rank=4,targets=query,value,dense", "roberta": "rank=2"}
WITHIN = 2e-5  # of the largest logit


def loaded(kind, base, folder, **options):
    """The base with the adapter, and the keys that were missing or not expected."""
    model = PeftModel.from_pretrained(kind.from_pretrained(base, **options), folder).eval()
    again = model.load_adapter(folder, "again")
    missing = [key for key in again.missing_keys if "again" in key]
    model.delete_adapter("again")
    model.set_adapter("default")
    return model, missing + list(again.unexpected_keys)


def logits(model, ids, first):
    """In float64: Qwen3.5's small model multiplies fp32's roundings by some hundreds."""
    positions = {} if first is None else {"position_ids": torch.arange(ids.shape[1])[None] + first}
    if hasattr(model.config, "num_experts_per_tok"):  # grouped products are not in float64
        (model.get_base_model() if isinstance(model, PeftModel) else model).set_experts_implementation("eager")
    if model.config.is_encoder_decoder:
        positions["decoder_input_ids"] = ids.flip(0)
    model.config._experts_implementation = "eager"  # the others are not for float64
    with torch.no_grad(), families.throughout():
        return model.double()(input_ids=ids, **positions).logits


def compare(name, kind, base, work, ids, first=None, **options):
    experts = {"experts_implementation": "eager"} if name in family_draws.MIXTURES else {}  # others know no float64
    options |= experts
    plain = logits(kind.from_pretrained(base, **options).eval(), ids, first)
    merged = logits(kind.from_pretrained(work / "merged", **experts).eval(), ids, first)
    good = True
    for folder in (work / "run" / "latest", work / "alone"):
        assert os.path.samefile(PeftConfig.from_pretrained(folder).base_model_name_or_path, base)
        model, wrong = loaded(kind, base, folder, **options)
        theirs = logits(model, ids, first)
        off, moved, largest = ((theirs - x).abs().max().item() for x in (merged, plain, 0 * merged))
        good &= off < WITHIN * largest and not wrong and (moved > 1e-3 or "num_labels" in options)
        print(f"{name}: {off:.1e} of {largest:.1f}, moved by {moved:.1e}, keys {wrong or 'as they should be'}", flush=True)
    return good


def tune(programs, base, work, *words):
    eps(programs, "train", "--model", base, "--device", "cpu", "--lr", 0.02, "--out", work / "run", *words)
    eps(programs, "export", "--model", work / "run", "--out", work / "alone")
    eps(programs, "export", "--model", work / "run", "--merge", "--dtype", "fp32", "--out", work / "merged")


def check_causal(programs, name, lora, work):
    r = random.Random(name)
    (work / "data.bin").write_bytes(b"".join(min(r.randrange(61), r.randrange(61)).to_bytes(2, "little") for _ in range(999)))
    tune(programs, FIXTURES / name, work, "--data", work / "data.bin", "--seq", 12, "--batch", 4, "--steps", 8, "--lora",
         lora or "rank=16")
    return compare(name, transformers.AutoModelForCausalLM, FIXTURES / name, work, torch.arange(26).view(2, 13))


def check_sequence(programs, name, lora, work):
    """The model and its tokenizer in a folder of their own; with an adapter of PEFT, both beside one another."""
    base = work / "saved_flan" if lora is None else work / name
    for folder in {base, work / name}:
        shutil.copytree(FIXTURES / folder.name, folder)
    shutil.copy(FIXTURES / "tokenizers" / "t5.json", base / "tokenizer.json")
    with open(work / "data.jsonl", "w") as out:
        for source, target in make_saved.PAIRS * 4:
            print(json.dumps({"source": source, "target": target}), file=out)
    tune(programs, work / name, work, "--data", work / "data.jsonl", "--batch", 4, "--steps", 8, *(["--lora", lora] if lora else []))
    model = AutoPeftModelForSeq2SeqLM.from_pretrained(work / "alone")
    assert type(model).__name__ == "PeftModelForSeq2SeqLM" and model.peft_config["default"].task_type == "SEQ_2_SEQ_LM"
    return compare(name, transformers.AutoModelForSeq2SeqLM, base, work, torch.arange(26).view(2, 13), dtype=torch.float32)


def encoder(family, work):
    """A random encoder without a head, with one of the tokenizers of tests/fixtures."""
    base = work / "base"
    make_config, make_model = {"bert": (transformers.BertConfig, transformers.BertModel),
                               "roberta": (transformers.RobertaConfig, transformers.RobertaModel)}[family]
    torch.manual_seed(1)
    sizes = dict(vocab_size=410, hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40,
                 max_position_embeddings=64, initializer_range=0.3, hidden_dropout_prob=0.0)
    make_model(make_config(**sizes), add_pooling_layer=False).save_pretrained(base)
    config = json.loads((base / "config.json").read_text())
    masked = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM"}[family]
    (base / "config.json").write_text(json.dumps(config | {"architectures": [masked]}))
    (base / "tokenizer.json").write_bytes((FIXTURES / "tokenizers" / f"{family}.json").read_bytes())
    return base


def check_classifier(programs, family, lora, work):
    base, r = encoder(family, work), random.Random(family)
    rows = "".join(f"{' '.join(r.choice('abcdefgh') for _ in range(9))}\t{r.choice(('no', 'yes', 'maybe'))}\n" for _ in range(90))
    (work / "data.tsv").write_text("sentence\tlabel\n" + rows)
    tune(programs, base, work, "--task", "classify", "--data", work / "data.tsv", "--batch", 6, "--steps", 8, "--lora", lora)
    return compare(f"{family}, classes", transformers.AutoModelForSequenceClassification, base, work,
                   torch.arange(5, 31).view(2, 13), 2 if family == "roberta" else None, num_labels=3)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=BIN)
    programs, all_good = parser.parse_args().bin, True
    for check, models in ((check_sequence, SEQUENCES), (check_causal, CAUSAL), (check_classifier, MASKED)):
        for name, lora in models.items():
            with tempfile.TemporaryDirectory(prefix="adapters-") as work:
                os.environ["XDG_RUNTIME_DIR"] = work
                all_good &= check(programs, name, lora, pathlib.Path(work))
    sys.exit(not all_good)
