"""eps.Chat: a conversation with a model that has a chat template."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Sequence, Union

from eps._ask import _set
from eps._library import Call, Error, StrPath, ffi, lib, programs, text_of


@dataclass(frozen=True)
class Answer:
    """What a model says, and how it came to an end."""

    text: str
    n_prompt: int  #: tokens of the conversation before it
    n_reused: int  #: of them, those that were not computed again
    n_tokens: int  #: of the answer, an end token included
    n_dropped: int  #: messages that were dropped before it, the oldest first: the context was full
    prompt_ms: float  #: until the first token was drawn
    tokens_ms: float  #: for the others
    ended: bool  #: by an end token
    stopped: bool  #: by a stop string
    full: bool  #: because the context was full


class _Said:
    """The answer that is being written, as callbacks see it: they do not hold the conversation, which ends when it is
    forgotten."""

    def __init__(self) -> None:
        self.began = False  # the conversation
        self.pieces: list[str] = []
        self.on_text: Optional[Callable[[str], Any]] = None


def _events(call: Call, said: _Said, on_note: Optional[Callable[[str], Any]]) -> Any:
    """struct eps_chat_events *"""

    def text(user: Any, piece: Any, n: int) -> None:
        said.pieces.append(bytes(ffi.buffer(piece, n)).decode())
        if said.on_text:
            said.on_text(said.pieces[-1])

    def should_stop(user: Any) -> int:  # 2 ends the conversation, too
        return min(2, max(call.interrupts, call.raised is not None)) if said.began else 2 * (call.raised is not None)

    events = call.keep(ffi.new("struct eps_chat_events *"))
    events.on_text = call.callback("void(void *, const char *, size_t)", text)
    events.should_stop = call.callback("int(void *)", should_stop, 1)
    if on_note:
        events.on_note = call.callback("void(void *, const char *)", lambda user, note: on_note(text_of(note)))
    return events


def _end(chat: Any, call: Call, pid: int) -> None:
    """Closes the library's conversation, which borrows from the call; in another process it is left to its owner."""
    if os.getpid() == pid:
        lib.eps_chat_close(chat[0])


class Chat:
    """A conversation with a model, in the format of its own chat template, as the command eps chat has it:

        with eps.Chat("runs/chat", system="You are brief.", temperature=0) as chat:
            print(chat.say("Who are you?").text)
            print(chat.say("And where?").text)

    model: a directory with a tokenizer and a chat template, or a run's; None: the model that a daemon trains (connect).
    system: the system message. context: tokens that the model sees, its answers included. n_tokens: the most of an answer.
    chat_template: the name of one of the model's several templates.
    stop: a text, or several, before the first of which an answer ends. Others are those of eps.generate.

    A model without a template or a tokenizer raises eps.Error. It has a daemon and a worker of its own, which end with it,
    or with the interpreter. Threads may share it. It belongs to the process that made it."""

    def __init__(self, model: Optional[StrPath] = None, *, system: Optional[str] = None, context: Optional[int] = None,
                 n_tokens: Optional[int] = None, temperature: Optional[float] = None, top_k: Optional[int] = None,
                 top_p: Optional[float] = None, min_p: Optional[float] = None,
                 repetition_penalty: Optional[float] = None, seed: Optional[int] = None,
                 stop: Union[str, Sequence[str]] = (), on_note: Optional[Callable[[str], Any]] = None,
                 connect: Optional[str] = None, base_model: Optional[StrPath] = None, device: Optional[str] = None,
                 device_mem: Union[int, str, None] = None, wait: Optional[float] = None,
                 chat_template: Optional[str] = None, split_special_tokens: Optional[str] = None) -> None:
        self._call = call = Call()
        self._said = said = _Said()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._asker: Optional[threading.Thread] = None  # has the lock, and may be in a callback
        self._chat = ffi.new("struct eps_chat **")
        self._finalizer = weakref.finalize(self, _end, self._chat, call, self._pid)
        options = call.keep(ffi.new("struct eps_chat_options *"))
        options[0] = lib.eps_chat_defaults()
        options.programs = programs
        _set(call, options, dict(model=model, base_model=base_model, connect=connect, wait=wait, device=device,
                                 device_mem=device_mem, system=system, context=context, n_tokens=n_tokens,
                                 chat_template=chat_template, split_special_tokens=split_special_tokens))
        _set(call, ffi.addressof(options, "sampling"),
             dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
                  repetition_penalty=repetition_penalty))
        stops = [stop] if isinstance(stop, str) else list(stop)
        options.stops = call.keep(ffi.new("char *[]", [call.text(each) for each in stops]))
        options.n_stops = len(stops)
        try:
            call.done(lib.eps_chat_open(self._chat, options, _events(call, said, on_note), ffi.NULL, call.error))
        except BaseException:
            self._finalizer()
            raise
        said.began = True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self._asker is threading.current_thread():
            raise Error("a callback cannot ask the conversation, which waits for it", errno.EDEADLK)
        with self._lock:
            try:
                self._asker = threading.current_thread()
                yield
            finally:
                self._asker = None

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise Error("the conversation belongs to another process", errno.EPERM)
        with self._alone():
            if not self._finalizer.alive:
                raise Error("the conversation is closed", errno.EBADF)
            yield

    def say(self, message: str, *, on_text: Optional[Callable[[str], Any]] = None) -> Answer:
        """Adds a message of the user to the conversation, and the model's answer, which it returns.

        on_text(piece): each piece of the answer as it is written. Ctrl-C, or an exception in on_text, ends the answer, which
        stays in the conversation as far as it came, and is raised; a second Ctrl-C closes the conversation. Raises eps.Error
        of a message that is too long for the context or that the template refuses: the conversation is then as it was
        before. After any other eps.Error it is closed."""
        if not isinstance(message, str):
            raise TypeError(f"message must be a str, not {type(message).__name__}")
        with self._open():
            call, said, answer, text = self._call, self._said, ffi.new("struct eps_answer *"), message.encode()
            call.raised, call.interrupts = None, 0
            said.pieces, said.on_text = [], on_text
            rc = lib.eps_chat_say(answer, self._chat[0], text, len(text), call.error)
            if -rc not in (0, errno.EINVAL, errno.E2BIG):
                self._finalizer()
            call.done(rc)
            return Answer("".join(said.pieces), *(getattr(answer, name) for name in (
                "n_prompt", "n_reused", "n_tokens", "n_dropped", "prompt_ms", "tokens_ms", "ended", "stopped", "full")))

    def clear(self) -> None:
        """Forgets all messages but the system message."""
        with self._open():
            lib.eps_chat_clear(self._chat[0])

    def set_system(self, message: Optional[str]) -> None:
        """Sets the system message, from the next answer on; None: there is none, or the template's own. Other messages
        stay."""
        if message is not None and not isinstance(message, str):
            raise TypeError(f"message must be a str or None, not {type(message).__name__}")
        text = (message or "").encode()
        with self._open():
            self._call.done(lib.eps_chat_set_system(self._chat[0], text, len(text), self._call.error))

    def close(self) -> None:
        """Ends the conversation, and its daemon and worker. Closed again it does nothing."""
        with self._alone():
            self._finalizer()

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *what: Any) -> None:
        self.close()
