"""The scalar that is optimised: sum over trained tokens of weight * (importance * loss + sum(coefficient * term))."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from winnow.records import MicroBatch, PolicyOutput

Record = TypeVar("Record", MicroBatch, PolicyOutput)
Loss = Callable[[PolicyOutput, MicroBatch], tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True, slots=True)
class Term:
    """One summand beside the loss."""

    name: str
    coefficient: float
    function: Callable[[PolicyOutput, MicroBatch], Tensor]


@dataclass(frozen=True, slots=True)
class Value:
    """A micro-batch's share of the objective."""

    total: Tensor  # scalar; shares of one batch add up
    diagnostics: dict[str, Tensor]  # name -> [tokens trained]


@dataclass(frozen=True, slots=True)
class Objective:
    """What `policy.backward` gets: `objective(out, mb).total`."""

    loss: Loss
    terms: tuple[Term, ...] = ()

    def __call__(self, out: PolicyOutput, mb: MicroBatch) -> Value:
        out, mb = _trained_only(out, mb.mask), _trained_only(mb, mb.mask)
        loss, diagnostics = self.loss(out, mb)
        per_token = mb.importance * loss
        for term in self.terms:
            value = term.function(out, mb)
            per_token = per_token + term.coefficient * value
            diagnostics = {**diagnostics, term.name: value.detach()}
        return Value((mb.weights * per_token).sum(), diagnostics)


def _trained_only(record: Record, mask: Tensor) -> Record:
    """Every [T] field restricted to trained tokens, so that a masked NaN reaches neither loss nor gradient."""
    if bool(mask.all()):
        return record
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name != "rows"}
    return dataclasses.replace(record, **{name: value[mask] for name, value in fields.items() if value is not None})
