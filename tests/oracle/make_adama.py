"""Writes tests/fixtures/vectors/adama.txt from the optimizer's specification in float64.

    python3 tests/oracle/make_adama.py PATH/adama.py > tests/fixtures/vectors/adama.txt

The specification's vectors() gives the cases. A file line is a word and its numbers, hexadecimal where they have fractions:
    case NAME PARTS N STEPS LR BETA1 BETA2 EPSILON DECAY
    weights  (N)
then for each step PARTS lines `part` and one each of `w`, `m`, `v` (N).
"""
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("adama", sys.argv[1])
adama = importlib.util.module_from_spec(spec)
spec.loader.exec_module(adama)

for case in adama.vectors():
    hp = case["hyperparameters"]
    numbers = [float(hp[k]).hex() for k in ("lr", "b1", "b2", "epsilon", "decay")]
    print("case", case["optimizer"], case["parts"], len(case["weights"]), len(case["steps"]), *numbers)
    print("weights", *case["weights"])
    for step in case["steps"]:
        for part in step["parts"]:
            print("part", *part)
        for name in ("w", "m", "v"):
            print(name, *step[name])
