"""Seconds of a run's steps, computed from two cost curves and the work of each step: `winnow compare --costs`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from winnow.algos.costs import StepCosts, StepWork
from winnow.errors import DataError
from winnow.run_view.configuration import at

Row = Mapping[str, float]

WORK = ("group/count", "budget/rollouts", "budget/tokens_generated", "select/trained", "budget/tokens_trained")
PROBE = ("budget/probe_rollouts", "budget/probe_tokens")


def seconds_of(row: Row, costs: StepCosts, config: Mapping[str, Any], source: str) -> float:
    """Seconds of one step, including the probe before it. Raises DataError for a row that lacks the step's work.

    A probe is one further call that samples all prompts of its window. If the curves are per prompt, the window's
    prompts are spread over as many machines as the step has prompts.
    """
    lacking = [name for name in WORK if math.isnan(row.get(name, math.nan))]
    if lacking:
        raise DataError(
            f"{source}: its metrics of step {row['step']:g} lack {', '.join(lacking)}, from which its seconds are "
            f"computed",
            remedy="compare measured seconds (no costs), or omit the run",
            code="data.incomplete",
        )
    prompts, rollouts, generated, trained, tokens_trained = (row[name] for name in WORK)
    epochs = _epochs(config, source)
    work = StepWork(int(prompts), rollouts, generated, epochs * trained, epochs * tokens_trained)
    probed, probe_tokens = (row.get(name, 0.0) for name in PROBE)
    probe = StepWork(int(prompts), probed, probe_tokens, trained=0, tokens_trained=0)
    # A probe belongs to its step, so the fixed cost per step is counted once
    return costs.seconds(work) + (costs.seconds(probe) - costs.seconds_per_step if probed else 0.0)


def costs_notes(costs: StepCosts, runs: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """A note on the source of computed seconds, and notes on work of the runs (group, configuration) that these costs
    omit.
    """
    yield (
        f"seconds are computed, not measured: from the rollouts that every step sampled and trained on, and the costs "
        f"of {costs.source}"
    )
    for what, does in (("a value model", _has_value_model), ("a probe's gradient norms", _measures_norms)):
        groups = dict.fromkeys(label for label, config in runs if does(config))
        if groups:
            yield f"{', '.join(groups)}: these costs omit the seconds of {what}"


def _has_value_model(config: Mapping[str, Any]) -> bool:
    return at(config, "critic") is not None


def _measures_norms(config: Mapping[str, Any]) -> bool:
    allocate = at(config, "allocate")
    name = at(allocate, "use") if isinstance(allocate, Mapping) else allocate
    return bool(name == "gvm" and at(config, "probe", "gradient_norm") != "none")


def _epochs(config: Mapping[str, Any], source: str) -> int:
    epochs = at(config, "update", "epochs")
    if epochs is None:
        return 1
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise DataError(
            f"{source}: update.epochs in its manifest is {epochs!r}, and seconds need a number of epochs",
            remedy="put the manifest back as it was, or compare measured seconds (no costs)",
            key="update.epochs",
            code="data.malformed",
        )
    return epochs
