"""Labels and keys of the configurations that a sweep file describes."""

from __future__ import annotations

import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow_lab.sweep.file import configurations, read_sweep_file

HEAD = 'config = "base.toml"\noutput = "out"\n'


def labelled(tmp_path, text):
    path = tmp_path / "sweep.toml"
    path.write_text(HEAD + text)
    return configurations(*((read := read_sweep_file(path))[0], path, read[1]))


def test_a_grid_has_every_combination_labelled_by_differing_values(tmp_path):
    found = labelled(
        tmp_path,
        '[set]\nsteps = 4\n[grid]\n"select.keep_per_prompt" = [4, 8]\noptimizer.learning_rate = [1e-4, 1e-5]\n'
        '"rollout.temperature" = [1.0]\n',
    )

    assert list(found) == [
        "keep_per_prompt=4,learning_rate=0.0001",
        "keep_per_prompt=4,learning_rate=1e-05",
        "keep_per_prompt=8,learning_rate=0.0001",
        "keep_per_prompt=8,learning_rate=1e-05",
    ]
    assert found["keep_per_prompt=8,learning_rate=0.0001"] == {
        "steps": 4,
        "select.keep_per_prompt": 8,
        "optimizer.learning_rate": 1e-4,
        "rollout.temperature": 1.0,
    }


def test_every_variant_is_combined_with_the_grid_and_members_are_values(tmp_path):
    found = labelled(
        tmp_path,
        '[grid]\nsteps = [2, 3]\n[variants.grpo]\nselect = "all"\n[variants.pods]\n'
        'select = { use = "max_variance", keep_per_prompt = 4 }\noptimizer = { eps = 1e-3 }\n',
    )

    assert list(found) == ["grpo,steps=2", "grpo,steps=3", "pods,steps=2", "pods,steps=3"]
    assert found["grpo,steps=3"] == {"select": "all", "steps": 3}
    assert found["pods,steps=2"] == {
        "select": {"use": "max_variance", "keep_per_prompt": 4},
        "optimizer.eps": 1e-3,
        "steps": 2,
    }


def test_a_variant_may_set_a_key_of_every_run_differently(tmp_path):
    found = labelled(
        tmp_path,
        '[set]\nsteps = 4\n"select.chunk" = 4\n"loss.clip" = 0.1\n[variants.long]\nsteps = 9\n'
        '[variants.all]\nselect = "all"\n[variants.wide]\nloss = { clip = 0.3 }\n',
    )
    assert found == {
        "long": {"select.chunk": 4, "loss.clip": 0.1, "steps": 9},
        "all": {"steps": 4, "loss.clip": 0.1, "select": "all"},
        "wide": {"steps": 4, "select.chunk": 4, "loss.clip": 0.3},
    }


@pytest.mark.parametrize(
    ("grid", "labels"),
    [
        ('"evaluate.every" = [1, 2]\n"checkpoint.every" = [5, 6]', "evaluate.every=1,checkpoint.every=5"),
        ('"model.path" = ["Qwen/Qwen2.5-1.5B", "my models/x"]', "path=Qwen2.5-1.5B path=x"),
        ('"task.levels" = [[2], [2, 3]]', "levels=2 levels=2+3"),
        ("deterministic = [true, false]", "deterministic=true deterministic=false"),
        ('"prompt.suffix" = [" say it"]', "suffix=-say-it"),
    ],
)
def test_a_label_is_valid_as_a_folder_s_name(tmp_path, grid, labels):
    assert list(labelled(tmp_path, f"[grid]\n{grid}"))[: labels.count(" ") + 1] == labels.split(" ")


def test_a_sweep_of_seeds_alone_has_the_configuration_s_name(tmp_path):
    assert labelled(tmp_path, "seeds = [3, 1]") == {"base": {}}


@pytest.mark.parametrize(
    ("text", "line", "key", "code", "names"),
    [
        ("[grid]\n", None, "grid", "config.value", ()),
        ("[grid]\nsteps = []", 4, "steps", "config.value", ("[]",)),
        ("[grid]\nsteps = 4", 4, "steps", "config.value", (4,)),
        ('[grid]\nloss = [{ use = "clip" }]', 4, "loss", "config.value", ("variants.LABEL",)),
        ("[set]\nsteps = 4\n[grid]\nsteps = [4]", 6, "steps", "config.duplicate", ("[grid]", "[set]")),
        (
            '[set]\n"select.chunk" = 4\n[grid]\nselect = ["all", "random"]',
            *(6, "select", "config.duplicate", ("[grid]", "select.chunk", "[set]")),
        ),
        ("[variants.a]\nsteps = 4\n[grid]\nsteps = [4]", 6, "steps", "config.duplicate", ("[grid]", "[variants.a]")),
        (
            '[set]\n"rollout.prompts_per_step" = 8\nrollout = { prompts_per_step = 4 }',
            *(4, "rollout.prompts_per_step", "config.duplicate", ("[set]",)),
        ),
        ('[grid]\n"loss.a" = [8]\nloss = { a = [4] }', 4, "loss.a", "config.duplicate", ("[grid]",)),
        ('[set]\n"select.chunk" = 4\nselect = "all"', 5, "select", "config.duplicate", ("[set]", "select.chunk")),
        ("[set]\nseed = 1", 4, "seed", "config.unknown_key", ("[set]", "seeds")),
        ('[grid]\noutput = ["a"]', 4, "output", "config.unknown_key", ("[grid]",)),
        ("seeds = [1, 2, 1]", 3, "seeds", "config.duplicate", (1,)),
        ("seeds = []", 3, "seeds", "config.value", ("()",)),
        ("sedes = [1]", 3, "sedes", "config.unknown_key", ("'seeds'",)),
        ("steps = 4", 3, "steps", "config.unknown_key", ("[set]",)),
        ("at_once = 0", 3, "at_once", "config.value", (0,)),
        ("gpus_per_run = 1.0", 3, "gpus_per_run", "config.no_effect", ("ray",)),
        ('baseline = "gpro"\n[variants.grpo]', 3, "baseline", "config.unknown_name", ("gpro", "'grpo'")),
        ("[variants]", None, "variants", "config.value", ()),
        ("[variants.a]\n[variants.A]", None, "variants", "config.duplicate", ("a",)),
        ('[grid]\n"model.path" = ["a/x", "b/x"]', None, "variants", "config.duplicate", ("path=x",)),
        ('[variants."../up"]', None, "variants", "config.value", ("../up",)),
        ('[variants.".hidden"]', None, "variants", "config.value", (".hidden",)),
        ('[variants."sweep.json"]', None, "variants", "config.value", ("sweep.json",)),
    ],
)
def test_a_mistake_is_refused_with_its_line_and_key(tmp_path, text, line, key, code, names):
    place = tmp_path / "sweep.toml" if line is None else f"sweep.toml, line {line}"
    with refused(ConfigError, place, *names, key=key, code=code):
        labelled(tmp_path, text)


@pytest.mark.parametrize("text", ["steps = 4\n", 'task = "arithmetic"\noutput = "runs/a"\n', "[task]\nsize = 64\n"])
def test_the_configuration_of_a_run_is_called_one_and_its_command_is_named(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with refused(ConfigError, str(path), key="config", code="config.missing_key") as caught:
        read_sweep_file(path)
    assert f"winnow train {path}" in caught.value.remedy


def test_a_sweep_file_without_its_configuration_is_still_one(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text('steps = 4\noutput = "out"\nseeds = [0]\n')
    with refused(ConfigError, "'config' is missing", code="config.missing_key") as caught:
        read_sweep_file(path)
    assert "winnow train" not in str(caught.value)
