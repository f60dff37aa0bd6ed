"""The published runs: their files against the numbers in docs/published.md, and `check` on folders without weights."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from winnow.cli import app
from winnow.config_file import load
from winnow.models.model_folder import settings_folder
from winnow.tasks.templates import PLAIN
from winnow.training.budget import budget
from winnow.training.resolve import resolve_members

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "configs" / "published"
CONFIGS = sorted(FOLDER.glob("*.toml"))
NAMES = {
    **{f"pods_{letter}": letter for letter in "abcde"},
    **{f"gvm_{method}_{size}": f"{method}_{size}" for method in ("raft_plus_plus", "grpo") for size in ("1.5b", "7b")},
    "blog_two_gpus": "blog_two_gpus",
}
each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


def tables(page):
    """{column: {key: (cell, source)}} of every table whose first column is `key`."""
    found, seen = {}, set()
    for block in re.findall(r"(?m)^\| key \|.*\n(?:\|.*\n)+", page):
        head, _, *rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in block.splitlines()]
        for row in rows:
            assert len(row) == len(head), row
            for column, cell in zip(head[1:-1], row[1:-1], strict=True):
                key = row[0].strip("`")
                assert (column, key) not in seen, f"{key} stands twice"
                seen.add((column, key))
                if cell != "–":
                    found.setdefault(column, {})[key] = (cell, row[-1])
    return found


PUBLISHED = tables((ROOT / "docs" / "published.md").read_text(encoding="utf-8"))


def flat(data, prefix=""):
    """{"reward.parts.0.weight": 1.0}: a list of tables by place, any other list as a value."""
    out = {}
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        tables_in = isinstance(value, list) and value and isinstance(value[0], dict)
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) or tables_in else {f"{prefix}{key}": value}
    return out


def test_every_file_has_a_column_and_every_column_a_file():
    assert {path.stem for path in CONFIGS} == set(NAMES)
    assert set(PUBLISHED) == set(NAMES.values())


@each_config
def test_a_file_says_what_was_published_and_nothing_else(path):
    written, published = flat(tomllib.loads(path.read_text(encoding="utf-8"))), PUBLISHED[NAMES[path.stem]]
    assert set(written) == set(published)
    for key, (cell, source) in published.items():
        assert source, f"{key} has no source"
        if not cell.startswith("_"):  # in our own words
            expected = tomllib.loads(f"value = {cell}")["value"]
            assert written[key] == expected, f"{key} is {written[key]!r}, {source} has {expected!r}"


@each_config
def test_a_file_comes_out_as_it_is_written(path):
    """What validation makes of it: no key is lost, none is another."""
    written = flat(tomllib.loads(path.read_text(encoding="utf-8")))
    config = load(path)
    for key, value in written.items():
        at = config
        for name in key.replace("select.", "select.0.").split("."):
            at = at[int(name)] if name.isdigit() else getattr(at, name)
        assert (list(at) if isinstance(at, tuple) else at) == value, key


@pytest.mark.parametrize(
    ("name", "prompts", "rollouts", "trained", "updates"),
    [
        ("pods_a", 1, 64, 16, 1),
        ("pods_b", 1, 32, 8, 1),
        ("pods_c", 1, 64, 16, 1),
        ("pods_d", 8, 4096, 1024, 1),
        ("pods_e", 8, 4096, 1024, 1),
        ("gvm_raft_plus_plus_7b", 1024, 8192, 8192, 32),
        ("gvm_grpo_1.5b", 1024, 8192, 8192, 32),
        ("blog_two_gpus", 2, 16, 16, 1),
    ],
)
def test_a_step_is_as_large_as_published(name, prompts, rollouts, trained, updates):
    path = FOLDER / f"{name}.toml"
    counts = budget(resolve_members(load(path), base=path.parent))
    assert (counts.prompts, counts.rollouts, counts.prompts * counts.kept, counts.updates) == (
        prompts, rollouts, trained, updates,
    )  # fmt: skip


# check, from config.json and a tokenizer ------------------------------------------------------------------------------

# Of the published config.json: hidden size, layers, heads, key-value heads, inner size, vocabulary, context, tied.
SHAPES = {
    "Qwen/Qwen2.5-3B-Instruct": (2048, 36, 16, 2, 11008, 151936, 32768, True),
    "Qwen/Qwen2.5-7B-Instruct": (3584, 28, 28, 4, 18944, 152064, 32768, False),
    "Qwen/Qwen2.5-Math-1.5B": (1536, 28, 12, 2, 8960, 151936, 4096, True),
    "Qwen/Qwen2.5-Math-7B": (3584, 28, 28, 4, 18944, 152064, 4096, False),
    "meta-llama/Llama-3.2-3B-Instruct": (3072, 28, 24, 8, 8192, 128256, 131072, True),
}


def model_folder(name, folder):
    """The published shape, and the bundled tokenizer with a chat template as Qwen2.5 has it."""
    hidden, layers, heads, groups, inner, vocabulary, context, tied = SHAPES[name]
    llama = name.startswith("meta-llama")
    settings = {
        "architectures": ["LlamaForCausalLM" if llama else "Qwen2ForCausalLM"],
        "model_type": "llama" if llama else "qwen2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(settings))
    bundled = settings_folder("bundled")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled / file, folder / file)
    shutil.copy(ROOT / "tests" / "fixtures" / "chat_templates" / "qwen2_5.jinja", folder / "chat_template.jinja")
    return folder


@pytest.fixture(autouse=True)
def a_machine_that_does_not_say_what_is_free(monkeypatch):
    """What the machine that runs this test has left is no matter of the configurations."""
    for module in ("winnow.commands.dry_run", "winnow.memory.plan"):
        monkeypatch.setattr(f"{module}.free", lambda device: None)


def check(path, folder, *more):
    model = model_folder(load(path).model.path, folder)
    result = CliRunner().invoke(app, ["check", str(path), "--set", f"model.path={model}", *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result, " ".join(result.output.split())


@each_config
def test_check_passes_from_settings_and_tokenizer_and_prints_the_memory(path, tmp_path):
    result, said = check(path, tmp_path)
    assert result.exit_code == 0, result.output
    assert "memory cuda" in said
    assert ("128 per prompt, 32 of each 128 = 1024 rows" in said) is (path.stem in ("pods_d", "pods_e"))
    assert re.search(r"at all times [\d.]+ GiB: .*in an update", said), said


@each_config
def test_check_renders_the_prompt_where_problems_are_here(path, tmp_path):
    """As many problems as a step asks for; the held-out tenth comes on top."""
    count = load(path).rollout.prompts_per_step
    lines = [json.dumps({"question": f"{i} + 1?", "problem": f"{i} + 1?", "answer": f"#### {i + 1}"}) + "\n"
             for i in range(2 * count + 40)]  # fmt: skip
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    result, said = check(path, tmp_path, "--set", f"task.path={tmp_path}")
    assert result.exit_code == 0, result.output
    config = load(path)
    first = config.prompt.system or PLAIN["r1_zero"]
    assert " ".join(first.split()[:8]) in said.replace("| ", "")


@pytest.mark.parametrize(
    ("name", "memory", "fits"),
    [
        ("pods_a", "48GiB", True),
        ("pods_b", "48GiB", True),
        ("pods_c", "48GiB", True),
        ("pods_d", "80GiB", True),
        ("pods_e", "80GiB", False),  # weights, masters, gradients and moments: 18 bytes for each of 7.6e9 parameters
        ("gvm_raft_plus_plus_1.5b", "80GiB", True),
        ("gvm_grpo_7b", "80GiB", False),
        ("blog_two_gpus", "80GiB", True),
    ],
)
def test_check_says_what_fits_into_a_device_that_is_not_here(name, memory, fits, tmp_path):
    result, said = check(FOLDER / f"{name}.toml", tmp_path, "--memory", memory)
    assert result.exit_code == (0 if fits else 2), said
    assert ("the run does not fit" in said) is not fits
