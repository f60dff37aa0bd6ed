"""Write the safetensors format tensor by tensor, hash the bytes, and read weights only when they are written.

A file is 8 bytes with the header's length, the header (JSON: dtype, shape and place of each tensor), and the tensors.
Its bytes are those of safetensors' `save_file`, which needs all tensors in host memory at once.

Weights that are produced when they are read may be gathered from ranks, received from a process, or merged.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

FORMAT = {"format": "pt"}  # metadata that transformers requires in a file of weights
PIECE_BYTES = 2**26  # copied to the host, hashed and written at a time
# In the order of the file: the widest first, so that every tensor begins at a multiple of its own width.
DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_RANK = {dtype: rank for rank, dtype in enumerate(DTYPES)}


class WeightsOnRead(Mapping[str, Tensor]):
    """Weights by name, each of which is read when it is looked up. Iterating reads none, and neither does `in`, for
    which Mapping's default would read one.
    """

    names: Collection[str]  # in the order in which the weights are best read

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names


def write_tensors(
    path: Path,
    layout: Mapping[str, Tensor],
    read: Callable[[str], Tensor] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Write tensors by name, and return the SHA-256 of the file's bytes.

    `layout` has the dtype and shape of each. The values are the results of `read(name)`, one tensor after another, or
    the tensors of `layout` without `read`. Tensors may be on any device; at most PIECE_BYTES of one are copied to the
    host at a time.

    Raises OSError if writing fails, KeyError for a dtype that is not in DTYPES, and ValueError where `read` returns
    another dtype or shape than the layout's.
    """
    names = sorted(layout, key=lambda name: (_RANK[layout[name].dtype], name))
    digest = hashlib.sha256()
    with path.open("wb") as file:

        def write(data: bytes | memoryview) -> None:
            file.write(data)
            digest.update(data)

        def write_tensor(name: str) -> None:  # a function, so that a tensor is freed before the next one is read
            tensor = (layout[name] if read is None else read(name)).detach()
            if (tensor.dtype, tensor.shape) != (layout[name].dtype, layout[name].shape):
                raise ValueError(f"{name} must be {_describe(layout[name])} and is {_describe(tensor)}")
            for piece in _pieces(tensor):
                write(piece)

        write(_header({name: layout[name] for name in names}, metadata))
        for name in names:
            write_tensor(name)
    return digest.hexdigest()


def _header(layout: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> bytes:
    """The length and the JSON, padded with spaces so that the tensors begin at a multiple of 8 bytes."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for name, tensor in layout.items():
        end = begin + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """A tensor's bytes in order, on the host, PIECE_BYTES at a time."""
    flat = tensor.reshape(-1)
    step = PIECE_BYTES // tensor.element_size()
    for begin in range(0, flat.numel(), step):
        yield flat[begin : begin + step].cpu().view(torch.uint8).numpy().data


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
