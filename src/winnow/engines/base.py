"""The interface of engines, which turn prompts and counts into groups of rollouts.

A member of the family "engine" is a function `(context, *, options) -> Engine`. Its registration may declare:

    requires    the package that must be installed
    fits        config -> None; raises ConfigError for a configuration that the engine cannot serve
    job         demand -> its line of the device plan, such as "hf samples on cpu with a copy of the weights"
    memory      demand -> its MemoryParts
    may_change  names of the options that a resumed run may change, because they change no rollout
    ahead       config -> None; raises ConfigError if it cannot sample while the policy is trained. Without it, the
                engine is refused under rollout.ahead = 1. With it, `generate` is called in another thread

`demand` is a `winnow.memory.demand.Demand`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from winnow.errors import wrong_result
from winnow.records import Group, IntArray, Prompt, Rollout, Sampling
from winnow.seeds import SeedName

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OnRollout = Callable[[Prompt, Rollout], None]
METHODS, ATTRIBUTES = ("generate", "load", "close"), ("version", "logprob_tolerance")  # of every engine


@dataclass(frozen=True, slots=True)
class PendingRollout:
    """A rollout to sample: `PendingRollout(prompt_index=0, prompt=prompt, index=3)`."""

    prompt_index: int  # of its prompt in the request
    prompt: Prompt
    index: int  # among its prompt's rollouts


class WeightsInFiles(Protocol):
    """The weights of a policy that is not loaded: `winnow.models.saved_weights.SavedWeights`."""

    @property
    def device(self) -> torch.device:
        """The device of the tensors that are made of them."""

    def read_like(self, name: str, like: Tensor) -> Tensor:
        """A weight by name, in the precision of `like`."""

    def copy_of(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        """A copy of a module on the meta device, with these weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """The inputs from which a run makes its engine."""

    model: PreTrainedModel  # the policy's module, possibly a peft model; `scripted` does not use it
    tokenizer: PreTrainedTokenizerBase
    stop_tokens: tuple[int, ...]  # every end-of-sequence id
    max_rollouts_at_once: int
    cache_bytes: int | None = None  # memory that the plan leaves for keys and values; None: there is no plan
    sharded: bool = False  # the policy gets divided among ranks, so the engine needs a copy of it
    saved: WeightsInFiles | None = None  # where `model` is on the meta device: its weights
    context_tokens: int | None = None  # limit of a prompt and its rollout together; None: the model's limit
    exact_evaluation: bool = True  # the memory plan has room for evaluations in the policy's precision

    @property
    def device(self) -> torch.device:
        """The policy's device."""
        return self.model.device if self.saved is None else self.saved.device

    def copy_model(self, dtype: torch.dtype | None = None) -> PreTrainedModel:
        """A copy of the policy's module on its device, with all weights.

        If it is read from `saved`, the weights are rounded to `dtype` one by one. A copy of a module is not rounded.
        """
        return copy.deepcopy(self.model) if self.saved is None else self.saved.copy_of(self.model, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Limits of the gap between an engine's log-probs and the policy's, for the same tokens and weights.

    Both limits apply to |gap| in nats. Neither depends on the number of tokens, whereas the largest gap grows with it.
    Infinity means that the engine deliberately samples from another distribution.
    """

    mean: float
    tail: float  # limit of the 99.9th percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How an engine with `keeps_turns` goes on with rollouts of several turns, whose keys and values it keeps.

    `Sampling.max_new_tokens` is then the limit of a turn of the policy. At the end of a turn `on_rollout` is called
    with that turn as a rollout. `steps` tokens of the other rollouts later, `answers` is called with the rollouts whose
    turns ended together. It waits for the environment's turns, and returns the tokens of each; None if the rollout
    has ended.
    """

    max_tokens: int  # of all turns of a rollout together
    steps: int
    opening: Callable[[int], IntArray]  # from the last token of a turn to those with which every answer starts
    answers: Callable[[Sequence[PendingRollout]], Sequence[IntArray | None]]


class Engine(Protocol):
    """Samples rollouts, and loads new weights between steps. A run calls `close` once, at its end.

    `generate` returns one group per prompt, in prompt order, with `counts[i]` rollouts in index order. Each rollout has
    the `version` of the weights; a count of 0 gives a group without rollouts. `on_rollout` is called once with every
    rollout, as soon as it is finished and before `generate` returns. The calls come from one thread at a time, which
    may not be the caller's, and `generate` raises what they raise.

    A rollout ends with a stop token, or with the token that completes a stop string in its text; the text is cut right
    after that string. Its finish is "stop" iff its last token is a stop token or its text ends in a stop string. A stop
    string that is a special token is a stop token. The log-probs are of the distribution sampled from; those of
    greedy rollouts (temperature 0) are at temperature 1.

    Random numbers depend on (seed, prompt id, index), so a prompt's rollouts do not depend on its neighbours. In
    float32 a token may differ between batch limits only if its uniform is within 1e-5 of a step of the cumulative
    distribution. In 16 bits those steps also depend on the rollouts that are sampled together, within
    `logprob_tolerance`.

    An engine whose weights are a copy in fewer bits than the policy's may also have `evaluating`; see below. One that
    can go on with unfinished rollouts has `keeps_turns = True`, and its `generate` also accepts `turns: Turns`.

    Raises EngineError for an inconsistent request and for weights that `load` cannot use, and ConfigError for a stop
    string that could never be found.

    It may have `memory_mib`, a mapping of its memory outside the trainer's process, by state and name, as
    `winnow.memory.usage.memory_by_state` makes it; each step logs it under memory/engine/....
    """

    logprob_tolerance: Tolerance  # of a correct engine
    version: int  # of the weights; 0 until the first load

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """Sample `counts[i]` rollouts of `prompts[i]`."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Update the engine to the policy's weights, by parameter name; `version` must increase."""

    def close(self) -> None:
        """End processes, and release resources that garbage collection does not. Idempotent; nothing is sampled or
        loaded afterwards.
        """


def evaluating(engine: Engine) -> AbstractContextManager[int | None]:
    """A context in which an evaluation samples. Its value is the number of bits of a trained weight with which the
    engine samples there; None for an engine whose weights always have the policy's precision.

    A rounded copy follows small updates late: a weight changes only after half a unit in its last place. An engine on
    such a copy may have a method `evaluating` that returns this context. Inside it, the engine samples with weights in
    the policy's trained precision, if `EngineContext.exact_evaluation` allows it.
    """
    own: Callable[[], AbstractContextManager[int | None]] | None = getattr(engine, "evaluating", None)
    return contextlib.nullcontext() if own is None else own()


def make_engine(function: Callable[[EngineContext], Engine], context: EngineContext, *, name: str) -> Engine:
    """Make an engine with a registered or a user's function; `name` is its name in the configuration.

    Raises ConfigError if the result lacks a method or an attribute of an engine, after closing it if possible.
    """
    engine = function(context)
    lacking = [f"{method}()" for method in METHODS if not callable(getattr(engine, method, None))]
    lacking += [attribute for attribute in ATTRIBUTES if not hasattr(engine, attribute)]
    if lacking:
        if "close()" not in lacking:
            engine.close()
        raise wrong_result(
            f"rollout.engine = {name!r} returned a {type(engine).__name__} without {', '.join(lacking)}",
            remedy=f"return an engine with {', '.join(f'{method}()' for method in METHODS)}, {' and '.join(ATTRIBUTES)}"
            f" (winnow.engines.base.Engine); close() may do nothing",
            key="rollout.engine",
        )
    return engine
