"""The scalar that is optimised: sum over trained tokens of weight * (importance * loss + sum(coefficient * term)).

The value loss of a value head on the policy's backbone is another such term. A separate value model has the value loss
alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import Tensor

from winnow.algos.loss import value_loss
from winnow.errors import wrong_result
from winnow.metrics import VALUE_LOSS, VALUE_LOSSES, distinct
from winnow.records import MicroBatch, PolicyOutput

Record = TypeVar("Record", PolicyOutput, MicroBatch)
Loss = Callable[[PolicyOutput, MicroBatch], tuple[Tensor, dict[str, Tensor]]]
Correction = Callable[[PolicyOutput, MicroBatch], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Term:
    """A summand beside the loss."""

    name: str
    coefficient: float
    function: Callable[[PolicyOutput, MicroBatch], Tensor]


@dataclass(frozen=True, slots=True)
class Value:
    """A micro-batch's share of the objective."""

    total: Tensor  # scalar; shares of one batch add up
    diagnostics: dict[str, Tensor]  # name -> [tokens trained]
    importance: Tensor | None = None  # [tokens trained] factor of the loss; None without a correction
    acted: Tensor | None = None  # [tokens trained] bool, where the correction truncated or masked it


@dataclass(frozen=True, slots=True)
class Objective:
    """The function whose result is differentiated: `objective(out, mb).total`.

    With `old = "engine"`, the old log-probs are those that the engine sampled with. Raises ConfigError if the loss,
    the correction or a term does not return one number per trained token.
    """

    loss: Loss
    terms: tuple[Term, ...] = ()
    value_loss: ValueLoss | None = None  # of a value head on the policy's backbone
    correction: Correction | None = None  # None: every importance is 1
    old: Literal["policy", "engine"] = "policy"

    def __call__(self, out: PolicyOutput, mb: MicroBatch) -> Value:
        out, mb = _of_trained(out, mb), _of_trained(mb, mb)
        if self.old == "engine":
            mb = dataclasses.replace(mb, old_logprobs=mb.behaviour_logprobs)
        loss, seen = _checked_loss(self.loss(out, mb), out.logprobs)
        names = distinct(seen, taken=[*(term.name for term in self.terms), *VALUE_LOSSES])
        diagnostics = dict(zip(names, seen.values(), strict=True))
        importance, acted = (
            (None, None) if self.correction is None else _checked_correction(self.correction(out, mb), loss)
        )
        per_token = loss if importance is None else importance * loss
        for term in self.terms:
            value = _per_token(term.function(out, mb), out.logprobs, f"term {term.name!r}", "terms")
            per_token = per_token + term.coefficient * value
            diagnostics = {**diagnostics, term.name: value.detach()}
        if self.value_loss is not None:
            assert out.values is not None, "forward computes them, because the value loss declares the need"
            value, seen = self.value_loss(out.values, mb)
            per_token = per_token + self.value_loss.coefficient * value
            diagnostics = {**diagnostics, **seen}
        return Value((mb.weights * per_token).sum(), diagnostics, importance, acted)

    @property
    def trains_all(self) -> bool:
        """Whether rollouts without an advantage are trained on: terms and the value loss read every kept rollout."""
        return bool(self.terms) or self.value_loss is not None


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """`value_loss` with its settings, and its diagnostics by their metrics."""

    clip_range: float
    coefficient: float = 1.0

    def __call__(self, values: Tensor, mb: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, seen = value_loss(values, mb, clip_range=self.clip_range)
        return loss, {VALUE_LOSS: loss.detach(), **seen}

    def separate_objective(self, values: Tensor, mb: MicroBatch) -> Value:
        """Objective of a separate value model: sum over trained tokens of weight * loss. `values` are [T]."""
        trained = _of_trained(mb, mb)
        loss, seen = self(mb.of_trained(values), trained)
        return Value((trained.weights * loss).sum(), seen)


def _checked_loss(answer: Any, logprobs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise wrong_result(
            f"the loss returned {_described(answer)}",
            remedy="return two things: a tensor [T] and a dict of diagnostics, {} where there are none",
            key="loss",
        )
    loss, diagnostics = answer
    seen = {name: _per_token(value, logprobs, f"loss's diagnostic {name!r}") for name, value in diagnostics.items()}
    return _per_token(loss, logprobs, "loss"), seen


def _checked_correction(answer: Any, loss: Tensor) -> tuple[Tensor, Tensor]:
    """Importance in the loss's precision, and where the correction acted; neither passes a gradient on."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise wrong_result(
            f"the correction returned {_described(answer)}",
            remedy="return two tensors [T]: the importance, and where it was truncated or masked",
            key="correction",
        )
    importance, acted = (_per_token(value, loss, "correction", "correction").detach() for value in answer)
    return importance.to(loss.dtype), acted


def _per_token(value: Any, logprobs: Tensor, whose: str, key: str = "loss") -> Tensor:
    if isinstance(value, Tensor) and value.shape == logprobs.shape:
        return value
    raise wrong_result(
        f"the {whose} returned {_described(value)} for {len(logprobs)} tokens",
        remedy="return a tensor with one number per token",
        key=key,
    )


def _described(answer: Any) -> str:
    return f"a tensor of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"


def _of_trained(record: Record, mb: MicroBatch) -> Record:
    """The record with its [T] fields restricted to the trained tokens, so that a masked NaN reaches neither loss nor
    gradient.
    """
    if mb.trained is None:
        return record
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name != "trained"}
    changed: dict[str, Any] = {name: mb.of_trained(of) for name, of in fields.items() if isinstance(of, Tensor)}
    if record is mb:
        changed["trained"] = None
    return dataclasses.replace(record, **changed)
