from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from winnow.models import tensor_file
from winnow.models.tensor_file import DTYPES, write_tensors


def one_of_each() -> dict[str, Tensor]:
    """A matrix, a number and nothing, of every dtype; by names that do not come in the file's order."""
    generator = torch.Generator().manual_seed(0)
    out = {}
    for dtype in reversed(DTYPES):
        out[f"z/{dtype}"] = (100 * torch.rand(3, 5, generator=generator)).to(dtype)
        out[f"a/{dtype}/é"] = torch.ones((), dtype=dtype)
        out[f"e/{dtype}"] = torch.zeros(0, 3, dtype=dtype)
    return out


@pytest.mark.parametrize("piece", [2**26, 16])
@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_the_file_is_that_of_safetensors_and_the_digest_is_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, metadata: dict[str, str] | None
) -> None:
    monkeypatch.setattr(tensor_file, "PIECE_BYTES", piece)
    tensors = one_of_each()
    digest = write_tensors(tmp_path / "ours", tensors, metadata=metadata)
    save_file(tensors, tmp_path / "theirs", metadata=metadata)
    written = (tmp_path / "ours").read_bytes()
    assert written == (tmp_path / "theirs").read_bytes()
    assert digest == hashlib.sha256(written).hexdigest()


def test_tensors_need_be_neither_contiguous_nor_apart_nor_at_rest(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    parameter = torch.nn.Parameter(whole)
    write_tensors(tmp_path / "file", {"turned": whole.T, "part": whole[:, 1:3], "whole": parameter})
    loaded = load_file(tmp_path / "file")
    assert torch.equal(loaded["turned"], whole.T)
    assert torch.equal(loaded["part"], whole[:, 1:3])
    assert torch.equal(loaded["whole"], whole)


def test_tensors_are_made_one_by_one_and_none_is_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "PIECE_BYTES", 2**10)
    layout = {f"{i}": torch.empty(2**18, device="meta") for i in range(4)}  # 1 MiB each
    alive: list[str] = []

    class Counted:
        def __init__(self, name: str) -> None:
            assert not alive, f"{alive} is still there when {name} is made"
            alive.append(name)

        def __del__(self) -> None:
            alive.pop()

    def read(name: str) -> Tensor:
        made = torch.full((2**18,), float(name))
        made.held = Counted(name)  # type: ignore[attr-defined]
        return made

    tracemalloc.start()
    write_tensors(tmp_path / "file", layout, read)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**18, "no tensor became bytes as a whole"
    assert [tensor[-1].item() for tensor in load_file(tmp_path / "file").values()] == [0, 1, 2, 3]


@pytest.mark.parametrize("made", [torch.zeros(3), torch.zeros(4, dtype=torch.float64)], ids=["shape", "dtype"])
def test_a_tensor_that_differs_from_the_layout_is_refused(tmp_path: Path, made: Tensor) -> None:
    with pytest.raises(ValueError, match=r"torch\.float32"):
        write_tensors(tmp_path / "file", {"x": torch.zeros(4)}, lambda name: made)
