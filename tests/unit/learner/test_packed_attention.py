"""The pieces of a row in which texts attend together; test_packing.py compares what they compute."""

from __future__ import annotations

import pytest
import torch

from winnow.learner import packed_attention
from winnow.learner.packed_attention import Places, pieces
from winnow.learner.packing import Segment
from winnow.models.attention import SHORT

# Two prompts of 2 and 3 tokens, with completions of 1 and 4 tokens, and of 2
ROW = [Segment(0, 2, 0, 0), Segment(2, 3, 0, 2), Segment(3, 7, 0, 2), Segment(7, 10, 0, 0), Segment(10, 12, 7, 10)]


def test_prompts_and_completions_are_pieces_by_length() -> None:
    prompts, completions = pieces(ROW, 2)
    assert prompts.own.tokens.tolist() == [[0, 1, 0], [7, 8, 9]]
    assert prompts.prompts is None
    assert prompts.own.real.tolist() == [0, 1, 3, 4, 5]
    assert completions.own.tokens.tolist() == [[2, 2, 2, 2], [10, 11, 10, 10], [3, 4, 5, 6]]
    assert completions.prompts.tokens.tolist() == [[0, 1, 0], [7, 8, 9]]
    assert completions.owner.tolist() == [0, 1, 0]
    seen = completions.added[:, 0, 0] == 0  # [n, L, P + L]
    assert seen[0, 1].tolist() == [True, True, False, True, True, False, False]
    assert seen[1, 0].tolist() == [True, True, True, True, False, False, False]


def test_a_piece_has_at_most_so_many_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, count in ((1, 5), (2 * 2 * 3 * 3, 4), (2 * 3 * 4 * 7, 2)):
        monkeypatch.setattr(packed_attention, "CACHED", most)
        made = pieces(ROW, 2)
        assert len(made) == count
        for own, scores in ((piece.own.tokens, 2 * piece.own.tokens.numel() * piece.added.shape[-1]) for piece in made):
            assert len(own) == 1 or scores <= most
        tokens = torch.cat([p.own.tokens.flatten()[slice(None) if p.own.real is None else p.own.real] for p in made])
        assert sorted(tokens.tolist()) == list(range(12))


def test_a_row_with_a_long_text_has_no_pieces() -> None:
    assert pieces([Segment(0, SHORT, 0, 0)], 2) is not None
    assert pieces([Segment(0, SHORT, 0, 0), Segment(SHORT, SHORT + 1, 0, SHORT)], 2) is None


def test_padding_is_neither_written_nor_added() -> None:
    places, row = Places.of([(0, 1), (1, 3)]), torch.zeros(3, 1, 1)
    states = torch.arange(1.0, 5.0).view(2, 1, 2, 1)  # text 0: 1 and padding; text 1: 3, 4
    places.write(states, row)
    assert row.flatten().tolist() == [1, 3, 4]
    places.write(states, row, add=True)
    assert row.flatten().tolist() == [2, 6, 8]
    assert places.read(row).flatten().tolist() == [2, 2, 6, 8]
    places.clear_padding(states)
    assert states.flatten().tolist() == [1, 0, 3, 4]
