"""What one asks of a model: eps.evaluate, eps.generate, eps.export."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Optional, Sequence, Union

from eps._data import as_files
from eps._library import Call, StrPath, ffi, lib, number_of, programs, text_of
from eps._options import bytes_of, checked_real, choice_of, words_of_option

_choices = ("separator", "train_on", "split_special_tokens", "long")  # as eps.train has them
_members = {"long": "long_rows"}


def _set(call: Call, to: Any, given: dict[str, Any]) -> None:
    """Members of a struct of options, by their names; None leaves them unset."""
    for name, value in given.items():
        if value is None:
            continue
        member = _members.get(name, name)
        kind = dict(ffi.typeof(to[0]).fields)[member].type
        if name in _choices:
            value = choice_of(name, value, words_of_option(name))
        elif name == "device_mem" and isinstance(value, str):
            value = bytes_of(call, name, value)
        elif kind.kind == "pointer":
            value = call.text(value if isinstance(value, os.PathLike) else _str(name, value))
        elif isinstance(value, float):
            value = checked_real(name, value)
        try:
            setattr(to, member, value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"{name} is {value!r}: {error}") from None


def _str(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value


@dataclass(frozen=True)
class Prediction:
    """What a classifier predicts of a row."""

    row: int  #: from 0, over all files
    label: Optional[str]  #: the likeliest class; None of a regression
    number: Optional[float]  #: of a regression
    probability: dict[str, float]


@dataclass
class Evaluation:
    """A mean loss over held-out tokens, of a classifier over rows."""

    loss: Optional[float] = None
    tokens: int = 0
    scores: dict[str, Optional[float]] = field(default_factory=dict)  #: of a task
    predictions: list[Prediction] = field(default_factory=list)  #: if they were asked for
    bleu: Optional[float] = None  #: if it was asked for
    hypotheses: list[str] = field(default_factory=list)  #: the targets that BLEU is of


def _prediction_of(p: Any) -> Prediction:
    names = [text_of(p.names[i]) or "" for i in range(p.n_classes)]
    return Prediction(p.row, names[p.likeliest] if names else None, number_of(p.number),
                      {name: p.probability[i] for i, name in enumerate(names)})


def evaluate(model: Optional[StrPath] = None, data: Any = None, *, predictions: bool = False,
             on_note: Optional[Callable[[str], Any]] = None, connect: Optional[str] = None,
             base_model: Optional[StrPath] = None, batch: Optional[int] = None, seq: Optional[int] = None,
             source_seq: Optional[int] = None, stride: Optional[int] = None, mask_fraction: Optional[float] = None,
             seed: Optional[int] = None, eval_tokens: Optional[int] = None, separator: Optional[str] = None,
             train_on: Optional[str] = None, split_special_tokens: Optional[str] = None, long: Optional[str] = None,
             pack: Optional[bool] = None,
             columns: Optional[str] = None, image: Optional[str] = None, bleu: Optional[bool] = None,
             n_beams: Optional[int] = None, n_tokens: Optional[int] = None, length_penalty: Optional[float] = None,
             device: Optional[str] = None, device_mem: Union[int, str, None] = None,
             wait: Optional[float] = None, chat_template: Optional[str] = None) -> Evaluation:
    """Measures a model on data, as the command eps eval does.

    model: a directory, or a run's; None: the model that a daemon trains (connect). data: as in eps.train.
    predictions: of a classifier also those of each row, which then needs no label. bleu: of an encoder-decoder."""
    call, out = Call(), Evaluation()
    events = call.keep(ffi.new("struct eps_eval_events *"))

    def scored(user: Any, scores: Any, n: int) -> None:
        out.scores.update((text_of(scores[i].name) or "", number_of(scores[i].value)) for i in range(n))

    def predicted(user: Any, prediction: Any) -> int:
        out.predictions.append(_prediction_of(prediction))
        return 0

    def written(user: Any, row: int, text: Any, n: int) -> int:
        out.hypotheses.append(bytes(ffi.buffer(text, n)).decode(errors="replace"))
        return 0

    def measured(user: Any, result: Any) -> None:
        out.bleu = result.score

    events.on_scored = call.callback("void(void *, const struct eps_score *, size_t)", scored)
    events.on_hypothesis = call.callback("int(void *, uint64_t, const char *, size_t)", written, -1)
    events.on_bleu = call.callback("void(void *, const struct eps_bleu *)", measured)
    events.should_stop = call.stop()
    if predictions:
        events.on_prediction = call.callback("int(void *, const struct eps_prediction *)", predicted, -1)
    if on_note:
        events.on_note = call.callback("void(void *, const char *)", lambda user, said: on_note(text_of(said)))
    options = call.keep(ffi.new("struct eps_eval_options *"))
    options[0] = lib.eps_eval_defaults()
    options.programs = programs
    loss, tokens = ffi.new("double *"), ffi.new("uint64_t *")
    with as_files(data) as files:
        _set(call, options, dict(model=model, connect=connect, base_model=base_model, batch=batch, seq=seq,
                                 source_seq=source_seq, stride=stride, mask_fraction=mask_fraction, seed=seed,
                                 eval_tokens=eval_tokens, separator=separator, train_on=train_on,
                                 split_special_tokens=split_special_tokens, long=long, pack=pack, columns=columns,
                                 image=image, bleu=bleu, n_beams=n_beams, n_tokens=n_tokens,
                                 length_penalty=length_penalty, device=device, device_mem=device_mem, wait=wait,
                                 chat_template=chat_template))
        paths = [] if files is None else [files] if isinstance(files, (str, Path)) else list(files)
        options.data = call.keep(ffi.new("char *[]", [call.text(str(path)) for path in paths]))
        options.n_data = len(paths)
        call.done(lib.eps_eval(loss, tokens, options, events, ffi.NULL, call.error))
    out.loss, out.tokens = number_of(loss[0]), tokens[0]
    return out


@dataclass
class Text:
    """A text that a model wrote."""

    prompt: int  #: the index of its prompt
    sample: int
    text: str = ""
    ids: list[int] = field(default_factory=list)
    ended: bool = False  #: by an end token
    stopped: bool = False  #: by a stop string
    score: Optional[float] = None  #: of a beam search


def _prompts(call: Call, given: Union[str, Sequence[int], Iterable[Any]]) -> Any:
    """struct eps_prompt[]: a text, token ids, or several of them."""
    is_one = isinstance(given, str) or (isinstance(given, (list, tuple)) and all(isinstance(i, int) for i in given))
    each = [given] if is_one else list(given)
    out = call.keep(ffi.new("struct eps_prompt[]", len(each)))
    for to, prompt in zip(out, each):
        if isinstance(prompt, str):
            text = prompt.encode()
            to.text, to.n_bytes = call.keep(ffi.new("char[]", text)), len(text)
        else:
            try:
                ids = [i.__index__() for i in prompt]
            except (TypeError, AttributeError):
                raise TypeError(f"a prompt must be a str or a list of token ids, not {type(prompt).__name__}") from None
            to.ids, to.n_ids = call.keep(ffi.new("uint32_t[]", ids)), len(ids)
    return out, len(each)


def generate(model: Optional[StrPath] = None, prompt: Any = "", *, n_samples: Optional[int] = None,
             n_tokens: Optional[int] = None, temperature: Optional[float] = None, top_k: Optional[int] = None,
             top_p: Optional[float] = None, min_p: Optional[float] = None, repetition_penalty: Optional[float] = None,
             seed: Optional[int] = None, n_beams: Optional[int] = None, length_penalty: Optional[float] = None,
             stop: Union[str, Sequence[str]] = (), on_text: Optional[Callable[[str], Any]] = None,
             on_note: Optional[Callable[[str], Any]] = None, connect: Optional[str] = None,
             base_model: Optional[StrPath] = None, device: Optional[str] = None,
             device_mem: Union[int, str, None] = None, wait: Optional[float] = None) -> list[Text]:
    """Continues prompts, as the command eps generate does; of an encoder-decoder writes targets of sources.

    prompt: a text, a list of token ids, or several of these. on_text(piece): each piece of text as it is written.
    Returns all samples of the first prompt, then those of the next."""
    call, out = Call(), []
    events = call.keep(ffi.new("struct eps_generate_events *"))

    def begin(user: Any, index: int, sample: int) -> None:
        out.append(Text(index, sample))

    def token(user: Any, id: int, text: Any, n: int) -> None:
        out[-1].ids.append(id)
        piece = bytes(ffi.buffer(text, n)).decode() if text else ""
        out[-1].text += piece
        if on_text and piece:
            on_text(piece)

    def end(user: Any, text: Any) -> None:
        out[-1].ended, out[-1].stopped, out[-1].score = text.ended, text.stopped, number_of(text.score)

    events.on_begin = call.callback("void(void *, size_t, uint32_t)", begin)
    events.on_token = call.callback("void(void *, uint32_t, const char *, size_t)", token)
    events.on_end = call.callback("void(void *, const struct eps_generated *)", end)
    events.should_stop = call.stop()
    if on_note:
        events.on_note = call.callback("void(void *, const char *)", lambda user, said: on_note(text_of(said)))
    options = call.keep(ffi.new("struct eps_generate_options *"))
    options[0] = lib.eps_generate_defaults()
    options.programs = programs
    options.prompts, options.n_prompts = _prompts(call, prompt)
    _set(call, options, dict(model=model, base_model=base_model, connect=connect, wait=wait, device=device,
                             device_mem=device_mem, n_samples=n_samples, n_tokens=n_tokens, n_beams=n_beams,
                             length_penalty=length_penalty))
    _set(call, ffi.addressof(options, "sampling"),
         dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
              repetition_penalty=repetition_penalty))
    stops = [stop] if isinstance(stop, str) else list(stop)
    options.stops = call.keep(ffi.new("char *[]", [call.text(each) for each in stops]))
    options.n_stops = len(stops)
    call.done(lib.eps_generate(ffi.new("struct eps_generated *"), options, events, ffi.NULL, call.error))
    return out


def reshape(run: StrPath, out: StrPath, *, grow: Optional[str] = None, replace: Optional[str] = None,
            on_note: Optional[Callable[[str], Any]] = None) -> str:
    """Writes a run's checkpoint as that of another model, from which train(resume=out) goes on, as eps reshape does.

    grow: "4" or "4,moments=zero"; replace: "3=512,4=llama.json". Returns out."""
    call = Call()
    options = call.keep(ffi.new("struct eps_reshape_options *"))
    _set(call, options, dict(run=run, out=out, grow=None if grow is None else str(grow), replace=replace))
    if on_note:
        options.on_note = call.callback("void(void *, const char *)", lambda user, said: on_note(text_of(said)))
    call.done(lib.eps_reshape(options, call.error))
    return str(out)


def export(model: Optional[StrPath] = None, out: Optional[StrPath] = None, *, dtype: Optional[str] = None,
           merge: Optional[bool] = None, average: Optional[int] = None, connect: Optional[str] = None,
           base_model: Optional[StrPath] = None, text_only: Optional[bool] = None,
           on_note: Optional[Callable[[str], Any]] = None) -> Optional[str]:
    """Writes a model for transformers and llama.cpp, or adapters for PEFT, as the command eps export does.

    Returns the class that loads it, "AutoModelForCausalLM"; None: there is none. dtype: "fp32", "fp16" or "bf16"."""
    call = Call()
    options = call.keep(ffi.new("struct eps_export_options *"))
    options[0] = lib.eps_export_defaults()
    _set(call, options, dict(model=model, out=out, merge=merge, average=average, connect=connect, base_model=base_model,
                             text_only=text_only))
    options.dtype = 0 if dtype is None else choice_of("dtype", dtype, ("fp32", "fp16", "bf16"))
    if on_note:
        options.on_note = call.callback("void(void *, const char *)", lambda user, said: on_note(text_of(said)))
    written = ffi.new("struct eps_exported *")
    call.done(lib.eps_export(written, options, call.error))
    return text_of(written.loader)
