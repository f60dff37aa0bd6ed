"""The scalar that is optimised: sum over trained tokens of weight * (importance * loss + sum(coefficient * term))."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from winnow.errors import ConfigError
from winnow.metrics import distinct
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
    """What `policy.backward` gets: `objective(out, mb).total`.

    Raises ConfigError when the loss or a term does not answer one number per trained token.
    """

    loss: Loss
    terms: tuple[Term, ...] = ()

    def __call__(self, out: PolicyOutput, mb: MicroBatch) -> Value:
        out, mb = _trained_only(out, mb.mask), _trained_only(mb, mb.mask)
        loss, seen = _checked_loss(self.loss(out, mb), out.logprobs)
        names = distinct(seen, taken=[term.name for term in self.terms])
        diagnostics = dict(zip(names, seen.values(), strict=True))
        per_token = mb.importance * loss
        for term in self.terms:
            value = _per_token(term.function(out, mb), out.logprobs, f"term {term.name!r}")
            per_token = per_token + term.coefficient * value
            diagnostics = {**diagnostics, term.name: value.detach()}
        return Value((mb.weights * per_token).sum(), diagnostics)


def _checked_loss(answer: Any, logprobs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise ConfigError(
            f"the loss gave {_said(answer)}; it must return two things: a tensor [T] and a dict of diagnostics, "
            f"{{}} where there are none"
        )
    loss, diagnostics = answer
    seen = {name: _per_token(value, logprobs, f"loss's diagnostic {name!r}") for name, value in diagnostics.items()}
    return _per_token(loss, logprobs, "loss"), seen


def _per_token(value: Any, logprobs: Tensor, whose: str) -> Tensor:
    if isinstance(value, Tensor) and value.shape == logprobs.shape:
        return value
    raise ConfigError(
        f"the {whose} gave {_said(value)} for {len(logprobs)} tokens; it must return a tensor with one number per token"
    )


def _said(answer: Any) -> str:
    return f"a tensor of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"


def _trained_only(record: Record, mask: Tensor) -> Record:
    """Every [T] field restricted to trained tokens, so that a masked NaN reaches neither loss nor gradient."""
    if bool(mask.all()):
        return record
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    trained: dict[str, Any] = {name: value[mask] for name, value in fields.items() if isinstance(value, Tensor)}
    return dataclasses.replace(record, **trained)
