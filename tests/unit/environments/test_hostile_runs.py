"""A run whose environment does one of fifteen hostile things in each game: the run goes on, and each rollout fails with
its cause, while healthy games beside it are judged. No control token of an environment's text reaches a rollout.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import winnow
from winnow.models.load import load_tokenizer
from winnow.state.logbook import read_rows

HOSTILE = Path(__file__).with_name("hostile.py")
FAILS = {
    "huge": "malformed",
    "error": "raised",
    "leave": "raised",
    "door": "raised",
    "memory": "memory",
    "die": "crash",
    "hang": "timeout",
    "number": "malformed",
    "endless": "malformed",
    "nothing": "raised",
    "infinite": "malformed",
}
GOES_ON = ("fork", "surrogate", "write", "control")  # odd, and yet judged


@pytest.mark.slow  # environments that hang, until their limits
def test_a_run_goes_on_beside_hostile_environments(smallest, tmp_path):
    names = [*FAILS, *GOES_ON]
    (tmp_path / "games.py").write_text(
        "import winnow\n"
        "def games(split):\n"
        f"    return [winnow.Problem(id=name, question='Go.', answer='1', task='games', meta={{'how': name}})"
        f" for name in {names!r}]\n"
    )
    config = smallest(
        steps=1,
        task={"use": f"{tmp_path}/games.py:games"},
        prompt={"template": "chat"},
        rollout={"prompts_per_step": len(names), "rollouts_per_prompt": 2, "max_new_tokens": 400},
        verify={"workers": 2, "timeout_seconds": 3.0, "memory_mb": 512, "max_failure_share": 1.0},
        select={"use": "all"},
        evaluate={"problems": 0},
    )
    config["task"] = {"use": f"{tmp_path}/games.py:games"}
    config["select"] = "all"
    del config["reward"], config["evaluate"]
    environment = {"use": f"{HOSTILE}:act_as_told", "max_turns": 3, "max_turn_tokens": 4}
    winnow.train(**{**config, "environment": environment, "output": str(tmp_path / "run")}, progress=False)
    rows = list(read_rows(tmp_path / "run" / "rollouts"))
    assert {row["prompt_id"] for row in rows} == set(names)
    causes = {row["prompt_id"]: row["cause"] for row in rows}
    assert causes == {**FAILS, **dict.fromkeys(GOES_ON)}
    assert {row["kind"] for row in rows if row["prompt_id"] in GOES_ON} == {"correct"}
    tokenizer = load_tokenizer("bundled")
    special = set(tokenizer.all_special_ids)
    frame = tokenizer.encode("<|endoftext|><|user|><|endoftext|><|assistant|>", add_special_tokens=False)
    for row in rows:
        if row["prompt_id"] == "control":
            between = row["tokens"][~row["trainable"]].tolist()
            found = [token for token in between if token in special]
            turns = len(row["turns"]) // 2
            ended = sum(token == tokenizer.eos_token_id for token in row["tokens"][row["trainable"]].tolist())
            assert len(found) == len(frame) * turns - min(ended, turns), "those of the template around each text alone"
            assert "<|assistant|>" in row["turns"][3]
            assert np.isfinite(row["logprobs"]).all()
