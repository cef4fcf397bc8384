"""eps trains neural networks that are larger than the memory of the device that computes them.

    import eps
    run = eps.train("book.txt", device_mem="128MiB", steps=750, out="runs/book")
    print(run.steps[-1].loss, eps.generate(run.path, "You may", temperature=0.8)[0].text)

A program with a loop of its own gives minibatches to eps.Engine. Each function does what the command of its name does, by
libeps: eps.train, eps.plan, eps.evaluate (eps eval), eps.generate, eps.export, eps.reshape; eps.Chat is eps chat. A call
that fails raises eps.Error with one sentence."""

from eps._ask import Evaluation, Prediction, Text, evaluate, export, generate, reshape
from eps._chat import Answer, Chat
from eps._engine import Engine
from eps._library import Error, OptionError
from eps._plan import Path, Plan, Side, Timeline, plan, plan_batch, plan_depth, plan_minimum, plan_timeline
from eps._train import Blocks, Memory, Run, Sample, Step, metrics, train

__all__ = ["Answer", "Blocks", "Chat", "Engine", "Error", "Evaluation", "Memory", "OptionError", "Path", "Plan", "Prediction",
           "Run", "Sample", "Side", "Step", "Text", "Timeline", "evaluate", "export", "generate", "metrics", "plan", "plan_batch",
           "plan_depth", "plan_minimum", "plan_timeline", "reshape", "train"]
