"""Random numbers follow names."""

from __future__ import annotations

import numpy as np

from winnow.seeds import Rng, derive, generator, uniform, uniforms


def test_keys_depend_on_every_part_and_its_type():
    keys = {derive(1, 2), derive(2, 1), derive("1", 2), derive(1, "2"), derive(12), derive("1\x1f2"), derive(1)}
    assert len(keys) == 7


def test_keys_are_the_same_on_every_machine():
    assert derive("winnow", 0) == derive("winnow", 0)
    assert f"{derive('winnow', 0):032x}" == EXPECTED


def test_neighbouring_seeds_share_nothing():
    streams = [set(generator(seed).integers(0, 2**62, size=1000)) for seed in range(4)]
    assert len(set.union(*streams)) == 4000


def test_uniforms_are_uniform_and_follow_ids():
    rng = Rng(("k",))
    ids = [f"p#{i}" for i in range(4000)]
    values = rng.uniforms(ids)
    assert rng.uniforms(ids[::-1]).tolist() == values[::-1].tolist()
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 4000)
    assert uniform("k", ids[0]) == values[0]


EXPECTED = "17f07c3e6379d9b56305d158502ed406"


def test_rows_of_uniforms_are_those_of_a_generator_each_and_depend_on_all_names_and_their_types() -> None:
    keys = [("a", 1, "b"), ("a", 1, 2), ("a", True, 2), (3,), ("3",), ("", ""), ("",), (4, 5), (4, "5")]
    keys += [(7, "rollout", step, f"p{i}", i) for step in range(3) for i in range(4)]
    rows = uniforms(keys, 9)
    np.testing.assert_array_equal(rows, [generator(*key).random(9) for key in keys])
    assert len({row.tobytes() for row in rows}) == len(keys)
    assert uniforms([], 9).shape == (0, 9)
