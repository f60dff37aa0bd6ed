"""winnow: RL with verifiable rewards that treats the rollout budget as the thing to optimise.

    import winnow

    result = winnow.train(task="arithmetic", steps=60, reward=my_reward, output="runs/mine")

Everything a TOML file can say is a keyword argument here, and a function may stand wherever a name may.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import ConfigError, DataError, EngineError, RunFolderError, UpdateError, VerifierError, WinnowError
from winnow.records import (
    Batch,
    Group,
    MicroBatch,
    Outcome,
    PolicyOutput,
    Problem,
    Prompt,
    PromptStats,
    Rollout,
    Sampling,
    Shape,
    StepReport,
)
from winnow.registry import register
from winnow.seeds import Rng

if TYPE_CHECKING:
    from winnow.fit import Result, Watch
    from winnow.members import Critic

__all__ = [
    "Batch",
    "ConfigError",
    "DataError",
    "EngineError",
    "Group",
    "MicroBatch",
    "Outcome",
    "PolicyOutput",
    "Problem",
    "Prompt",
    "PromptStats",
    "Rng",
    "Rollout",
    "RunFolderError",
    "Sampling",
    "Shape",
    "StepReport",
    "UpdateError",
    "VerifierError",
    "WinnowError",
    "register",
    "train",
]


def train(
    *,
    resume: bool = False,
    allow_change: Sequence[str] = (),
    watch: Watch | None = None,
    critic: Critic | None = None,
    **config: Any,
) -> Result:
    """Train a policy; `winnow train` from Python.

    `config` holds the keys of a TOML file, nested as there: `rollout={"prompts_per_step": 32}`. A member is a name, a
    function, or a table: `loss="clip"`, `reward=my_reward`, `select={"use": "max_variance", "keep_per_prompt": 4}`.
    `resume` goes on from the newest checkpoint of the output folder with the same configuration; `allow_change` names
    keys that differ knowingly (["optimizer.learning_rate"]).
    `watch` hears of every step (see `winnow.fit.Event`); by default progress is printed. `critic` gives each group's
    values per token to an advantage that wants them.

    Returns where the run folder and the trained model are. Raises WinnowError subclasses.
    """
    from winnow.config import validate
    from winnow.fit import fit
    from winnow.members import resolve_members
    from winnow.report.progress import progress

    members = resolve_members(validate(config), base=Path.cwd(), critic=critic)
    if watch is not None:
        return fit(members, resume=resume, allow_change=allow_change, watch=watch)
    with progress() as display:
        return fit(members, resume=resume, allow_change=allow_change, watch=display)
