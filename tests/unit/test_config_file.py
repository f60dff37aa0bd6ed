"""Run-level keys: accepted values, and the parts of an error about a mistake."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from refusals import refused
from winnow.config import AdapterCritic, Config, ModelCritic, SharedCritic, dump, key_of, leaves
from winnow.config_file import load, read_toml, validate
from winnow.config_keys import format_toml
from winnow.errors import ConfigError, accepted_value
from winnow.recipes import recipe_paths
from winnow.training.resolve import resolve_file, resolve_members


def write(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_a_misspelt_key_names_file_line_and_remedy(tmp_path):
    path = write(tmp_path, "steps = 3\n\n[optimizer]\nlearing_rate = 1e-4\n")
    with refused(ConfigError, f"{path}, line 4", key="optimizer.learing_rate", code="config.unknown_key") as caught:
        load(path)
    assert "'learning_rate'" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "sets", "place", "key", "remedy"),
    [
        ('steps = 3\n[loss]\nuse = "clip"\nclip_hgih = 0.3', [], "{}, line 4", "loss.clip_hgih", "'clip_high'"),
        (
            'steps = 3\nselect = { use = "random", keep_per_prompt = 0 }',
            [],
            "{}, line 2",
            "select.keep_per_prompt",
            "1",
        ),
        ('loss = "clip"', ["loss.clip_high=true"], "--set loss.clip_high=true", "loss.clip_high", "number"),
        ('loss = "clip"', ["loss.epsilon=3"], "--set loss.epsilon=3", "loss.epsilon", "'loss.clip_low'"),
        ('loss = "reinforce"', ["loss.epsilon=3"], "--set loss.epsilon=3", "loss.epsilon", "remove"),
        ("", ["select.num_generations=3"], "--set select.num_generations=3", "select.num_generations", "rollouts_per_"),
        ('\n[cut]\nuse = "token_budget"', [], "{}, line 2", "cut.tokens", "'token_budget'"),
        ('\n[cut]\nuse = "token_bugdet"', [], "{}, line 2", "cut", "'token_budget'"),
        ('[rounds]\nuse = "pilot_commit"\nlow = 0.8', ["rounds.high=0.5"], "{}, line 3", "rounds.low", "pilot_commit"),
        ('allocate = { use = "gvm", minimum = 3, maximum = 2 }', [], "{}, line 1", "allocate.minimum", "gvm"),
        ("allocate.use = 'knapsack'", ["allocate.beta=2"], "--set allocate.beta=2", "allocate.beta", "prior"),
        ("", ["sample={use='replay', low=0.8}"], "--set sample={{use='replay', low=0.8}}", "sample.low", "replay"),
    ],
)
def test_a_mistake_in_an_option_names_its_place_key_and_remedy(tmp_path, text, sets, place, key, remedy):
    path = write(tmp_path, text)
    with refused(ConfigError, place.format(path), key=key) as caught:
        resolve_file(path, sets)
    assert str(caught.value).startswith(place.format(path))
    assert remedy in caught.value.remedy


def test_every_mistake_in_the_options_of_a_member_is_named_with_its_line(tmp_path):
    path = write(tmp_path, '[loss]\nuse = "clip"\nclip_low = -1\ndaul = 3\nclip_high = "0.3"\n')
    with refused(ConfigError) as caught:
        resolve_file(path)
    lines = str(caught.value).splitlines()
    named = {"loss.clip_low": 3, "loss.daul": 4, "loss.clip_high": 5}
    assert len(lines) == len(named)
    for key, number in named.items():
        assert [line for line in lines if key in line and line.startswith(f"{path}, line {number}: ")]


def test_a_byte_order_mark_changes_neither_values_nor_lines(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b'\xef\xbb\xbfsteps = 3\r\noutput = "\xc3\xa9"\r\n')
    config = load(path)
    assert (config.steps, config.output) == (3, "é")
    assert read_toml(path)[1].startswith("steps")
    for first, place, key in ((b"stepz = 3\n", 1, "stepz"), (b"[optimizer]\nlearing_rate = 1\n", 2, None)):
        path.write_bytes(b"\xef\xbb\xbf" + first)
        with refused(ConfigError, f"{path}, line {place}", key=key, code="config.unknown_key"):
            load(path)
    path.write_bytes(b"\xef\xbb\xbfsteps = \xff\n")
    with refused(ConfigError, "byte 11", code="config.unreadable"):
        load(path)


def test_a_key_under_its_earlier_name_leads_to_the_new_one(tmp_path):
    path = write(tmp_path, "[rollout]\nrefill_rounds = 2\n")
    for place, text, sets in (
        (f"{path}, line 2", path.read_text(), []),
        ("--set rollout.refill_rounds=2", "", ["rollout.refill_rounds=2"]),
    ):
        with refused(ConfigError, place, key="rollout.refill_rounds", code="config.unknown_key") as caught:
            load(write(tmp_path, text), sets)
        assert "'dynamic_sampling_rounds'" in caught.value.remedy


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("learning_rate=1e-4", "optimizer.learning_rate"),  # a key of another table
        ("rollout.learning_rate=1e-4", "optimizer.learning_rate"),
        ("lr=1e-4", "optimizer.learning_rate"),
        ("optimizer={lr=1e-4}", "optimizer.learning_rate"),
        ("num_generations=8", "rollout.rollouts_per_prompt"),  # TRL
        ("actor_rollout_ref.rollout.n=8", "rollout.rollouts_per_prompt"),  # verl
        ("actor_rollout_ref={actor={optim={lr=1e-6}}}", "optimizer.learning_rate"),
        ("actor_rollout_ref.actor.clip_ratio_high=0.28", "loss.clip_high"),
        ("critic.optimizer.lr=1e-5", "critic.optimizer.learning_rate"),  # the value model's, not the policy's
        ("critic={optim={lr=1e-5}}", "critic.optimizer.learning_rate"),
        ("evaluate.num_generations=4", "evaluate.rollouts_per_prompt"),
        ("optimizer.epsilon=1e-8", "'eps'"),
        ("model.lora=true", "model.lora = {}"),
        ("rollout.temperature=0", "evaluate.greedy"),
        ("evaluate.temperature=0.0", "evaluate.greedy"),
    ],
)
def test_a_near_miss_names_the_key_that_is_meant(tmp_path, written, meant):
    with refused(ConfigError, f"--set {written}") as caught:
        load(write(tmp_path, "steps = 3\n"), [written])
    assert meant in caught.value.remedy
    assert caught.value.key is not None


def test_a_key_that_several_tables_have_is_not_guessed(tmp_path):
    keys = ("evaluate.every", "checkpoint.every", "probe.every", "log.every")
    with refused(ConfigError, *keys, key="every", code="config.unknown_key"):
        load(write(tmp_path, "every = 3\n"))


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("path = Qwen/Qwen2.5-0.5B # mine", 'path = "Qwen/Qwen2.5-0.5B"'),
        ("path = bundled", 'path = "bundled"'),
        ("tf32 = True", "tf32 = true"),
    ],
)
def test_the_remedy_for_text_without_quotes_has_the_quotes(tmp_path, line, remedy):
    with refused(ConfigError, "line 3", code="config.unreadable") as caught:
        load(write(tmp_path, f"steps = 3\n[model]\n{line}\n"))
    assert remedy in caught.value.remedy


def test_a_wrong_type_names_file_line_and_value(tmp_path):
    path = write(tmp_path, '[rollout]\nprompts_per_step = "many"\n')
    with refused(ConfigError, "line 2", "many", "integer", key="rollout.prompts_per_step", code="config.value"):
        load(path)


def test_every_mistake_is_reported_at_once(tmp_path):
    path = write(tmp_path, "stepz = 3\n[model]\ndtype = 'float8'\n")
    with refused(ConfigError, "stepz", "float8", "line 1", "line 3", key="model.dtype", code="config.value") as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 2


def test_an_error_about_a_key_that_the_file_lacks_names_no_line(tmp_path):
    path = write(tmp_path, "seed = 3\n[rollout]\nahead = 1\n")
    with refused(ConfigError, key="correction", code="config.combination") as caught:
        resolve_file(path)
    assert str(caught.value).startswith(f"{path}: rollout.ahead = 1: ")


def test_broken_toml_names_the_place(tmp_path):
    with refused(ConfigError, "run.toml", "line 1", code="config.unreadable"):
        load(write(tmp_path, "steps = = 3\n"))


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (
            '[[terms]]\nuse = "kl"\ncoefficient = 1.0\n[[terms]]\nuse = "kl"\ncoefficient = "x"',
            6,
            "terms.1.coefficient",
        ),
        (
            '[[terms]]\nuse = "kl"\ncoefficient = 1.0\n[[terms]]\nuse = "kl"\ncoefficient = 1.0\nestimator = 3',
            7,
            "terms.1.estimator",
        ),
        ('select = [\n  "all",\n  { use = "all", chunk = "x" },\n]', 1, "select.1.chunk"),
        ("# a\u2028b\x85c\nsteps = -1", 2, "steps"),
        (
            '[prompt]\nsystem = """\nmax_prompt_tokens = 3\n[a]\n"""\nmax_prompt_tokens = -1',
            6,
            "prompt.max_prompt_tokens",
        ),
        ("[optimizer]\n'eps' = -1.0", 2, "optimizer.eps"),
        ('[[select]]\nuse = "all"\n[optimizer]\neps = -1.0', 4, "optimizer.eps"),
        ("optimizer = { betas = [\n0.9, 0.95], eps = -1.0 }", 1, "optimizer.eps"),
    ],
)
def test_the_line_of_a_key_is_that_of_any_form_of_toml(tmp_path, text, line, key):
    config = write(tmp_path, text)
    with refused(ConfigError, f"{config}, line {line}", key=key):
        resolve_file(config)


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        ('[loss]\nuse = "clip"\nclip_high = inf', "loss.clip_high", "number"),
        ('[[select]]\nuse = "mine.py:f"\nsince = 2026-01-01', "select", "quotes"),
    ],
)
def test_a_value_that_no_manifest_can_have_is_refused_before_a_run(tmp_path, text, key, remedy):
    with refused(ConfigError, key, key=key, code="config.value") as caught:
        load(write(tmp_path, text))
    assert remedy in caught.value.remedy


def test_a_missing_file_is_called_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(ConfigError, f"no file {tmp_path / 'nowhere.toml'}", code="config.unreadable"):
        load(tmp_path / "nowhere.toml")
    with refused(ConfigError, "no file a/nowhere.toml", tmp_path, code="config.unreadable"):
        load(Path("a/nowhere.toml"))


def test_a_file_with_a_similar_name_is_meant(tmp_path):
    own = write(tmp_path, "steps = 3\n")
    with refused(ConfigError, code="config.unreadable") as caught:
        load(own.with_name(f"{own.stem}s.toml"))
    (meant,) = re.findall("'(.*)'", caught.value.remedy)
    assert load(Path(meant)).steps == 3


def test_a_folder_is_called_a_folder_and_the_remedy_works(tmp_path):
    (tmp_path / "config.toml").write_text("steps = 3\n")
    with refused(ConfigError, f"{tmp_path} is a folder", code="config.unreadable") as caught:
        load(tmp_path)
    (meant,) = re.findall("'(.*)'", caught.value.remedy)
    assert load(Path(meant)).steps == 3


def test_a_template_s_file_in_an_override_starts_from_the_working_directory_even_if_it_is_missing(
    tmp_path, monkeypatch
):
    """The folder of the configuration, for a recipe one in the package, is not searched."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "run.toml").write_text("")
    config = load(tmp_path / "run.toml", ["prompt.template=none.txt"])
    assert config.prompt.template == f"{tmp_path}/here/none.txt"


def test_set_overrides_the_file(tmp_path):
    config = load(
        write(tmp_path, "steps = 3\n"),
        ["steps=5", "optimizer.learning_rate=3e-4", "loss.use=clip", "loss.clip_high=0.28"],
    )
    assert config.steps == 5
    assert config.optimizer.learning_rate == 3e-4
    assert config.loss.options == {"clip_high": 0.28}


@pytest.mark.parametrize(
    ("assignment", "code"),
    [("steps", "config.unreadable"), ("=3", "config.unreadable"), ("steps.deep=3", "config.value")],
)
def test_a_set_that_is_no_assignment_is_refused(tmp_path, assignment, code):
    with refused(ConfigError, f"--set {assignment!r}", code=code):
        load(write(tmp_path, "steps = 3\n"), [assignment])


def test_shorthands():
    def mine(prompt, rollout):
        return 1.0

    config = validate(
        {"model": "some/folder", "loss": "reinforce", "reward": mine, "select": "all", "rollout": {"engine": "hf"}}
    )
    assert config.model.path == "some/folder"
    assert config.reward.use is mine
    assert [m.use for m in config.select] == ["all"]
    assert config.rollout.engine.use == "hf"


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
def test_training_on_a_cut_distribution_is_refused_with_the_reason(cut):
    """The error names the key for evaluations."""
    (name,) = cut
    with refused(ConfigError, f"evaluate.{name}", key=f"rollout.{name}", code="config.combination"):
        validate({"rollout": cut})


@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_dropout_in_an_adapter_is_refused_with_the_reason(tmp_path, rate):
    file = tmp_path / "run.toml"
    file.write_text(f"steps = 3\n[model.lora]\nrank = 4\ndropout = {rate}\n")
    with refused(ConfigError, f"{file}, line 4", key="model.lora.dropout", code="config.unknown_key"):
        load(file)


def test_a_reward_is_one_function_or_parts():
    for reward in ({"use": "boxed", "parts": [{"use": "format"}]}, {"parts": []}):
        with refused(ConfigError, "use", "parts", key="reward", code="config.combination"):
            validate({"reward": reward})


@pytest.mark.parametrize(
    ("reward", "key", "code"),
    [
        ({"parts": [{"use": "boxed"}], "weight": 2}, "reward.weight", "config.unknown_key"),
        ({"use": "boxed", "shaping": "if_wrong"}, "reward.shaping", "config.combination"),
    ],
)
def test_a_key_that_a_reward_has_no_use_for_is_named(reward, key, code):
    with refused(ConfigError, key=key, code=code):
        validate({"reward": reward})


@pytest.mark.parametrize(
    ("data", "rate", "critic"),
    [
        ({}, 1e-4, None),
        ({"model": {"lora": {}}, "critic": {}}, 1e-4, 1e-4),
        ({"model": "some/model"}, 1e-6, None),
        ({"model": {"path": "some/model", "lora": {"rank": 4}}}, 1e-5, None),
        ({"model": "some/model", "critic": {"optimizer": {"eps": 1e-3}}}, 1e-6, 1e-5),
        ({"model": "bundled", "critic": {"path": "some/model"}}, 1e-4, 1e-5),
        ({"model": "some/model", "optimizer": {"learning_rate": 3e-4}, "critic": {}}, 3e-4, 1e-5),
        ({"model": "some/model", "critic": {"optimizer": {"learning_rate": 2e-4}}}, 1e-6, 2e-4),
    ],
)
def test_the_learning_rate_follows_from_what_is_trained_unless_it_is_given(data, rate, critic):
    config = validate(data)
    assert config.optimizer.learning_rate == rate
    assert (config.critic and config.critic.optimizer.learning_rate) == critic
    assert dump(config)["optimizer"]["learning_rate"] == rate, "a manifest holds the number"
    assert validate(dump(config)) == config
    assert Config(model=config.model).optimizer == validate({"model": data.get("model", {})}).optimizer


def test_dump_is_json_with_every_key():
    assert set(json.loads(json.dumps(dump(Config())))) == set(Config.model_fields)


def test_dump_reads_back_as_the_same_configuration():
    config = validate({"loss": {"use": "clip", "clip_high": 0.28}, "model": {"lora": {"rank": 4}}})
    assert validate(dump(config)) == config


def test_a_number_without_end_is_refused(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[optimizer]\nlearning_rate = inf\n")
    with refused(ConfigError, "line 2", "inf", key="optimizer.learning_rate", code="config.value"):
        load(file)


def test_a_name_in_the_file_may_get_options_by_override(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "bundled"\nloss = "clip"\n[rollout]\nengine = "native"\n')
    config = load(file, ["model.dtype=bfloat16", "loss.clip_high=0.28", "rollout.engine.key_value_mb=5"])
    assert (config.model.path, config.model.dtype) == ("bundled", "bfloat16")
    assert (config.loss.use, config.loss.options) == ("clip", {"clip_high": 0.28})
    assert config.rollout.engine.options == {"key_value_mb": 5}


def test_a_file_that_is_not_text_is_refused(tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(b"steps = 1 # \xff")
    with refused(ConfigError, file, "UTF-8", code="config.unreadable"):
        load(file)


@pytest.mark.parametrize(
    "sets",
    [
        ["reward=mine.py:half"],
        ["reward.use=mine.py:half"],
        ["reward=r1_zero", "reward.use=./mine.py:half"],
        ['reward={use = "mine.py:half"}'],
    ],
)
def test_a_file_in_an_override_is_relative_to_the_working_directory(tmp_path, monkeypatch, sets):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "run.toml").write_text('reward = "mine.py:other"\nloss = "mine.py:own"\n')
    config = load(tmp_path / "run.toml", sets)
    assert (config.reward.use, config.loss.use) == (str(tmp_path / "here" / "mine.py:half"), "mine.py:own")


def test_files_in_lists_and_templates_of_an_override_do_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("{question}")
    (tmp_path / "run.toml").write_text("")
    sets = ['select=["all", {use = "a.py:f", text = "b.py:g"}]', "prompt.template=mine.txt", "rollout.engine=c.py:h"]
    sets += ['evaluate.tasks=["d.py:t"]', 'reward={use = "e.py:r", template = "Is it right? Say 1."}']
    config = load(tmp_path / "run.toml", sets)
    assert [task.use for task in config.evaluate.tasks] == [f"{tmp_path}/d.py:t"]
    assert config.reward.options == {"template": "Is it right? Say 1."}
    assert [member.use for member in config.select] == ["all", f"{tmp_path}/a.py:f"]
    assert config.select[1].options == {"text": "b.py:g"}  # an option is whatever its function makes of it
    assert (config.prompt.template, config.rollout.engine.use) == (f"{tmp_path}/mine.txt", f"{tmp_path}/c.py:h")
    assert load(tmp_path / "run.toml", ["prompt.template=r1_zero"]).prompt.template == "r1_zero"


def test_a_member_named_by_one_override_gets_options_by_the_next(tmp_path):
    (tmp_path / "run.toml").write_text("")
    config = load(tmp_path / "run.toml", ["task=gsm8k", "task.path=F", "select=random", "select.keep_per_prompt=2"])
    assert (config.task.use, config.task.options) == ("gsm8k", {"path": "F"})
    assert [(member.use, member.options) for member in config.select] == [("random", {"keep_per_prompt": 2})]
    with refused(ConfigError, "--set 'seed.a=1'", 3, key="seed.a", code="config.value"):
        load(tmp_path / "run.toml", ["seed=3", "seed.a=1"])


def test_mistakes_of_all_members_are_reported_at_once(tmp_path):
    text = 'loss = "clp"\nselect = "pods"\n[reward]\nparts = [{use = "r1_zer"}, {use = "boxd"}]\n'
    text += '[advantage]\nuse = "grpo"\nepss = 1\n[allocate]\nuse = "gvm"\nalfa = 1\n'
    text += '[task]\nuse = "arithmetic"\nsizes = 2\n'
    with pytest.raises(ConfigError) as caught:
        resolve_file(write(tmp_path, text), ["weighting=tokens"])
    keys = [part.key for part in caught.value.parts]
    assert keys == [
        "task.sizes", "reward.parts.0", "reward.parts.1", "select", "advantage.epss", "allocate.alfa", "weighting",
        "loss",
    ]  # fmt: skip
    assert len(str(caught.value).splitlines()) == 8
    assert [line for line in str(caught.value).splitlines() if "run.toml" not in line and "--set" not in line] == []


@pytest.mark.parametrize(
    ("text", "assignment", "place", "key", "code", "named"),
    [
        ("", "optimiser.betas=[0.9]", "--set {}", "optimiser", "config.unknown_key", "'optimizer'"),
        ("", "track.rollouts=3", "--set {}", "track.0.use", "config.missing_key", ""),
        ("", "alarms.off=all_flat", "all_flat", "alarms.off", "config.value", "[...]"),
        ("", "deterministic=True", "'True'", "deterministic", "config.value", "true or false"),
        ("", "critic=3", "3", "critic", "config.value", ""),
        ("", "critic=true", "True", "critic", "config.value", "critic = {}"),
        ("", "steps.a=3", "--set '{}'", "steps.a", "config.value", "'steps'"),
        ("", 'loss={use="clip"', "--set '{}'", "loss", "config.unreadable", ""),
        ('[[terms]]\nuse = "kl"', "terms.coefficient=1", "--set '{}'", "terms.coefficient", "config.value",
         "terms=[...]"),
        ('[[terms]]\nuse = "kl"', "steps=2", "c.toml", "terms.0.coefficient", "config.missing_key", ""),
    ],
)  # fmt: skip
def test_an_override_that_cannot_be_used_is_named_with_the_remedy(tmp_path, text, assignment, place, key, code, named):
    path = tmp_path / "c.toml"
    path.write_text(f"steps = 1\n{text}\n")
    with refused(ConfigError, place.format(assignment), key=key, code=code) as caught:
        load(path, [assignment])
    assert caught.value.remedy
    assert named in caught.value.remedy


@pytest.mark.parametrize(
    ("table", "line", "key", "code", "remedy"),
    [
        ('form = "shared"\nepochs = 2', 3, "critic.epochs", "config.unknown_key", ("'adapter'", "'model'")),
        ('form = "shared"\n[critic.optimizer]', 3, "critic.optimizer", "config.unknown_key", ("'adapter'", "'model'")),
        ("coefficient = 1.0", 2, "critic.coefficient", "config.unknown_key", ("'shared'",)),
        ('form = "adapter"\npath = "x"', 3, "critic.path", "config.unknown_key", ("'model'",)),
        ('form = "adapter"\nepoch = 2', 3, "critic.epoch", "config.unknown_key", ("'epochs'",)),
        ("gamma = 2.0", 2, "critic.gamma", "config.value", ("1",)),
        ("[critic.optimizer]\nepz = 1", 3, "critic.optimizer.epz", "config.unknown_key", ("'eps'",)),
        ('form = "own"', 2, "critic.form", "config.value", ("'shared'", "'adapter'", "'model'")),
        ('form = ["model"]', 2, "critic.form", "config.value", ("'shared'", "'adapter'", "'model'")),
        ('form.use = "model"', 2, "critic.form", "config.value", ("'shared'", "'adapter'", "'model'")),
    ],
)
def test_a_mistake_in_a_table_with_several_forms_names_its_key_line_and_remedy(
    tmp_path, table, line, key, code, remedy
):
    path = tmp_path / "c.toml"
    path.write_text(f"[critic]\n{table}\n")
    with refused(ConfigError, f"line {line}", key=key, code=code) as caught:
        load(path)
    for name in remedy:
        assert name in caught.value.remedy


@pytest.mark.parametrize(
    ("critic", "section"),
    [
        ({}, ModelCritic),
        ({"form": "model", "path": "x"}, ModelCritic),
        ({"form": "adapter"}, AdapterCritic),
        ({"form": "shared", "coefficient": 1.0}, SharedCritic),
    ],
)
def test_the_form_of_a_value_model_selects_its_keys(critic, section):
    config = validate({"critic": critic})
    assert type(config.critic) is section
    assert set(dump(config)["critic"]) == set(section.model_fields)
    assert validate(dump(config)) == config


@pytest.mark.parametrize(
    ("message", "ending"),
    [
        ("Input should be greater than or equal to 1", " greater than or equal to 1"),
        ("Input should be 'a', 'b' or 'c'", " 'a', 'b' or 'c'"),
        ("Input should be a valid integer, got a number with a fractional part", " a valid integer"),
        ("Input should be a valid integer, unable to parse string as an integer", " a valid integer"),
        ("List should have at least 1 item", " at least 1 item"),
    ],
)
def test_pydantics_message_becomes_a_remedy(message, ending):
    remedy = accepted_value(message)
    assert remedy.endswith(ending)
    assert "Input" not in remedy


def test_a_key_or_a_table_of_the_file_can_be_left_out(tmp_path):
    path = write(tmp_path, '[allocate]\nuse = "gvm"\n[probe]\nevery = 3\ndecay = 0.5\n[loss]\nclip_low = 0.1\n')
    config = load(path, ["probe.every=5"], unset=["allocate", "probe.decay", "loss"])
    assert (config.allocate.use, config.probe.every) == ("uniform", 5)
    assert config.probe.decay == Config().probe.decay
    assert config.loss == Config().loss
    for key, named in (("prob", "probe"), ("probe.evry", "every"), ("steps", "loss"), ("probe.every.x", "--unset")):
        with refused(ConfigError, f"--unset {key}", key=key, code="config.unknown_key") as caught:
            load(path, unset=[key])
        assert named in caught.value.remedy


def test_a_probed_allocation_becomes_a_uniform_one_on_the_command_line():
    """Of every recipe and published file that brings a probe: the members and their combination are accepted."""
    published = sorted((Path(__file__).parents[2] / "configs").glob("**/gvm_*.toml"))
    for path in (*(path for name, path in recipe_paths().items() if name.startswith("gvm_")), *published):
        if "every" in tomllib.loads(path.read_text(encoding="utf-8")).get("probe", {}):
            config = load(path, ["allocate=uniform"], unset=["probe"])
            assert resolve_members(config, base=path.parent).source == "none"


def test_options_alone_are_those_of_the_default_member(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[loss]\nclip_low = 0.3\n")
    config = load(path, ["select.keep_per_prompt=2", "advantage.eps=0.1"])
    assert (config.loss.use, config.loss.options) == ("clip", {"clip_low": 0.3})
    assert [(s.use, s.options) for s in config.select] == [("max_variance", {"keep_per_prompt": 2})]
    assert (config.advantage.use, config.advantage.options) == ("grpo", {"eps": 0.1})
    parts = load(path, ["reward.parts=[{use='exact'}]"]).reward
    assert (parts.use, len(parts.parts)) == (None, 1)


def test_leaves_are_named_by_their_tables_and_by_their_places_in_lists():
    data = {"a": {"b": 1, "none": {}}, "list": [{"use": "x"}, (2, [])]}
    values = dict(leaves(data))
    assert values == {("a", "b"): 1, ("list", 0, "use"): "x", ("list", 1, 0): 2, ("list", 1, 1): []}
    assert [key_of(path) for path in values] == ["a.b", "list", "list", "list"]


def test_options_of_a_chat_template_are_set_one_by_one_and_printed_so(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[prompt]\ntemplate_options = { enable_thinking = true, date_string = "1 Jan" }\n')
    config = load(path, ["prompt.template_options.enable_thinking=false", "prompt.template_options.budget=3"])
    assert config.prompt.template_options == {"enable_thinking": False, "date_string": "1 Jan", "budget": 3}
    path.write_text(format_toml(config))
    assert load(path) == config


@pytest.mark.parametrize("name", ["date-string", "3"])
def test_a_printed_line_with_a_key_that_may_be_bare_is_an_override(tmp_path, name):
    path = tmp_path / "run.toml"
    path.write_text(f'prompt.template_options.{name} = "1 Jan"\n')
    config = load(path)
    (line,) = [line for line in format_toml(config).splitlines() if "1 Jan" in line]
    assert load(path, [line]) == config


@pytest.mark.parametrize("word", ["False", '"true"'])
def test_a_word_for_true_or_false_is_no_text_for_a_template(tmp_path, word):
    """Any text is true for a template, "False" too."""
    path = tmp_path / "run.toml"
    path.write_text("seed = 0\n")
    with refused(ConfigError, word.strip('"'), key="prompt.template_options.enable_thinking", code="config.value"):
        load(path, [f"prompt.template_options.enable_thinking={word}"])


@pytest.mark.timeout(20)
def test_a_device_is_no_configuration():
    with refused(ConfigError, "/dev/zero", code="config.unreadable"):
        load(Path("/dev/zero"))


SWEEPS = {
    "a grid": ('config = "grpo"\noutput = "s"\n[grid]\n"seed" = [1]\n', ()),
    "seeds": ('config = "grpo"\noutput = "s"\nseeds = [0, 1]\n', ()),
    "no other key": ('config = "grpo"\noutput = "s"\n', ()),
    "with a key of a run": ('steps = 4\nconfig = "grpo"\noutput = "s"\nseeds = [0]\n', ()),
    "with an override": ('config = "grpo"\noutput = "s"\nseeds = [0]\n', ("steps=3", "task.size=64")),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_file_is_called_one_and_its_command_is_named(tmp_path, name):
    text, sets = SWEEPS[name]
    file = tmp_path / "many.toml"
    file.write_text(text)
    with refused(ConfigError, str(file), "sweep", "'grpo'", key="config", code="config.unknown_key") as caught:
        load(file, sets)
    assert f"winnow sweep {file}" in caught.value.remedy


def test_a_run_with_a_key_config_is_no_sweep(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('steps = 4\nconfig = "grpo"\n')
    with refused(ConfigError, "'config'", code="config.unknown_key") as caught:
        load(file)
    assert "winnow sweep" not in str(caught.value)


def test_an_empty_table_from_python_is_one_of_defaults_and_removes_nothing(tmp_path):
    file = write(tmp_path, "[rollout]\nprompts_per_step = 3\n")
    config = load(file, changes={"model": {"lora": {}}, "critic": {}, "rollout": {}})
    assert config.model.lora is not None
    assert isinstance(config.critic, ModelCritic)
    assert config.rollout.prompts_per_step == 3


@pytest.mark.parametrize("value", [Path("a"), {1, 2}, object()])
def test_an_object_of_python_that_no_manifest_can_have_is_refused_before_a_run(value):
    with refused(ConfigError, key="task.path", code="config.value"):
        validate({"task": {"use": lambda split: [], "path": value}})


def test_a_mistake_is_named_also_beside_a_list_that_is_unset(tmp_path):
    path = write(tmp_path, 'select = ["all", "max_variance"]\n')
    with refused(ConfigError, "--set loss=clp", "'clip'", key="loss", code="config.unknown_member"):
        resolve_file(path, ["select.use=all", "loss=clp"], ["select"])


@pytest.mark.parametrize(
    ("code", "text", "key"),
    [
        (
            "def f(prompt, rollout, *, weight=0.1):\n    return weight\n",
            '[reward]\nparts = [{use = "boxed"}, {use = "mine.py:f", weight = 0.5}]\n',
            "reward.parts.1.weight",
        ),
        (
            "def f(prompt, reply, rng, *, max_turns):\n    yield ''\n",
            '[environment]\nuse = "mine.py:f"\nmax_turns = 3\n',
            "environment.max_turns",
        ),
        ("def f(group, rng, *, chunk=2):\n    return group.rewards >= 0\n", 'select = "mine.py:f"\n', "select.chunk"),
    ],
)
def test_an_option_that_no_configuration_can_set_is_refused(tmp_path, code, text, key):
    (tmp_path / "mine.py").write_text(code)
    with refused(ConfigError, key=key, code="config.registration"):
        resolve_file(write(tmp_path, text))
