"""The seams between winnow_trl and TRL: what `PODSTrainer` builds on, and what each release has of it.

A release is decided by its features and not by its version. One that lacks a seam is refused with the name of the
seam, before a model is loaded. What differs between the releases:

    1.12, 1.13     no `eos_token_ids`: a completion ends at the end token of the tokenizer alone
    1.14 to 1.16   every seam. 1.15.0 trains only if triton can be imported
    1.17 to 1.19   not tested. 1.18 moved AsyncGRPOTrainer, which `PODSTrainer` does not use, from
                   trl.experimental.async_grpo to trl.trainer.async_grpo_trainer
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from winnow.installed import Release

TRL = Release("trl", tested="1.16.0")
METHODS = {  # of GRPOTrainer, with the parameters by which they are called here
    "_generate": ("self", "prompts"),  # returns the completions' tokens and the mask of the policy's at places 1 and 2
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
}
ATTRIBUTES = (  # of an instance, set by a method of its class or of a base
    "accelerator", "multi_objective_aggregation", "num_generations", "processing_class", "reward_weights",
    "scale_rewards", "state", "_logs", "_metrics",
)  # fmt: skip
LOGS = ("prompt", "completion", "rewards", "advantages", "extra")  # of `_logs`
VLLM = "VLLMGeneration"  # in the module of GRPOTrainer: makes the vLLM of the same process, or a client
SEQUENCES = "max_num_seqs"  # its argument: the rows that vLLM samples at once


def check_class(trainer: type[Any]) -> None:
    """Raise ConfigError if TRL's GRPOTrainer lacks a seam: a method, its parameters, an attribute, or a log."""
    for name, parameters in METHODS.items():
        TRL.check_method(trainer, name, parameters)
    stored, named = set[str](), set[str]()
    for code in _code_of(trainer):
        stored |= {str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
        named |= {word for value in code.co_consts for word in (value if isinstance(value, tuple) else (value,))}
    for name in ATTRIBUTES:
        if name not in stored and not hasattr(trainer, name):
            raise TRL.unsuitable(f"no method of {trainer.__name__} sets the attribute {name!r}")
    for name in LOGS:
        if name not in named:
            raise TRL.unsuitable(f"{trainer.__name__} has no log of completions named {name!r}")


def check_logs(trainer: Any) -> None:
    """Raise ConfigError if the log of completions of a GRPOTrainer lacks a list."""
    for name in LOGS:
        if name not in trainer._logs:
            raise TRL.unsuitable(f"the log of completions of a GRPOTrainer has no {name!r}")


def end_tokens(trainer: Any) -> list[int]:
    """The tokens that end a completion: those of the model, or in TRL 1.13 and before that of the tokenizer."""
    if hasattr(trainer, "eos_token_ids"):
        return list(trainer.eos_token_ids)
    tokenizer = trainer.processing_class
    return [getattr(tokenizer, "tokenizer", tokenizer).eos_token_id]


@contextmanager
def room_in_vllm(trainer: type[Any], *, sampled: int, trained: int) -> Iterator[None]:
    """While a GRPOTrainer with vLLM is made, multiply the rows that vLLM samples at once by sampled / trained.

    TRL reserves them for `num_generations` rollouts of a prompt. More rollouts would be sampled in several waves.
    Raises ConfigError if TRL makes its vLLM in another way.
    """
    module = sys.modules[trainer.__module__]
    made: Callable[..., Any] | None = getattr(module, VLLM, None)
    if made is None:
        raise TRL.unsuitable(f"{trainer.__module__} has no {VLLM}, which makes the vLLM of a trainer")

    def with_room(**options: Any) -> Any:
        if SEQUENCES not in options:
            raise TRL.unsuitable(f"{VLLM} is called without {SEQUENCES}")
        return made(**{**options, SEQUENCES: -(-options[SEQUENCES] * sampled // trained)})

    setattr(module, VLLM, with_room)
    try:
        yield
    finally:
        setattr(module, VLLM, made)


def _code_of(trainer: type[Any]) -> Iterator[CodeType]:
    """The code of every method of a class and of its bases, with the functions inside."""
    found = [
        inspect.unwrap(value).__code__
        for owner in trainer.__mro__
        for value in vars(owner).values()
        if inspect.isfunction(value) and inspect.isfunction(inspect.unwrap(value))
    ]
    while found:
        code = found.pop()
        found += [value for value in code.co_consts if isinstance(value, CodeType)]
        yield code
