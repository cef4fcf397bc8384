"""README.md's programs in Python run as they are pasted, beside the run that it makes before."""

import re
import subprocess
import sys
from pathlib import Path

import eps

README = Path(__file__).parents[3] / "README.md"


def test_the_readmes_programs_run_as_they_are():
    programs = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    eps.train("text.txt", model="byte-small", batch=16, seq=64, steps=30, device_mem="128MiB", out="runs/first")
    said = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
            for program in programs]
    assert len(said) == 2
    least, *steps, answer = said[0].splitlines()
    assert int(least) == eps.plan_minimum(model="runs/first/latest", batch=10, seq=48)
    assert [step.split()[0] for step in steps] == ["20", "40", "60", "80"] and answer.startswith(" Ita")
    assert said[1].split()[-1] == "runs/own/step-50" and Path("runs/own/step-50/model.safetensors").exists()
