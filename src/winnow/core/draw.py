"""The prompts of a run, and the draw of the next steps' prompts: the sampler's rows, checked, and the prompts that
dynamic sampling may add.

plan.py calls `draw` between steps, once for each step or window. The draw is stored in the history, and
everything else reads it from there.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence

import numpy as np

from winnow import ranks
from winnow.budget.sampling import Drawn
from winnow.config import RolloutSection
from winnow.core.members import Members
from winnow.errors import conflict
from winnow.records import FloatArray, IntArray, Prompt
from winnow.seeds import SeedName, generator
from winnow.state.history import History, packed_values
from winnow.user_code import Requested


class PromptPool:
    """The prompts that a run is trained on, which a sampler draws from. A prompt is its row: its place in the task."""

    def __init__(self, prompts: Sequence[Prompt], *, per_step: int, seed: tuple[SeedName, ...]) -> None:
        if per_step > len(prompts):
            raise conflict(
                f"rollout.prompts_per_step = {per_step}, but the task has only {len(prompts)} prompts to train on",
                remedy=f"lower it to at most {len(prompts)} or enlarge the task",
                key="rollout.prompts_per_step",
            )
        self.prompts = tuple(prompts)
        self._per_step = per_step
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps in as many draws as there are prompts."""
        return len(self.prompts) // self._per_step

    def take(self, rows: IntArray) -> list[Prompt]:
        """[G] the prompts of these rows."""
        return [self.prompts[row] for row in rows.tolist()]

    def stream(self, name: str, number: int) -> np.random.Generator:
        """The random numbers of a sampler: a generator that depends on the run's seed and these two alone."""
        return generator(*self._seed, name, number)

    def difficulty(self, field: str) -> FloatArray:
        """[P] the number in `field` of each prompt's meta. Raises ConfigError for a prompt without one."""
        labels = [prompt.meta.get(field) for prompt in self.prompts]
        numbers = [isinstance(label, int | float) and math.isfinite(label) for label in labels]
        if not all(numbers):
            first = self.prompts[numbers.index(False)]
            raise conflict(
                f"sample: prompt {first.id!r} has no number in the field {field!r} of its meta (its fields: "
                f"{', '.join(map(repr, first.meta)) or 'none'})",
                remedy="set the sampler's option to a field of every problem that is a number, or choose another "
                "sampler",
                key="sample",
            )
        return np.array(labels, dtype=np.float64)


def make_history(members: Members, pool: PromptPool) -> History:
    """An empty history of the pool's prompts, with their labels where the sampler reads them. Raises ConfigError."""
    label = members.sample.traits.label
    return History(
        [prompt.id for prompt in pool.prompts],
        decay=members.config.probe.decay,
        remember=members.remember,
        difficulty=None if label is None else pool.difficulty(members.sample.options[label]),
    )


def draw(members: Members, history: History, pool: PromptPool, steps: Sequence[int]) -> None:
    """Draw the prompts of these steps, all different, and record them in the history, divided at random.

    Raises ConfigError if the sampler returns anything but that number of different prompts.
    """
    rollout = members.config.rollout
    count = len(steps) * rollout.prompts_per_step
    answer = members.sample(history.table, history.sampler, pool.stream, count)
    traits = members.sample.traits
    drawn = check_drawn(answer, len(pool.prompts), count, known=traits.probability == "known")
    ranks.check_same("draw of prompts", lambda: str(drawn.rows.tolist()), ranks.SAME_RESULTS)
    reads = traits.source == "history"
    # Such a sampler may return the rows that it prefers first. At random, each is in any step with equal probability
    mixed = reads and len(steps) > 1
    order = pool.stream("window", steps[0]).permutation(count) if mixed else np.arange(count)
    chances = None if drawn.probability is None else drawn.probability[order] / len(steps)
    metrics = {"sampler/skipped": float(drawn.skipped), "sampler/overdue": float(drawn.overdue)} if reads else {}
    if chances is not None:
        metrics |= {"sampler/probability_least": float(chances.min()), "sampler/probability_most": float(chances.max())}
    rows = np.split(drawn.rows[order], len(steps))
    further = [_further_rows(pool, of_step, step, rollout) for of_step, step in zip(rows, steps, strict=True)]
    of_steps = None if chances is None else np.split(chances, len(steps))
    history.record_draw(steps, rows, further, drawn.state, metrics, of_steps)


def check_drawn(answer: object, prompts: int, count: int, *, known: bool = False) -> Drawn:
    """The result of a sampler, with int64 rows. A pair of rows and state is enough. Raises ConfigError.

    `known`: the sampler is registered as one whose draws have probabilities.
    """

    def fault(rows: IntArray) -> str | None:
        if rows.min() < 0 or rows.max() >= prompts:
            return f"rows from {rows.min()} to {rows.max()}"
        different = len(np.unique(rows))
        return f"{different} different rows" if different < count else None

    requested = Requested(
        "the sampler",
        f"a draw of {count} prompts from {prompts}",
        "return that many different rows of the table, and the state for the next draw",
        "sample",
    )
    if not (isinstance(answer, tuple) and 2 <= len(answer) <= 5):
        raise requested.refuse(f"a {type(answer).__name__}")
    drawn = Drawn(requested.integers(answer[0], count, fault), *answer[1:])
    _check_state(drawn.state)
    if drawn.probability is None and not known:
        return drawn
    chances = np.asarray(drawn.probability, dtype=np.float64)
    if chances.shape != (count,) or not np.all((chances > 0) & (chances <= 1)):
        raise Requested(
            "the sampler",
            f"the {count} rows of a draw",
            "return a probability above 0 and at most 1 for each row, as Drawn.probability, or register the sampler "
            'with probability = "unknown"',
            "sample",
        ).refuse(f"the probabilities {reprlib.repr(chances.tolist())}")
    return drawn._replace(probability=chances)


def _check_state(state: object) -> None:
    """Raise ConfigError for a state that a checkpoint could not store."""
    requested = Requested(
        "the sampler", "its state", "return a mapping of texts to JSON values, or to arrays [n] of numbers", "sample"
    )
    if not isinstance(state, Mapping):
        raise requested.refuse(f"a {type(state).__name__}")
    starts = {name: of[:1] if isinstance(of, np.ndarray) and of.ndim == 1 else of for name, of in state.items()}
    try:
        plain = packed_values(starts)
        restored = json.loads(json.dumps(plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise requested.refuse(f"a value that cannot be stored as JSON ({error})") from error
    if restored != plain:
        raise requested.refuse("what JSON restores as something else, such as a key that is a number, or a tuple")


def _further_rows(pool: PromptPool, drawn: IntArray, step: int, rollout: RolloutSection) -> list[IntArray]:
    """The prompts of each round of dynamic sampling: in random order, those that the step does not have. A round is
    shorter, or missing, where the task has too few prompts.
    """
    if not rollout.dynamic_sampling_rounds:
        return []
    others = np.setdiff1d(np.arange(len(pool.prompts)), drawn)
    pool.stream("refill", step).shuffle(others)  # the name seeds the order, so it must not change
    size = rollout.prompts_per_step
    last = min(len(others), rollout.dynamic_sampling_rounds * size)
    return [others[place : min(place + size, last)] for place in range(0, last, size)]
