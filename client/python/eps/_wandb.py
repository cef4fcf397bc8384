"""A run's figures for Weights & Biases, by its own package, which may keep them offline."""

from __future__ import annotations

from typing import Any, Mapping, Union


def _figures(step: Any) -> dict[str, Any]:
    """A Step's, by the names that --tensorboard has, and its tokens; what is unknown is left out."""
    figures = {"train/loss": step.loss, "train/lr": step.lr, "train/tokens": step.tokens,
               "train/grad_norm": step.grad_norm, "speed/tokens_per_s": step.tokens_per_s,
               "speed/step_ms": step.step_ms, "memory/device_peak_bytes": step.device_peak_bytes or None,
               "memory/host_bytes": step.host_bytes or None, "eval/loss_before": step.eval_before,
               "eval/loss": step.eval_loss}
    figures.update((f"eval/{name}", value) for name, value in step.scores.items())
    figures.update(step.rewards)
    return {name: value for name, value in figures.items() if value is not None}


class Tracker:
    """wanted: a project's name, or keywords of wandb.init; None: nothing is tracked.

    The run at W&B begins with this object, before the training, as its service may take longer to start than a daemon waits
    for an answer. It must be ended."""

    def __init__(self, wanted: Union[None, str, Mapping[str, Any]]) -> None:
        self._run: Any = None
        if wanted is None:
            return
        if not isinstance(wanted, (str, Mapping)):
            raise TypeError(f"wandb must be a project's name, or a dict of wandb.init's keywords, not {type(wanted).__name__}")
        try:
            import wandb
        except ImportError as error:
            raise ImportError("`wandb` needs the package wandb: pip install wandb") from error
        self._run = wandb.init(**({"project": wanted} if isinstance(wanted, str) else wanted))

    def begin(self, options: Mapping[str, Any]) -> None:
        if self._run:
            self._run.config.update(options, allow_val_change=True)

    def step(self, step: Any) -> None:
        if self._run:
            self._run.log(_figures(step), step=step.step)

    def end(self, failed: bool) -> None:
        if self._run:
            self._run.finish(exit_code=int(failed))
