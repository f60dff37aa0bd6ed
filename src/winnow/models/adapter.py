"""Low-rank adapters: a small trained difference to frozen weights. Only this file uses peft.

A model is either a plain transformers model, or wrapped by peft, which adds "base_layer" and "lora_..." to parameter
names. Other files use the names of the plain model, or those in peft's own files.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from winnow import seeds
from winnow.errors import RunFolderError, unsupported
from winnow.models.bnb import dequantized, dequantized_shape, dtype_of, is_4bit, is_scale, without_hub_kernels
from winnow.models.tensor_file import FORMAT, write_tensors

ADAPTER_WEIGHTS = "adapter_model.safetensors"
TRAINED = "default"  # peft's name of a model's first adapter
VALUES = "critic"  # name of the adapter that a value model trains on the policy's base
Numbers = Callable[[Tensor], Tensor]  # a parameter -> a tensor with its numbers


def plain_model(model: nn.Module) -> Any:
    """The transformers model inside peft's wrapper, or the model itself."""
    unwrap = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def has_adapter(model: nn.Module, name: str = TRAINED) -> bool:
    """Whether the model has an adapter of this name."""
    return name in getattr(model, "peft_config", {})


def add_lora(
    model: nn.Module, *, rank: int, alpha: float, targets: Sequence[str] | Literal["all-linear"], seed: int
) -> nn.Module:
    """The model with weights W + (alpha / rank) B A on its `targets`, of which only A and B are trained (Hu et al.
    2021, arXiv 2106.09685, eq. 3). B starts at zero, so the model does not change at first.

    The same `seed` gives the same A. Raises ConfigError for a target that no module has, for the experts of a mixture,
    and where a target shares its weight with another module: the merged model could not be saved in its architecture.
    """
    peft = _peft()
    modules = targets if isinstance(targets, str) else list(targets)
    remedy = f"choose from its linear layers ({', '.join(linear_layers(model))}), or use 'all-linear'"
    adapter = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=modules, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        # peft uses a name that newer versions of transformers deprecate, and warns about what is refused below
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", r"The following \w+_pattern keys did not match", RuntimeWarning)
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True` and a tied layer", UserWarning)
        torch.manual_seed(seeds.derive(seed, "lora") % 2**63)  # peft draws A from torch's global stream
        # Of a model on the meta device, a large adapter would take a second to draw, and be thrown away.
        without_numbers = all(parameter.is_meta for parameter in model.parameters())
        try:
            adapted = peft.get_peft_model(model, adapter, low_cpu_mem_usage=without_numbers)
        except ValueError as error:
            raise unsupported(
                f"model.lora.targets = {modules!r} does not fit this model: {error}",
                remedy=remedy,
                key="model.lora.targets",
            ) from error
    for config in adapted.peft_config.values():  # a set, whose order in adapter_config.json would vary
        config.target_modules = sorted(config.target_modules)
    _check_targets(adapted, modules, remedy)
    return cast(nn.Module, adapted)


@contextmanager
def with_numbers(model: nn.Module) -> Iterator[None]:
    """A context in which an adapter that is added to a model on the meta device gets numbers, in host memory.

    peft moves an adapter to the device of its base. Inside, each parameter on the meta device is a view of one number.
    """
    stand_ins: dict[int, nn.Parameter] = {}
    replaced = list[tuple[nn.Module, str, nn.Parameter]]()
    for module in model.modules():
        for key, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                view = torch.empty(1, dtype=parameter.dtype).expand(parameter.shape)
                stand_in = stand_ins.setdefault(id(parameter), nn.Parameter(view, parameter.requires_grad))
                module._parameters[key] = stand_in
                replaced.append((module, key, parameter))
    try:
        yield
    finally:
        for module, key, parameter in replaced:
            parameter.requires_grad_(stand_ins[id(parameter)].requires_grad)  # peft freezes the base
            module._parameters[key] = parameter


def linear_layers(model: nn.Module) -> list[str]:
    """Names of the linear layers that an adapter can be on, each once, without the output layer."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    named = ((name.rpartition(".")[2], module) for name, module in model.named_modules())
    return sorted({name for name, module in named if isinstance(module, nn.Linear) and module is not output})


def add_value_adapter(model: Any, *, rank: int, alpha: float, seed: int) -> None:
    """Add a second adapter to a model from `add_lora`, on the same layers, for a value model. It is not made active."""
    config = copy.copy(model.peft_config[TRAINED])
    config.r, config.lora_alpha = rank, alpha
    with torch.random.fork_rng():
        torch.manual_seed(seeds.derive(seed, "critic lora") % 2**63)
        model.add_adapter(VALUES, config)
    _activate(model, TRAINED)


def value_adapter(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters of a value model's adapter on the policy's base, by name; empty where it has none."""
    return {name: p for name, p in model.named_parameters() if _is_of(name, VALUES)}


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trained parameters of a policy by name, without a value model's adapter on its base."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad and not _is_of(name, VALUES)}


def load_adapter(model: nn.Module, folder: Path) -> None:
    """Set the adapter of a model from `add_lora` to the one saved in a folder, bit by bit.

    Raises RunFolderError if the folder has none in safetensors (peft would open a pickle instead), or where its
    shape is not this model's.
    """
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise RunFolderError(
            f"there is no {ADAPTER_WEIGHTS} in {folder}",
            remedy="resume from another checkpoint",
            code="run_folder.incomplete",
        )
    saved, own = load_file(folder / ADAPTER_WEIGHTS), adapter_weights(model)
    if other := sorted(saved.keys() ^ own.keys()) or [n for n in own if saved[n].shape != own[n].shape]:
        raise RunFolderError(
            f"the adapter in {folder} does not belong to this model ({other[:2]} ...)",
            remedy="resume with the model and the adapter settings that the run started with",
            key="model.lora",
            code="run_folder.other_model",
        )
    for name, weight in own.items():
        weight.copy_(saved[name])


def save_adapter(model: Any, folder: Path, numbers: Numbers = torch.Tensor.detach) -> str:
    """Write the trained adapter in peft's two files. Returns the SHA-256 of its weights file.

    `numbers` is as in `merges`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.copy(model.peft_config[TRAINED])
    config.inference_mode = True  # as peft saves it; the program that loads the folder chooses what to train
    config.save_pretrained(folder)
    parameters = dict(model.named_parameters())
    weights = {name: parameters[key] for name, key in adapter_names(model).items()}
    return write_tensors(folder / ADAPTER_WEIGHTS, weights, lambda name: numbers(weights[name]), metadata=FORMAT)


def plain_names(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Tensors named as in `plain_model` -> those of the plain model, by its own names."""
    plain = ((name, tensor) for name, tensor in named if ".lora_" not in name and not is_scale(name))
    return ((name.replace(".base_layer.", "."), tensor) for name, tensor in plain)


def merges(model: nn.Module, numbers: Numbers | None = None) -> dict[str, Callable[[], Tensor]]:
    """{name in the plain model: function that returns the merged weight}, for each weight that the trained adapter
    changes.

    The merged weight is W + (alpha / rank) B A, summed in float32 or float64, rounded once to W's precision, on W's
    device. For a 4-bit base, W is the dequantized matrix, and every 4-bit matrix is included.

    Weights are merged one by one, beside the model: merging in place and undoing it would not restore W's bits.

    Where the model is on the meta device, `numbers` returns a parameter's numbers.
    """
    adapted = {name: m for name, m in plain_model(model).named_modules() if hasattr(m, "get_delta_weight")}
    merged = {f"{name}.weight": partial(_merged, module, numbers) for name, module in adapted.items()}
    return {**dequantizers(model), **merged}


def dequantized_shapes(model: nn.Module) -> dict[str, Tensor]:
    """Tensors on the meta device with shape and dtype of each 4-bit matrix once dequantized, by plain name."""
    return {name: dequantized_shape(weight) for name, weight in _in_4_bits(model)}


def dequantizers(model: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """{name in the plain model: function that returns a 4-bit matrix dequantized}, in the precision that the matrix
    computes in, without an adapter.
    """
    return {name: partial(_rounded, weight) for name, weight in _in_4_bits(model)}


def _in_4_bits(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The 4-bit matrices, by the names of the plain model."""
    plain = plain_names(plain_model(model).named_parameters())
    return ((name, weight) for name, weight in plain if is_4bit(weight))


def _peft() -> Any:
    """Import peft late: it is slow to import and needed only for an adapter. It imports bitsandbytes."""
    with without_hub_kernels():
        import peft

    return peft


@torch.no_grad()
def _merged(module: Any, numbers: Numbers | None) -> Tensor:
    if numbers is not None:
        module = copy.deepcopy(module, {id(p): nn.Parameter(numbers(p), False) for p in module.parameters()})
    weight: Tensor = module.get_base_layer().weight
    wide = torch.promote_types(dtype_of(weight), torch.float32)
    merged: Tensor = dequantized(weight).to(wide) + module.get_delta_weight(TRAINED).to(wide)
    return merged.to(dtype_of(weight))


@torch.no_grad()
def _rounded(weight: Tensor) -> Tensor:
    return dequantized(weight).to(dtype_of(weight))


def adapter_names(model: nn.Module) -> dict[str, str]:
    """{name in peft's files: name in the model} of the trained adapter's parameters."""
    return {_renamed(key, f".{TRAINED}", ""): key for key, _ in model.named_parameters() if _is_of(key, TRAINED)}


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """The trained adapter's weights, by their names in peft's files."""
    parameters = dict(model.named_parameters())
    return {name: parameters[key].detach() for name, key in adapter_names(model).items()}


def adapter_config(model: Any) -> dict[str, Any]:
    """Content of adapter_config.json for the trained adapter."""
    config = model.peft_config[TRAINED].to_dict()
    return {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}


def adapted_weights(model: nn.Module) -> list[nn.Parameter]:
    """The base's matrices that have an adapter."""
    return [p for name, p in model.named_parameters() if name.endswith(".base_layer.weight")]


def projections(model: nn.Module, matrix: Literal["A", "B"]) -> list[nn.Parameter]:
    """Matrix A [rank, input width] or B [output width, rank] of every trained adapter layer."""
    return [p for name, p in trained_parameters(model).items() if f".lora_{matrix}." in name]


@contextmanager
def adapter_off(model: Any) -> Iterator[None]:
    """A context in which the model computes without its adapter."""
    try:
        with model.disable_adapter():
            yield
    finally:
        _activate(model, TRAINED)  # peft leaves other adapters frozen, the value model's too


@contextmanager
def adapter_on(model: nn.Module, name: str) -> Iterator[None]:
    """A context in which the model computes with another adapter in place of the policy's."""
    _activate(model, name)
    try:
        yield
    finally:
        _activate(model, TRAINED)


def frozen_adapter(model: nn.Module, name: str) -> dict[str, Tensor]:
    """Weights of a frozen adapter, by the names of the trained adapter's parameters; empty where it does not exist."""
    return {
        _renamed(key, f".{name}", f".{TRAINED}"): parameter.detach()
        for key, parameter in model.named_parameters()
        if _is_of(key, name)
    }


@torch.no_grad()
def set_frozen_adapter(model: Any, name: str, weights: Mapping[str, Tensor]) -> None:
    """Set a frozen adapter to copies of `weights`, by the names of the trained adapter's parameters.

    The adapter is added where it does not exist. It is not made active.
    """
    if not has_adapter(model, name):
        model.add_adapter(name, model.peft_config[TRAINED])
        _activate(model, TRAINED)
    parameters = dict(model.named_parameters())
    for key, value in weights.items():
        parameters[_renamed(key, f".{TRAINED}", f".{name}")].copy_(value)


def _activate(model: Any, name: str) -> None:
    """Activate an adapter. peft makes only the active one trainable; the policy's and the value model's are both
    trained.
    """
    model.set_adapter(name)
    for key, parameter in model.named_parameters():
        if ".lora_" in key:
            parameter.requires_grad_(_is_of(key, TRAINED) or _is_of(key, VALUES))


def _is_of(key: str, name: str) -> bool:
    """Whether a parameter belongs to this adapter: "...lora_A.default.weight", or "...lora_embedding_A.default"."""
    return ".lora_" in key and f".{name}." in f"{key}."


def _renamed(key: str, old: str, new: str) -> str:
    return re.sub(rf"{re.escape(old)}(?=\.|$)", new, key)


def _check_targets(model: nn.Module, targets: str | Sequence[str], remedy: str) -> None:
    plain = plain_model(model)
    uses = Counter(id(parameter) for _, parameter in plain.named_parameters(remove_duplicate=False))
    adapted = {name: module for name, module in plain.named_modules() if hasattr(module, "get_delta_weight")}
    for target in () if isinstance(targets, str) else targets:
        if not any(f".{name}".endswith(f".{target}") for name in adapted):
            raise unsupported(
                f"model.lora.targets = {targets!r}: no layer of this model that can have an adapter is {target!r}",
                remedy=remedy,
                key="model.lora.targets",
            )
    for name, module in adapted.items():
        if hasattr(module, "parameter_name"):  # peft's wrapper of a parameter that no linear layer has
            raise unsupported(
                f"model.lora.targets = {targets!r} includes {name!r}, the experts or the router of a mixture, and "
                f"only linear layers get an adapter",
                remedy="list others alone, such as ['q_proj', 'k_proj', 'v_proj', 'o_proj']",
                key="model.lora.targets",
            )
        if uses[id(module.get_base_layer().weight)] > 1:
            raise unsupported(
                f"model.lora.targets = {targets!r} would change the weight of {name!r}, which this model's input "
                f"embedding and output layer share: the merged model would need two",
                remedy="remove that layer from the list",
                key="model.lora.targets",
            )
