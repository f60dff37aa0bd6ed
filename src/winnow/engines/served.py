"""The policy as a plain model for an engine with weights of its own: a description with the weights by name, or an
adapter beside base weights.

The policy may have an adapter, or be trained in part. The engine serves a plain model with the names of a checkpoint.
It receives only `Served` and a mapping of weights, so it may run in another process.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from winnow.engines.base import Engine, EngineContext, WeightsInFiles
from winnow.engines.freshness import check_names
from winnow.models.adapter import (
    adapter_config,
    adapter_names,
    adapter_weights,
    dequantizers,
    merges,
    plain_model,
    plain_names,
    trained_parameters,
)
from winnow.models.tensor_file import WeightsOnRead

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The description of a model to serve. It can be pickled."""

    folder: Path  # with the model's config.json and no weights; it exists only while the server starts
    dtype: str  # "float32" ...
    names: frozenset[str]  # of the plain model's weights
    adapter: Mapping[str, Any] | None  # content of peft's adapter_config.json; None: no adapter beside the model
    adapter_names: frozenset[str]  # of the adapter's weights
    tokenizer: PreTrainedTokenizerBase
    stop_tokens: tuple[int, ...]
    vocabulary: int
    context_tokens: int
    max_rollouts_at_once: int


class ServerEngine:
    """The engine of a run with a server, an engine that samples. It sends the policy's weights as a plain model's.

    The server has version -1 before its first load, which is of version 0. With `adapter`, that load sends the base and
    the adapter, and later loads only the adapter.
    """

    def __init__(self, server: Engine, model: Any, *, adapter: bool, saved: WeightsInFiles | None = None) -> None:
        """`saved` has the weights of a model on the meta device."""
        self._server, self._model = server, model
        self._adapter = adapter_names(model) if adapter else {}
        self.logprob_tolerance = server.logprob_tolerance
        self.generate, self.close = server.generate, server.close
        self.memory_mib: Mapping[str, float] = getattr(server, "memory_mib", {})  # which the server updates in place
        try:
            server.load(self._first_weights(saved), version=0)
        except BaseException:
            self.close()
            raise
        self.version = 0

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Send the current policy to the server; every trained parameter must be among `weights`."""
        check_names(weights, known=self._model.state_dict(), trained=list(trained_parameters(self._model)))
        if self._adapter:
            changed = MadeOnRead({name: partial(weights.__getitem__, key) for name, key in self._adapter.items()})
        else:
            changed = served_weights(self._model, weights)
        self._server.load(changed, version)
        self.version = version

    def _first_weights(self, saved: WeightsInFiles | None) -> MadeOnRead:
        if saved is None and not self._adapter:
            return served_weights(self._model, {})
        make: dict[str, Callable[[], Tensor]] = {}
        for name, parameter in _plain_parameters(self._model):
            make[name] = parameter.detach if saved is None else partial(saved.read_like, name, parameter)
        make |= dequantizers(self._model)
        for name, weight in (adapter_weights(self._model) if self._adapter else {}).items():
            make[name] = weight.detach if saved is None else partial(weight.to, saved.device)
        return MadeOnRead(make)


def describe(context: EngineContext, folder: Path, *, adapter: bool = False) -> Served:
    """Write the model's config.json to a folder, and return the description for a server.

    With `adapter`, the policy's adapter is served beside the plain model.
    """
    model = plain_model(context.model)
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    limit = int(config.get_text_config().max_position_embeddings)
    return Served(
        folder=folder,
        dtype=str(model.dtype).removeprefix("torch."),
        names=frozenset(name for name, _ in _plain_parameters(context.model)),
        adapter=adapter_config(context.model) if adapter else None,
        adapter_names=frozenset(adapter_weights(context.model)) if adapter else frozenset(),
        tokenizer=context.tokenizer,
        stop_tokens=context.stop_tokens,
        vocabulary=config.get_text_config().vocab_size,
        context_tokens=min(limit, context.context_tokens or limit),
        max_rollouts_at_once=context.max_rollouts_at_once,
    )


class MadeOnRead(WeightsOnRead):
    """Weights by name, each made, or gathered from all ranks, when it is read; reading the names makes none."""

    def __init__(self, make: Mapping[str, Callable[[], Tensor]]) -> None:
        self._make, self.names = make, make.keys()

    def __getitem__(self, name: str) -> Tensor:
        return self._make[name]()


def served_weights(model: Any, weights: Mapping[str, Tensor]) -> MadeOnRead:
    """The plain model's weights by name: those in `weights`, and the module's for all others.

    An adapter is merged into copies. Its A and B are read from the module, so `weights` must be the module's.
    Tied weights occur once.
    """
    given = {id(p): partial(weights.__getitem__, name) for name, p in model.named_parameters() if name in weights}
    plain = {name: given.get(id(p), p.detach) for name, p in _plain_parameters(model)}
    return MadeOnRead({**plain, **merges(model)})


def _plain_parameters(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The parameters of the plain model, by their names without an adapter; tied ones once."""
    return plain_names(plain_model(model).named_parameters())


class ServedAdapter:
    """The only adapter of a vLLM engine. vLLM reads it from a temporary folder, which is then removed."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` is the content of peft's adapter_config.json."""
        self.request: Any = None  # passed with every prompt
        self._config = dict(config)

    def load(self, llm: Any, weights: Mapping[str, Tensor], names: Sequence[str], version: int) -> None:
        """Replace the adapter by the weights of these names, which vLLM's workers read and write to the file."""
        from vllm.lora.request import LoRARequest

        if self.request is not None:
            llm.llm_engine.remove_lora(self.request.lora_int_id)
        with TemporaryDirectory(prefix="winnow-adapter-") as folder:
            llm.collective_rpc("write_adapter", args=(weights, names, f"{folder}/adapter_model.safetensors"))
            Path(folder, "adapter_config.json").write_text(json.dumps(self._config), encoding="utf-8")
            self.request = LoRARequest(f"version-{version}", version + 1, folder)  # vLLM's ids start at 1
            llm.llm_engine.add_lora(self.request)

    def is_of(self, llm: Any, version: int) -> bool:
        """Whether vLLM's workers have this version and no other."""
        return set(llm.llm_engine.list_loras()) == {version + 1}
