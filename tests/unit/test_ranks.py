"""One process is all ranks of its run; of several, only rank 0 writes files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from winnow import ranks
from winnow.state import checkpoint
from winnow.state.logbook import Logbook


def test_one_process_is_all_ranks() -> None:
    assert (ranks.rank(), ranks.count(), ranks.is_writer()) == (0, 1, True)
    assert [ranks.any_rank(flag) for flag in (False, True)] == [False, True]
    assert sum(ranks.gather([1.5])) == 1.5
    assert ranks.gather(iter("ab")) == ["a", "b"]


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_writes(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "rank", lambda: rank)
    book = Logbook(tmp_path, seed=0)
    book.write_between(0, {"eval/reward_mean": 0.5})

    def write_model(path):
        (path / "weights").write_text("w")
        return {}

    saved = checkpoint.save(
        tmp_path,
        1,
        write_model=write_model,
        tensors={"moment": torch.ones(1)},
        state={},
        keep_last=1,
        logs=book.sync(1),
    )
    assert saved.path == tmp_path / "checkpoints" / "step-000001"
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == (["checkpoints", "metrics.jsonl"] if rank == 0 else [])
