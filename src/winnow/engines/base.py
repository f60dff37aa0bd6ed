"""What an engine is: prompts and counts in, groups of rollouts out.

A member of the family "engine" is a function `(context, *, options) -> Engine`. Its registration may declare, each
of which is optional:

    requires    the package that must be installed
    fits        config -> None; raises ConfigError for a configuration that the engine cannot serve
    job         demand -> what the device plan says of it, such as "hf samples on cpu with a copy of the weights"
    memory      demand -> its MemoryParts
    may_change  names of its options that a resumed run may change, as they change no rollout

`demand` is a `winnow.memory.demand.Demand`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from winnow.errors import ConfigError
from winnow.records import Group, Prompt, Rollout, Sampling
from winnow.seeds import SeedName

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OnRollout = Callable[[Prompt, Rollout], None]
METHODS, ATTRIBUTES = ("generate", "load", "close"), ("version", "logprob_tolerance")  # of every engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What the run offers an engine; each takes what it needs."""

    model: PreTrainedModel  # the policy's own module (maybe a peft model); `scripted` never looks at it
    tokenizer: PreTrainedTokenizerBase
    stop_tokens: tuple[int, ...]  # every end-of-sequence id
    max_rollouts_at_once: int
    cache_bytes: int | None = None  # what the memory plan leaves for keys and values; None: there is no plan
    sharded: bool = False  # `model` is whole only until the engine is made: one that samples on it needs a copy of it
    context_tokens: int | None = None  # the most a prompt and its rollout may have together; None: what the model can
    exact_evaluation: bool = True  # the memory plan has room to evaluate on weights in the policy's own precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far an engine's log-probs may be from the policy's own, of the same tokens under the same weights.

    Both numbers are of |gap|, in nats. Neither depends on how many tokens are compared, unlike the largest gap, which
    grows with them. Infinity: it samples something else on purpose.
    """

    mean: float
    tail: float  # of the 99.9th percentile


class Engine(Protocol):
    """Samples rollouts, and takes new weights between steps. A run calls `close` once, at its end.

    `generate` returns one group per prompt, in prompt order, with `counts[i]` rollouts in index order, each stamped
    with `version`; a count of 0 gives a group without rollouts. `on_rollout` is called with every rollout once, as soon
    as it is finished and before `generate` returns, from one thread at a time, maybe not the caller's; what it raises,
    `generate` raises. A rollout ends with a stop token, or with the token by which its
    text first holds a stop string; the text is cut right after that. Its finish is "stop" iff its last token is a stop
    token or its text ends in a stop string; a stop string that is a special token is a stop token. Its log-probs are
    those of the distribution sampled from; greedy ones (temperature 0) are reported at temperature 1.

    Random numbers follow (seed, prompt id, index), so a prompt's rollouts do not depend on its neighbours. In float32 a
    token may differ between batch limits only where its uniform lies within 1e-5 of a step of the cumulative
    distribution. In 16 bits what is sampled side by side moves those steps, by as much as `logprob_tolerance` allows.

    An engine whose weights are a copy in fewer bits than the policy's may also have `evaluating`; see below.

    Raises EngineError when the request makes no sense, or when `load` gets weights it cannot use, and ConfigError for
    a stop string that could never be found.

    It may have `memory_mib`, a mapping of what it holds outside the trainer's process, by state and name, as
    `winnow.memory.usage.by_state` makes it; each step logs it under memory/engine/....
    """

    logprob_tolerance: Tolerance  # what is to be expected of it where all is well
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
        """Take the policy's weights (by parameter name); `version` must grow."""

    def close(self) -> None:
        """End processes and release what garbage collection would not. Idempotent; nothing is sampled afterwards."""


def evaluating(engine: Engine) -> AbstractContextManager[int | None]:
    """A context in which an evaluation samples. It gives the bits of a trained weight that it samples with; None for an
    engine whose weights are always in the policy's own precision.

    An engine that samples on a rounded copy follows a small update late: such a weight moves only after half a unit in
    its last place. It may have a method `evaluating` that returns such a context, in which it samples on weights in the
    precision that the policy is trained in where `EngineContext.exact_evaluation` allows it.
    """
    own: Callable[[], AbstractContextManager[int | None]] | None = getattr(engine, "evaluating", None)
    return contextlib.nullcontext() if own is None else own()


def make_engine(function: Callable[[EngineContext], Engine], context: EngineContext, *, name: str) -> Engine:
    """The engine that a registered function or a user's own makes; `name` is how the configuration calls it.

    Raises ConfigError where what it returns lacks something that an engine has, and closes it where it can.
    """
    engine = function(context)
    lacking = [f"{method}()" for method in METHODS if not callable(getattr(engine, method, None))]
    lacking += [attribute for attribute in ATTRIBUTES if not hasattr(engine, attribute)]
    if lacking:
        if "close()" not in lacking:
            engine.close()
        raise ConfigError(
            f"rollout.engine = {name!r} returned a {type(engine).__name__} without {', '.join(lacking)}",
            remedy=f"return an engine with {', '.join(f'{method}()' for method in METHODS)}, {' and '.join(ATTRIBUTES)}"
            f" (winnow.engines.base.Engine); a close() may do nothing",
            key="rollout.engine",
            code="config.member_result",
        )
    return engine
