"""An engine whose disk is full: what cannot be saved is said, and the last step waits for room.

On a file system of its own, where user name spaces allow that."""

import subprocess
import sys
from pathlib import Path

import eps
import pytest

MOUNT = "mount -t tmpfs -o size=32m none disk"
SCRIPT = """
import eps, numpy, os, signal, sys
from pathlib import Path

notes, filling = [], Path("disk/filling")

def fill():
    try:
        with open(filling, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass

def note(sentence):
    notes.append(sentence)
    if sentence.startswith("no room on disk for step-2"):
        if sys.argv[1] == "mends":
            filling.unlink()
        else:
            os.kill(os.getpid(), signal.SIGINT)
            signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)  # and again, as it is kept until the engine waits

signal.signal(signal.SIGALRM, signal.default_int_handler)
engine = eps.Engine("begun/latest", batch=4, seq=32, out="disk/run", device_mem="64MiB", on_note=note)
rows = numpy.ones((4, 32), int)
engine.step(rows)
fill()
try:
    engine.save()
except eps.Error as error:
    print("save:", error)
engine.step(rows)
try:
    engine.close()
    print("closed")
except (eps.Error, KeyboardInterrupt) as error:
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("close:", repr(error))
print(sum("no room on disk" in sentence for sentence in notes), Path("disk/run/step-2").exists())
left = [entry for entry in os.listdir(os.environ["TMPDIR"]) if entry.startswith("eps-engine-")]
print("left", left)
"""


def mounts():
    return subprocess.run(["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /tmp"], capture_output=True, check=False).returncode == 0


def run(how, folder):
    eps.train("text.txt", model="byte-small", steps=1, batch=4, seq=32, out="begun", device_mem="64MiB")
    Path("disk").mkdir()
    Path("script.py").write_text(SCRIPT)
    done = subprocess.run(["unshare", "-rm", "sh", "-c", f"{MOUNT} && TMPDIR=. exec {sys.executable} script.py {how}"],
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not mounts(), reason="no file system can be mounted in a user name space")
@pytest.mark.parametrize("how, closes", [("mends", "closed"), ("interrupts", "close: KeyboardInterrupt()")])
def test_close_waits_for_room_and_ends_by_a_second_control_c(how, closes, folder):
    said = run(how, folder)
    assert "No space left on device" in said[0] and said[0].startswith("save: ")
    assert said[1:] == [closes, f"1 {how == 'mends'}", "left []"]
