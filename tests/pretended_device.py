"""A device that the CPU pretends to be: which operations would wait for it, or would mix its tensors with the host's.

A CPU build has no second device, so operations are recognised by their name and by where a tensor comes from. A tensor
is the host's where it was made from numpy or from Python numbers, or by a factory without a device, or by operations on
such tensors only. `.to(device)` with a `torch.device` moves it to the device; `.cpu()` and `.to("cpu")` move it back.
Every other tensor is on the device, such as parameters, gradients, and what torch's own code makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TORCH, HERE = Path(torch.__file__).parent, Path(__file__)

# By the number of elements that they return, or by the number itself, the host must know a result of the device
READS = frozenset(
    (
        *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "argwhere", "masked_select", "bincount"),
        *("_unique", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave", "histc"),
    )
)
INDEXED = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
COPIES = frozenset(("copy_", "_to_copy"))
TO_HOST: dict[Any, str] = {
    Tensor.cpu: "cpu",
    Tensor.numpy: "numpy",
    Tensor.tolist: "tolist",
    Tensor.__array__: "__array__",
    Tensor.item: "item",  # an operator too, but not in inference mode
    Tensor.__bool__: "bool",
    Tensor.__int__: "int",
    Tensor.__float__: "float",
    Tensor.__index__: "index",
}
FROM_NUMPY = ("from_numpy", "frombuffer")  # functions that torch's modes do not see


@dataclass(frozen=True, slots=True)
class Finding:
    """What a device would not do without the host: a `read` waits for a result, an `upload` waits for earlier work, and
    a `mixed` operation fails.
    """

    kind: Literal["read", "upload", "mixed"]
    operator: str
    file: str
    function: str
    line: int


@dataclass
class Pretended:
    """Findings so far, and which tensors are the host's."""

    findings: list[Finding] = field(default_factory=list)
    _host: dict[int | None, Tensor] = field(
        default_factory=dict
    )  # by storage; it is kept, so that no other takes its place
    _paused: bool = False

    def is_host(self, tensor: Tensor) -> bool:
        return _storage(tensor) in self._host

    def mark(self, results: Any) -> None:
        """Results that the host has made."""
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor) and (storage := _storage(tensor)) is not None:
                self._host[storage] = tensor

    def unmark(self, tensor: Tensor) -> None:
        """A tensor that was moved to the device."""
        self._host.pop(_storage(tensor), None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside this context nothing is found."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def note(self, kind: Literal["read", "upload", "mixed"], operator: str) -> None:
        if self._paused:
            return
        frame = _caller()
        code = frame.f_code
        self.findings.append(Finding(kind, operator, code.co_filename, code.co_qualname, frame.f_lineno))

    def of(self, *kinds: str, within: str = "") -> list[Finding]:
        """Findings of these kinds whose file's path contains `within`."""
        return [finding for finding in self.findings if finding.kind in kinds and within in finding.file]


@contextmanager
def pretended_device() -> Iterator[Pretended]:
    """Inside this context, this thread's operations are recorded."""
    seen = Pretended()
    plain = {name: getattr(torch, name) for name in FROM_NUMPY}

    def marked(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            seen.mark(tensor)
            return tensor

        return made

    try:
        for name, make in plain.items():
            setattr(torch, name, marked(make))
        with _Functions(seen), _Operators(seen):
            yield seen
    finally:
        for name, make in plain.items():
            setattr(torch, name, make)


class _Functions(TorchFunctionMode):
    """What Python calls: copies between host and device, which a CPU's operators do not show, and factories."""

    def __init__(self, seen: Pretended) -> None:
        super().__init__()
        self._seen, self._factories = seen, _device_constructors()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in TO_HOST:
            return self._to_host(func, TO_HOST[func], args, kwargs)
        if func is Tensor.to:
            return self._to(args, kwargs)
        if func in self._factories:
            return self._make(func, args, kwargs)
        return func(*args, **kwargs)

    def _to_host(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not self._seen.is_host(args[0]):
            self._seen.note("read", name)
        with self._seen.paused():  # one finding, not one more per operator within
            result = func(*args, **kwargs)
            copy = result.clone() if isinstance(result, Tensor) else result
        self._seen.mark(copy)
        return copy

    def _to(self, args: Any, kwargs: Any) -> Any:
        tensor, target = args[0], kwargs.get("device", kwargs.get("other", args[1] if len(args) > 1 else None))
        if isinstance(target, str):
            return self._to_host(Tensor.to, "to", args, kwargs)
        moves = isinstance(target, torch.device) or (isinstance(target, Tensor) and not self._seen.is_host(target))
        if not moves or not self._seen.is_host(tensor):
            return Tensor.to(*args, **kwargs)
        if not kwargs.get("non_blocking"):
            self._seen.note("upload", "to")
        moved = Tensor.to(*args, **{**kwargs, "copy": True})
        self._seen.unmark(moved)
        return moved

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if not isinstance(kwargs.get("device"), torch.device):
            self._seen.mark(result)
        elif func in (torch.tensor, torch.as_tensor, torch.asarray) and not _is_tensor(args) and result.numel():
            self._seen.note("upload", func.__name__)
        return result


class _Operators(TorchDispatchMode):
    """What torch computes, in backward and in compiled code too."""

    def __init__(self, seen: Pretended) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.numel()]
        host = [self._seen.is_host(tensor) for tensor in given]
        name = func.overloadpacket.__name__
        if given and not all(host):
            self._check(name, args, kwargs, given, host)
        result = func(*args, **kwargs)
        if given and all(host):
            self._seen.mark(result)
        return result

    def _check(self, name: str, args: Any, kwargs: Any, given: list[Tensor], host: list[bool]) -> None:
        if name in READS and not (name == "repeat_interleave" and kwargs.get("output_size") is not None):
            self._seen.note("read", name)
        if name in INDEXED and any(_is_mask(index) and not self._seen.is_host(index) for index in args[1]):
            self._seen.note("read", f"{name} by a mask")
        if name in COPIES and any(host):
            self._copied(name, args, kwargs)
        elif name in INDEXED and any(self._seen.is_host(index) for index in args[1] if isinstance(index, Tensor)):
            self._seen.note("upload", name)
        elif any(of_host and tensor.ndim for tensor, of_host in zip(given, host, strict=True)):
            self._seen.note("mixed", name)

    def _copied(self, name: str, args: Any, kwargs: Any) -> None:
        into_host = name == "copy_" and self._seen.is_host(args[0])
        non_blocking = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
        if into_host or not non_blocking:
            self._seen.note("read" if into_host else "upload", name)


def _storage(tensor: Tensor) -> int | None:
    """The identity of a tensor's memory; None where it has none."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
    return storage._cdata if storage.nbytes() else None


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _is_tensor(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], Tensor)


def _caller() -> FrameType:
    """The innermost frame that belongs neither to torch nor to this file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path != HERE and TORCH not in path.parents:
            return frame
        frame = frame.f_back
    assert frame is not None
    return frame
