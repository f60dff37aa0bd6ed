"""Law 6: a run killed anywhere and resumed by the command line ends with the same bits as one that was not.

What is killed is a process, a fork, and what resumes the first test's run, too; the other commands are called in this
process. `python -m winnow` itself starts in test_ranks_launch.py.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forked import fork_supervisors, python, winnow
from winnow.commands import app
from winnow.config import dump
from winnow.config_file import validate
from winnow.state.logbook import read_rows

KILLED = Path(__file__).with_name("killed.py")


def write_config(path: Path, config: dict) -> Path:
    """As TOML, one dotted key per line."""

    def lines(prefix, table):
        for key, value in table.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict):
                yield from lines(f"{name}.", value)
            else:
                yield f"{name} = {json.dumps(value)}"

    path.write_text("\n".join(lines("", config)) + "\n")
    return path


def train(*arguments: object) -> None:
    """`winnow train ARGUMENTS` in this process."""
    done = CliRunner().invoke(app, ["train", *map(str, arguments)])
    assert done.exit_code == 0, done.output


def digests(run: Path) -> dict[str, str]:
    """What a run ended with: parameters, optimizer and state, bit by bit."""
    final = run / "checkpoints" / "step-000006"
    return {
        name: hashlib.sha256((final / name).read_bytes()).hexdigest()
        for name in ("model.safetensors", "trainer.tensors", "trainer.json")
    }


def rows(path: Path) -> list[dict]:
    """A log without what the clock said."""
    if path.name == "rollouts":
        return [{k: repr(getattr(v, "tolist", lambda v=v: v)()) for k, v in row.items() if k != "seconds"}
                for row in read_rows(path)]  # fmt: skip
    out = []
    for line in path.read_text().splitlines():
        row = {k: v for k, v in json.loads(line).items() if not k.startswith(("seconds/", "memory/", "eval/seconds"))}
        out.append(row)
    return out


MOMENTS = {"generate": 2, "update": 2, "save": 3}  # and the steps between checkpoints


# test_kill_points.py kills in each phase and at each write; here it is the whole command that dies and is called again.
OTHERS = pytest.param("qwen2", ("generate", "save"), marks=pytest.mark.slow)
LLAMA = pytest.param("llama", ("update",), marks=pytest.mark.slow)  # kills know nothing of a model's arrangement


@pytest.mark.parametrize(("arch", "moments"), [("qwen2", ("update",)), OTHERS, LLAMA])
def test_a_killed_run_resumes_to_the_same_bits(arch, moments, smallest, tmp_path, monkeypatch):
    fork_supervisors(monkeypatch)  # of the run that is not killed
    config = smallest(
        arch,
        steps=6,
        update={"epochs": 2, "updates_per_step": 2},
        checkpoint={"every": 2},
        evaluate={"every": 2},
        optimizer={"schedule": "cosine", "warmup_steps": 3},
        verify={"workers": 1},
    )
    whole = write_config(tmp_path / "whole.toml", {**config, "output": str(tmp_path / "whole")})
    train(whole)
    expected = digests(tmp_path / "whole")
    for moment in moments:
        every = MOMENTS[moment]
        folder = tmp_path / moment
        toml = write_config(
            tmp_path / f"{moment}.toml", {**config, "output": str(folder), "checkpoint": {"every": every}}
        )
        killed = python(KILLED, moment, toml)
        assert killed.returncode == -9, f"{moment}: it should have died\n{killed.stdout}{killed.stderr}"
        resumed = winnow("train", toml, "--resume")
        assert resumed.returncode == 0, resumed.stderr
        assert digests(folder) == expected, moment
        for log in ("metrics.jsonl", "rollouts"):
            assert rows(folder / log) == rows(tmp_path / "whole" / log), (moment, log)


def test_a_killed_run_with_a_sampler_resumes_to_the_same_bits(smallest, tmp_path):
    """Killed between two checkpoints, after the prompts were drawn: they are drawn again, from the same state."""
    sample = {"use": "replay", "cooldown": 1, "low": 0.0, "high": 1.0}
    config = smallest(steps=6, sample=sample, checkpoint={"every": 2})
    whole = write_config(tmp_path / "whole.toml", {**config, "output": str(tmp_path / "whole")})
    killed = write_config(tmp_path / "killed.toml", {**config, "output": str(tmp_path / "killed")})
    train(whole)
    assert python(KILLED, "generate", killed).returncode == -9
    train(killed, "--resume")
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    for log in ("metrics.jsonl", "rollouts"):
        assert rows(tmp_path / "killed" / log) == rows(tmp_path / "whole" / log), log


def test_the_written_configuration_is_the_one_meant(smallest, tmp_path):
    from winnow.config_file import load

    config = smallest()
    assert dump(load(write_config(tmp_path / "c.toml", config))) == dump(validate(config))
