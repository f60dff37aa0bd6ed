"""What the ranks of a sharded run read of a policy's files, and the model folder that they write of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from winnow import ranks
from winnow.config_file import validate
from winnow.engines.base import EngineContext
from winnow.errors import ConfigError, DataError, WinnowError
from winnow.learner.learner import Learner, make_learner, shard_learner
from winnow.learner.policy import FrozenCopy, Reference
from winnow.learner.sharding import gather_whole, local_share
from winnow.models.load import Loaded, load_tokenizer
from winnow.models.saved_weights import SavedWeights
from winnow.training.load import engine_context, load_model
from winnow.training.resolve import resolve_members


@dataclasses.dataclass(frozen=True)
class Read:
    """What one rank has after loading."""

    whole: dict[str, tuple[str, np.ndarray]]  # of every parameter, gathered: its precision, and its bits as float64
    reference: dict[str, np.ndarray]  # the same of the reference's parameters
    rows: dict[str, int]  # of this rank's share
    engine: dict[str, np.ndarray]  # the copy that an engine would decode on


def loaded(config: Mapping[str, Any], folder: Path) -> Read:
    """The learner of a run before its first update. The writer writes `folder`."""
    copies = list[Any]()
    learner, found = _learner(config, lambda context: copies.append(context.copy_model()))
    shares = learner.shares()
    shares.written(lambda: learner.write_model(folder, found.files, shares.read))
    parameters = dict(learner.model.model.named_parameters())
    return Read(
        whole={name: (str(p.dtype), _array(gather_whole(p))) for name, p in parameters.items()},
        reference=_parameters_of(learner.reference),
        rows={name: len(local_share(p)) for name, p in parameters.items()},
        engine={name: _array(p) for name, p in copies[0].named_parameters()},
    )


def masters(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The optimizer's state before the first update, whole: masters, and the samples of their start."""
    learner, _ = _learner(config)
    return {name: _array(gather_whole(tensor)) for name, tensor in learner.state().items()}


def _learner(
    config: Mapping[str, Any], before: Callable[[EngineContext], None] | None = None
) -> tuple[Learner, Loaded]:
    """A learner with its share, and the loaded policy. `before` gets an engine's context before the division."""
    members = resolve_members(validate(config), Path.cwd())
    settings, device = members.config, torch.device("cpu")
    found = load_model(settings, device, None, load_tokenizer(settings.model.path), later=True)
    learner = make_learner(settings, found, needs=members.needs, resumed=False)
    if before is not None:
        before(engine_context(settings, found))
    shard_learner(learner, settings, found)
    return learner, found


def _parameters_of(reference: Reference | None) -> dict[str, np.ndarray]:
    """Of a second model; an adapter's reference is the policy's base."""
    if not isinstance(reference, FrozenCopy):
        return {}
    with reference.active() as module:
        return {name: _array(gather_whole(p)) for name, p in module.model.named_parameters()}


def refused(config: Mapping[str, Any]) -> str:
    """The key of the error about a policy whose logits are not its head applied to its last hidden state."""
    try:
        _learner(config)
    except ConfigError as error:
        return f"{ranks.rank()}: {error.key}"
    return "loaded"


def cut_off(config: Mapping[str, Any]) -> str:
    """The kind of the error where the second rank cannot read the files."""
    broken = mock.patch.object(SavedWeights, "read", side_effect=DataError("gone", code="data.unreadable"))
    try:
        with ranks.together("loading"), broken if ranks.rank() == 1 else contextlib.nullcontext():
            _learner(config)
    except WinnowError as error:
        return type(error).__name__
    return "loaded"


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float64).numpy().copy()
