"""The published runs: their files against values transcribed from the sources (tests/published), the table of the page
against the files, and `check` on folders without weights.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chat_templates import render_here
from winnow.commands import app
from winnow.config_file import load
from winnow.models.folder import settings_folder
from winnow.tasks.templates import PLAIN
from winnow.training.budget import budget
from winnow.training.resolve import resolve_members

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "configs" / "published"
CONFIGS = sorted(FOLDER.glob("*.toml"))
SOURCES = ROOT / "tests" / "published"


def flat(data, prefix=""):
    """{"reward.parts.0.weight": 1.0}: a list of tables by place, any other list as a value."""
    out = {}
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        tables_in = isinstance(value, list) and value and isinstance(value[0], dict)
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) or tables_in else {f"{prefix}{key}": value}
    return out


def read(path):
    return tomllib.loads(path.read_text(encoding="utf-8"))


WRITTEN = {path.stem: flat(read(path)) for path in CONFIGS}
TRANSCRIBED = [
    (run, value["key"], value["value"], f"{source['tag']}:{value['at']}".replace("second hand:", "second hand: "))
    for source in map(read, sorted(SOURCES.glob("*.toml")))
    for value in source.get("values", ())
    for run in value["runs"].split()
]
VARIANTS = {variant["run"]: variant for variant in read(SOURCES / "variants.toml")["variant"]}
BASES = sorted(set(WRITTEN) - set(VARIANTS))


OURS = {  # keys that no source has: choices of winnow
    "output",
    "prompt.system",
    "prompt.suffix",
    "rollout.max_rollouts_at_once",
    "update.tokens_per_micro_batch",
}
OURS_OF = {"blog_two_gpus": {"prompt.max_prompt_tokens", "rollout.engine.process"}, "pods_b": {"reward.grader"}}
OURS_OF |= {run: {"advantage.statistics"} for run in ("gvm_grpo_1.5b", "gvm_grpo_7b")}  # all are kept
PAGE = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")


def test_every_file_is_transcribed_or_a_variant_and_in_the_table_or_a_variant():
    assert {run for run, *_ in TRANSCRIBED} == set(BASES)
    assert sorted(name for row in table_of_runs() for name in re.findall("`(.*?)`", row[0])) == BASES
    assert set(VARIANTS) <= set(WRITTEN)
    assert len(TRANSCRIBED) > 300


def table_of_runs():
    table = PAGE[PAGE.index("| file | model |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


@pytest.mark.parametrize("row", table_of_runs(), ids=lambda row: row[0])
def test_a_row_of_the_page_has_the_numbers_of_its_files(row):
    for run in re.findall("`(.*?)`", row[0]):
        of = WRITTEN[run]
        kept, chunk = of.get("select.keep_per_prompt"), of.get("select.chunk")
        trained = "all" if kept is None else f"{kept}{f' of each {chunk}' if chunk else ''}"
        assert row[1:6] == [
            of["model.path"].split("/")[1],
            of["task.use"],
            f"{of['rollout.prompts_per_step']} x {of['rollout.rollouts_per_prompt']}",
            trained,
            str(of["rollout.max_new_tokens"]),
        ]
        assert float(row[6]) == of["optimizer.learning_rate"]
        if run not in PLANNED:
            continue
        memory, fits = PLANNED[run]
        assert row[7] == (memory.replace("GiB", " GiB") if fits else "8 x 80 GiB")


@pytest.mark.parametrize("run", BASES)
def test_a_file_has_the_values_that_were_transcribed_from_its_sources(run):
    """Each key has a value of a source, or is a choice of winnow."""
    known = set()
    for _, key, value, at in [row for row in TRANSCRIBED if row[0] == run]:
        assert WRITTEN[run][key] == value, f"{key} is {WRITTEN[run].get(key)!r}; {at} has {value!r}"
        known.add(key)
    ours = (OURS | OURS_OF.get(run, set())) & set(WRITTEN[run])
    assert set(WRITTEN[run]) - known == ours - known
    assert known & OURS_OF.get(run, set()) == set()


@pytest.mark.parametrize("run", VARIANTS)
def test_a_variant_differs_in_what_was_transcribed_and_in_nothing_else(run):
    variant = VARIANTS[run]
    changes = {value["key"]: value["value"] for value in variant["values"]}
    kept = {
        key: value
        for key, value in WRITTEN[variant["of"]].items()
        if not any(key == gone or key.startswith(f"{gone}.") for gone in variant["without"])
    }
    assert WRITTEN[run] == kept | changes | {"output": f"runs/{run}"}


def test_two_defaults_of_pods_d_and_e_are_those_of_the_pinned_trl():
    """Read at 1bca495, trl/trainer/grpo_config.py: line 234 has 0.9, line 245 has 50, line 346 has "bnpo"."""
    found = {(run, key): at for run, key, _, at in TRANSCRIBED}
    for run in ("pods_d", "pods_e"):
        assert WRITTEN[run]["rollout.temperature"] == 0.9
        assert WRITTEN[run]["weighting.use"] == "prompt"
        assert [found[run, key].partition(":")[0] for key in ("rollout.temperature", "weighting.use")] == ["TRL", "TRL"]


def test_validation_changes_no_key_of_a_file():
    assert [(path.stem, key) for path in CONFIGS for key in changed_by_validation(path)] == []


def changed_by_validation(path):
    """The keys of a file whose values are others after validation."""
    config = load(path)
    for key, value in flat(read(path)).items():
        at = config
        for name in key.replace("select.", "select.0.").split("."):
            at = at[int(name)] if name.isdigit() else getattr(at, name)
        if (list(at) if isinstance(at, tuple) else at) != value:
            yield key


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
        ("gvm_grpo_llama_3b_baseline", 1024, 8192, 8192, 4),
        ("pods_a_baseline", 1, 16, 16, 1),
        ("pods_e_baseline", 8, 4096, 4096, 1),
        ("blog_two_gpus", 16, 128, 128, 1),
        ("blog_two_gpus_code", 2, 16, 16, 1),
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
    "meta-llama/Llama-3.2-1B-Instruct": (2048, 16, 32, 8, 8192, 128256, 131072, True),
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


# Of the variants those with a model or a shape of a step that no other file has.
CHECKED = [
    *(path for path in CONFIGS if path.stem in BASES),
    *(FOLDER / f"{name}.toml" for name in ("gvm_grpo_llama_1b", "gvm_raft_plus_plus_llama_3b_baseline")),
]


@pytest.fixture(autouse=True)
def a_machine_with_unknown_free_memory(monkeypatch):
    """The free memory of the machine that runs this test must not affect the results."""
    for module in ("winnow.commands.check.dry_run", "winnow.memory.plan"):
        monkeypatch.setattr(f"{module}.free_on_device", lambda device: None)
    monkeypatch.setattr("winnow.commands.check.dry_run.check_installed", lambda members: None)  # nor must its packages
    monkeypatch.setattr("winnow.commands.check.dry_run.is_installed", lambda package: True)


def check(path, folder, *more):
    model = model_folder(load(path).model.path, folder)
    result = CliRunner().invoke(app, ["check", str(path), "--set", f"model.path={model}", *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result, " ".join(result.output.split())


# The memory of a device of another machine, and whether the run fits.
PLANNED = {
    "pods_a": ("48GiB", True),
    "pods_b": ("48GiB", True),
    "pods_c": ("48GiB", True),
    "pods_d": ("80GiB", True),
    "pods_e": ("80GiB", False),  # weights, masters, gradients and moments: 18 bytes for each of 7.6e9 parameters
    "gvm_raft_plus_plus_1.5b": ("80GiB", True),
    "gvm_grpo_7b": ("80GiB", False),
    "gvm_raft_plus_plus_llama_3b": ("80GiB", True),
    "blog_two_gpus": ("80GiB", True),
}


def one_of_each_prompt():
    """Of files with the same task, prompt and size of a step the first."""
    seen = {}
    for path in CHECKED:
        config = load(path)
        seen.setdefault(repr((config.task, config.prompt, config.rollout.prompts_per_step)), path)
    return list(seen.values())


WITH_PROBLEMS = one_of_each_prompt()


@pytest.mark.parametrize("path", CHECKED, ids=lambda path: path.stem)
def test_check_passes_from_settings_and_tokenizer_and_prints_the_memory(path, tmp_path, monkeypatch):
    """The first of each prompt with problems, and with the memory of another device where the run fits it."""
    render_here(monkeypatch)
    memory, fits = PLANNED.get(path.stem, ("", False))
    more = [*(["--memory", memory] if fits else []), *(problems(path, tmp_path) if path in WITH_PROBLEMS else [])]
    result, printed = check(path, tmp_path, *more)
    assert result.exit_code == 0, result.output
    assert "memory cuda" in printed
    kept = re.findall(r"\d+", re.search(r" kept (\d.*?) updates ", printed)[1])
    assert (kept == ["128", "32", "128", "1024"]) is (path.stem in ("pods_d", "pods_e"))
    assert len(re.findall(r"[\d.]+ GiB", printed)) >= 2, printed  # at all times, and in an update
    if path in WITH_PROBLEMS:
        config = load(path)
        first = config.prompt.system or PLAIN["r1_zero"]
        assert " ".join(first.split()[:8]) in printed.replace("| ", "")


def problems(path, folder):
    """As many problems as a step needs, and the held-out tenth, in files that the returned options name. Their golds
    are tried in this process: another one for them costs more than the rest.
    """
    count = load(path).rollout.prompts_per_step
    lines = []
    for i in range(3 * count // 2 + 40):
        asked = {"question": f"{i} + 1?", "problem": f"{i} + 1?"}
        lines.append(json.dumps({**asked, "answer": f"#### {i + 1}", "solution": rf"\boxed{{{i + 1}}}"}) + "\n")
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("".join(lines))
    names = ("path", *({"test_path"} & load(path).task.options.keys()))
    sets = ("verify.workers=0", *(f"task.{name}={folder}" for name in names))
    return [word for text in sets for word in ("--set", text)]


FITTING = {path.stem for path in CHECKED if PLANNED.get(path.stem, ("", False))[1]}  # checked with the memory above


@pytest.mark.parametrize("name", sorted(set(PLANNED) - FITTING))
def test_check_plans_for_a_device_of_another_machine(name, tmp_path):
    memory, fits = PLANNED[name]
    result, printed = check(FOLDER / f"{name}.toml", tmp_path, "--memory", memory)
    assert result.exit_code == (0 if fits else 2), printed
