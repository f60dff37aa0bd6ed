"""An installed package brings members: an entry point of the group "winnow" names a module that registers them.

One process, a fork, has nine packages, most of them broken in their own way; it lists, trains for a step, and fails.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import forked

MEMBERS = '''
"""A member of five families; each writes down in which process it was called."""
import os
from winnow import Problem, register
from winnow.engines.scripted import Scripted

def called(member):
    with open(os.environ["CALLED"], "a") as file:
        file.write(f"{member} {os.getpid()}\\n")

@register("task")
def sums(split, *, size: int = 4):
    """Sums of two digits."""
    called("task")
    first = {"train": 0, "validation": 100, "test": 200}[split]
    numbers = range(first, first + size)
    return [Problem(id=f"sum{n}", question=f"{n} + 1", answer=str(n + 1), task="sums") for n in numbers]

@register("reward", example=str)
def digits(prompt, rollout):
    """The share of characters that are digits."""
    called("reward")
    return sum(c.isdigit() for c in rollout.text) / max(1, len(rollout.text))

@register("selector", size="varies")
def uneven(group, rng):
    """The rollouts that are better or worse than the mean."""
    called("selector")
    return group.rewards != group.rewards.mean()

@register("loss", aliases={"plain_gradient": {"advantage": "grpo"}}, policy_gradient=True)
def plain(out, mb, *, scale: float = 1.0):
    """The policy gradient."""
    called("loss")
    return -scale * mb.advantages * out.logprobs, {}

@register("engine")
def writes(context):
    """Rollouts that are written, not sampled."""
    called("engine")
    return Scripted(context, lambda prompt, index: "1a2b3c"[: index + 1])
'''
ONE = """
import winnow

@winnow.register("{family}")
def {name}({arguments}):
    \"\"\"Another.\"\"\"
    return 1.0
"""
PACKAGES = {
    "early": ONE.format(family="reward", name="early", arguments="prompt, rollout"),
    "asks": 'from winnow.registry import resolve\nresolve("loss", "later")\n',
    "broken": (
        'import os\nwith open(os.environ["RUNS"], "a") as file:\n    file.write(f"{os.getpid()}\\n")\n'
        "import a_module_that_nobody_has\n"
    ),
    "leaves": "raise SystemExit(3)\n",
    "misspelt": 'import winnow\nwinnow.register("loss", policy_gradent=True)\n',
    "mypkg": MEMBERS,
    "starts": 'import winnow\nwinnow.train(steps=1, output="runs/never")\n',
    "taken": ONE.format(family="loss", name="plain", arguments="out, mb"),
    "winnows": ONE.format(family="allocator", name="uniform", arguments="stats, budget"),
}
CONFIG = """
steps = 1
device = "cpu"
threads = 1
output = "run"
loss = { use = "plain_gradient", scale = 2.0 }
select = "uneven"
reward = "digits"
task = "sums"
rollout = { engine = "writes", prompts_per_step = 2, rollouts_per_prompt = 4, max_new_tokens = 8 }
evaluate = { problems = 2, rollouts_per_prompt = 2 }
verify = { workers = 1 }
"""
SCRIPT = """
import json, os, sys
sys.path.insert(0, os.environ["SITE"])
import early.members  # by the script itself, before winnow looks for packages
from typer.testing import CliRunner
from winnow.commands import app
from winnow.commands.list import catalog
from winnow.errors import WinnowError

def run(*arguments):
    result = CliRunner().invoke(app, arguments)
    return result.output + str(result.exception or "")

def refusal(*arguments):
    error = CliRunner().invoke(app, arguments).exception
    while not isinstance(error, WinnowError):
        error = error.__context__
    return {"code": error.code, "problem": error.problem, "remedy": error.remedy}

print(json.dumps({
    "pid": os.getpid(),
    "allocators": run("list", "allocators"),
    "losses": run("list", "losses"),
    "rewards": run("list", "rewards"),
    "train": run("train", "config.toml"),
    "own": list(catalog("losses", own=True)),
    "unknown": refusal("check", "config.toml", "--set", "loss=palin"),
}))
"""


def install(site: Path, name: str, text: str) -> None:
    """What pip leaves behind: the package, and its metadata beside it."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").touch()
    (site / name / "members.py").write_text(text)
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[winnow]\n{name} = {name}.members\n")
    files = (f"{name}/__init__.py", f"{name}/members.py", f"{metadata.name}/METADATA", f"{metadata.name}/RECORD")
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{metadata.name}/entry_points.txt")))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process with these packages prints, and in which processes their members were called."""
    folder = tmp_path_factory.mktemp("installed")
    for name, text in PACKAGES.items():
        install(folder / "site", name, text)
    (folder / "config.toml").write_text(CONFIG)
    (folder / "script.py").write_text(SCRIPT)
    site = str(folder / "site")
    path = os.pathsep.join([site, str(Path(__file__).parents[2] / "src")])  # of the worker, a whole interpreter
    environment = {"SITE": site, "PYTHONPATH": path, "COLUMNS": "1000"}
    environment |= {"CALLED": str(folder / "called"), "RUNS": str(folder / "runs_of_broken")}
    done = forked.python(folder / "script.py", cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    calls = [line.split() for line in (folder / "called").read_text().splitlines()]
    manifest = json.loads((folder / "run" / "manifest.json").read_text())
    return {**said, "called": {(member, int(pid)) for member, pid in calls}, "manifest": manifest, "folder": folder}


def blocks(printed, head):
    """What a list prints of each member with this first line."""
    return re.findall(rf"^{re.escape(head)}\n((?:    .*\n)*)", printed, flags=re.MULTILINE)


def test_a_member_is_listed_with_the_package_that_it_is_from(seen):
    (plain,) = blocks(seen["losses"], "plain(scale = 1.0)")
    (digits,) = blocks(seen["rewards"], "digits()")
    assert all(text in plain for text in ("plain_gradient", "mypkg 1.0", "The policy gradient."))
    assert all(text in digits for text in ("mypkg 1.0", "The share of characters that are digits."))
    assert "    from winnow" not in seen["losses"]


def test_the_reference_page_has_winnows_own_whatever_is_installed(seen):
    names = [block.partition("(")[0] for block in seen["own"]]
    assert "clip" in names
    assert "plain" not in names
    assert not any("note:" in block for block in seen["own"])


def test_a_package_that_a_script_imported_itself_is_named_all_the_same(seen):
    assert "early 1.0" in blocks(seen["rewards"], "early()")[0]


def test_a_run_uses_members_by_their_names_and_judges_in_a_worker(seen):
    assert (seen["folder"] / "run" / "checkpoints" / "step-000001").is_dir(), seen["train"]
    assert {member for member, pid in seen["called"] if pid == seen["pid"]} == {"task", "selector", "loss", "engine"}
    (judge,) = {pid for member, pid in seen["called"] if member == "reward"}
    assert judge != seen["pid"]


def test_a_manifest_has_the_version_of_a_package_whose_members_it_used(seen):
    versions = seen["manifest"]["versions"]
    assert versions["mypkg"] == "1.0"
    assert "early" not in versions


def test_a_package_runs_once_per_process_also_where_another_resolves_a_name_while_it_is_imported(seen):
    processes = (seen["folder"] / "runs_of_broken").read_text().split()
    assert str(seen["pid"]) in processes
    assert len(set(processes)) == len(processes)


UNFIT = {  # what the error of each package contains: its type, then the names that it is about
    "asks": ("ConfigError", "'later'"),
    "broken": ("ModuleNotFoundError", "a_module_that_nobody_has"),
    "leaves": ("SystemExit", "3"),
    "misspelt": ("ConfigError", "policy_gradent", "policy_gradient"),
    "starts": ("ConfigError", "starts 1.0", "__main__"),
    "taken": ("ConfigError", "plain", "mypkg 1.0"),
    "winnows": ("ConfigError", "uniform", "winnow"),
}


@pytest.mark.parametrize("package", UNFIT)
def test_an_unfit_package_is_named_where_a_member_may_be_missing(seen, package):
    assert seen["unknown"]["code"] == "config.unknown_member"
    for printed in (seen["losses"], seen["rewards"], seen["unknown"]["problem"] + seen["unknown"]["remedy"]):
        about = printed.partition(f"{package} 1.0 ({package}.members)")[2].partition(" 1.0 (")[0]
        assert [name for name in UNFIT[package] if name not in about] == []


def test_the_first_package_keeps_a_name_and_winnow_keeps_its_own(seen):
    assert "Another." not in seen["losses"]
    assert "Another." not in seen["allocators"]
    assert not (seen["folder"] / "runs").exists()
