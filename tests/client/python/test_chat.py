"""eps.Chat: what eps chat says, and how a conversation ends."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import eps
import pytest

from conftest import PROGRAMS, TEMPLATE, programs_in

MESSAGES = ["how are you?", "and now?", "two\nlines"]
GREEDY = dict(temperature=0, n_tokens=12, context=128, device_mem="64MiB")


@pytest.fixture(scope="module")
def model(conversing, tmp_path_factory):
    """A model that has learned to answer what it is asked."""
    rows = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"yes {i}"}]}
            for i in range(10)] * 4
    return eps.train(rows, model=conversing, batch=8, steps=40, lr=3e-3, save_every=40, device_mem="64MiB",
                     out=tmp_path_factory.mktemp("chat")).latest


def test_answers_are_the_commands_bit_for_bit(model):
    said = '\n'.join(MESSAGES[:2] + ['"""', MESSAGES[2], '"""', ""])
    told = subprocess.run([PROGRAMS / "eps", "chat", "--model", model, "--system", "be brief", "--temperature", "0", "--tokens",
                           "12", "--context", "128", "--device-mem", "64MiB"], input=said.encode(), capture_output=True,
                          check=True).stdout.decode()
    pieces = []
    with eps.Chat(model, system="be brief", **GREEDY) as chat:
        answers = [chat.say(message, on_text=pieces.append) for message in MESSAGES]
    assert told == "".join(a.text + ("" if a.text.endswith("\n") else "\n") for a in answers)
    assert "".join(pieces) == "".join(a.text for a in answers) != ""
    assert answers[0].n_reused == 0 < answers[1].n_reused < answers[1].n_prompt and answers[0].n_tokens <= 12
    assert answers[2].n_dropped > 0 and not answers[0].n_dropped  # 128 bytes are little


def test_a_stop_string_ends_an_answer(model):
    with eps.Chat(model, **GREEDY) as chat:
        whole = chat.say("3?").text
    with eps.Chat(model, stop=whole[2:4], **GREEDY) as chat:
        answer = chat.say("3?")
    assert answer.stopped and answer.text == whole[:whole.index(whole[2:4])]


def test_what_cannot_be_said_leaves_the_conversation_as_it_was(model):
    with eps.Chat(model, **GREEDY) as chat:
        expected = chat.say("3?")
    with eps.Chat(model, **GREEDY) as chat:
        with pytest.raises(eps.Error, match="the context has 128"):
            chat.say("x" * 200)
        with pytest.raises(eps.Error, match="not that"):
            chat.say("no")
        with pytest.raises(TypeError, match="message must be a str, not bytes"):
            chat.say(b"3?")
        assert chat.say("3?").text == expected.text
    with pytest.raises(eps.Error, match="the conversation is closed"):
        chat.say("3?")
    chat.close()


def test_a_conversation_is_cleared_and_given_another_system_message(model):
    def first(system):
        with eps.Chat(model, system=system, **GREEDY) as chat:
            return chat.say("3?")

    with eps.Chat(model, system="be brief", **GREEDY) as chat:
        chat.say("1?")
        chat.clear()
        for system in ("be brief", "S", None):
            chat.set_system(system)
            expected, got = first(system), chat.say("3?")
            assert (got.text, got.n_prompt) == (expected.text, expected.n_prompt)
            chat.clear()
        with pytest.raises(TypeError, match="message must be a str or None, not int"):
            chat.set_system(3)
    with pytest.raises(eps.Error, match="the conversation is closed"):
        chat.clear()


class Own(Exception):
    pass


def test_an_exception_in_on_text_ends_the_answer_and_the_conversation_goes_on(model):
    def fail(piece):
        raise Own

    with eps.Chat(model, **GREEDY) as chat:
        first = chat.say("3?").n_prompt
        with pytest.raises(Own):
            chat.say("3?", on_text=fail)
        assert chat.say("3?").n_prompt > first


def test_on_text_cannot_ask_the_conversation(conversing):
    def ask(piece):
        for call in (lambda: chat.say("4?"), chat.close):
            with pytest.raises(eps.Error, match="a callback cannot ask the conversation"):
                call()

    with eps.Chat(conversing, **GREEDY) as chat:
        assert chat.say("3?", on_text=ask).n_tokens > 0


def test_what_does_not_chat_is_said(conversing):
    Path("bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(conversing) / name, "bare")
    with pytest.raises(eps.Error, match="no chat template"):
        eps.Chat("bare", **GREEDY)
    with pytest.raises(eps.OptionError, match="context"):
        eps.Chat(conversing, context=4096)
    with pytest.raises(eps.OptionError, match="temperature"):
        eps.Chat(conversing, temperature=-1.0)
    with pytest.raises(TypeError, match="system must be a str, not int"):
        eps.Chat(conversing, system=3)
    assert not programs_in(Path.cwd())


def test_conversations_leave_nothing_behind(conversing):
    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(programs_in(Path.cwd()))

    def once():
        eps.Chat(conversing, **GREEDY).say("3?")  # nobody closes it

    once()
    before = count()
    for _ in range(3):
        once()
    assert count() == before


def test_a_forked_child_leaves_its_parents_conversation_alone(conversing):
    with eps.Chat(conversing, **GREEDY) as chat:
        chat.say("3?")
        child = os.fork()
        if child == 0:
            try:
                chat.say("3?")
            except eps.Error as error:
                chat.close()
                os._exit(0 if str(error) == "the conversation belongs to another process" else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert chat.say("3?").n_tokens > 0


SCRIPT = """
import eps, sys
with eps.Chat(sys.argv[1], temperature=0, context=128, device_mem="64MiB", repetition_penalty=1e9) as chat:
    try:
        chat.say("3?", on_text=lambda piece: print(piece, flush=True))
    except KeyboardInterrupt:
        print("interrupted", chat.say("3?").n_reused > 0, flush=True)
"""


def test_control_c_ends_the_answer(model):
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, model], stdout=subprocess.PIPE)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=300)[0].endswith(b"interrupted True\n") and child.returncode == 0
