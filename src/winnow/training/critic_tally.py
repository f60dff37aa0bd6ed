"""The measurements of the updates of a separate value model in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from winnow import ranks
from winnow.algos.objective import Value
from winnow.learner.optimizer import UpdateResult
from winnow.metrics import VALUE_CLIP, VALUE_LOSS
from winnow.training.running_mean import Mean, merged

Metrics = dict[str, float]


@dataclass
class CriticTally:
    """The measurements of this rank's share. `metrics` combines all ranks, and is empty where there was no update."""

    seen: dict[str, Mean] = field(default_factory=dict)
    results: list[UpdateResult] = field(default_factory=list)

    def add(self, value: Value) -> None:
        """Add one micro-batch of the current update."""
        for name, numbers in value.diagnostics.items():
            self.seen.setdefault(name, Mean()).add(numbers)

    def close(self, result: UpdateResult) -> None:
        """Add the result of the update that the added micro-batches belong to."""
        self.results.append(result)

    def metrics(self) -> Metrics:
        if not self.results:
            return {}
        taken = [r for r in self.results if not r.skipped]
        metrics = {
            "critic/updates": float(len(taken)),
            "critic/skipped_updates": float(len(self.results) - len(taken)),
            "critic/learning_rate": self.results[-1].learning_rate,
            **of_value_loss(merged(ranks.gather_from_all(self.seen, what="metrics"))),
        }
        return metrics | ({"critic/grad_norm": float(np.mean([r.grad_norm for r in taken]))} if taken else {})


def of_value_loss(seen: Mapping[str, Mean]) -> Metrics:
    """Means of the value loss's diagnostics, by metric name; empty without a value loss."""
    names = {VALUE_LOSS: "critic/loss", VALUE_CLIP: "critic/clip_fraction"}
    return {metric: seen[name].value for name, metric in names.items() if name in seen}
