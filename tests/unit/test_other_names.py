"""What papers and other programs call our keys and members: every name leads to one that exists, and every remedy works
when it is followed to the letter.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from pathlib import Path

import pytest

from winnow.commands.list import keys
from winnow.config_file import load
from winnow.errors import ConfigError
from winnow.families import FAMILIES
from winnow.other_names import MEMBERS, METHODS, OTHER_NAMES, as_settings, own_name
from winnow.recipes import recipe_paths
from winnow.registry import members, resolve
from winnow.training.resolve import resolve_file

DOCS = Path(__file__).parents[2] / "docs"
OPTIONS = {
    f"{table}.{option}"
    for table, family in (("loss", "loss"), ("advantage", "advantage"), ("task", "task"), ("rollout.engine", "engine"))
    for entry in members(family).values()
    for option in entry.options
}
KEYS = {key.name for key in keys()} | OPTIONS | {"reward.parts", "model.lora"}


def of_pages():
    """{the other program's name: our names} of every row of a table that begins with such a name."""
    found = {}
    for page in ("from-trl.md", "from-verl.md"):
        for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
            cells = [re.findall("`(.*?)`", cell) for cell in line.split("|")]
            if line.startswith("| `") and len(cells) >= 5:
                for name in cells[1]:
                    found.setdefault(name.partition("=")[0], []).extend(cells[3] or cells[2])  # of all its rows
    return found


def test_every_name_leads_to_a_key_that_exists_and_is_none_itself():
    assert set(OTHER_NAMES.values()) <= KEYS
    assert not {name for name in OTHER_NAMES if name in KEYS}


def test_names_lead_where_the_pages_about_other_programs_lead():
    pages = of_pages()
    shared = [name for name in OTHER_NAMES if pages.get(name)]
    assert len(shared) > 70
    wrong = {
        name: pages[name]
        for name in shared
        if not any(own_name(name) in (here, here.replace("[]", ""), here.partition("[]")[0]) for here in pages[name])
    }
    assert not wrong


OF_RECIPES = {
    "GRPO": "grpo", "Dr. GRPO": "dr_grpo", "PODS": "pods", "PPO": "ppo", "RAFT": "raft", "RAFT++": "raft_plus_plus",
    "GVM": "gvm_grpo",
}  # fmt: skip
NAMES = {name: title for title, (names, _) in METHODS.items() for name in names.split()}


def refusal(path, *sets):
    with pytest.raises(ConfigError) as caught:
        resolve_file(path, sets)
    return caught.value


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.toml"
    path.write_text("steps = 200\n", encoding="utf-8")
    return path


def followed(path, settings):
    """The members of the configuration with these settings, one `--set` each."""
    return resolve_file(path, [as_settings({key: value}) for key, value in settings.items()])


@pytest.mark.parametrize("title", METHODS)
def test_the_settings_of_a_method_fit_together(plain, title):
    settings = METHODS[title][1]
    config = followed(plain, settings).config
    for key, value in settings.items():
        if isinstance(value, str):
            own = getattr(config, key)
            assert (own[0] if isinstance(own, tuple) else own).use == value


@pytest.mark.parametrize("title", OF_RECIPES)
def test_a_method_has_the_members_of_its_recipe(plain, title):
    made = followed(plain, METHODS[title][1])
    recipe = resolve_file(recipe_paths()[OF_RECIPES[title]])
    for key in METHODS[title][1]:
        if key in ("advantage", "loss", "weighting", "allocate"):
            assert getattr(made, key).name == getattr(recipe, key).name, key
    assert [one.name for one in made.selectors] == [one.name for one in recipe.selectors]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_sought_in_a_family_leads_to_its_settings(name):
    settings = METHODS[NAMES[name]][1]
    for family in FAMILIES.values():
        with contextlib.suppress(ConfigError):
            assert resolve(family, name)
            continue
        with pytest.raises(ConfigError) as caught:
            resolve(family, name)
        assert NAMES[name] in caught.value.remedy
        assert as_settings(settings) in caught.value.remedy, family.name
        if family.key in settings:
            own = settings[family.key]
            assert f"{own if isinstance(own, str) else own['use']!r}" in caught.value.remedy


@pytest.mark.parametrize("key", MEMBERS)
def test_a_name_of_one_member_leads_to_it(key):
    (family,) = (family for family in FAMILIES.values() if family.key == key)
    for member, names in MEMBERS[key].items():
        assert member in members(family.name)
        for name in set(names.split()) - {member}:
            with pytest.raises(ConfigError) as caught:
                resolve(family, name)
            assert caught.value.remedy == f"did you mean {member!r}?"


@pytest.mark.parametrize(
    ("written", "key", "value"),
    [
        ("beta = 0.04", "terms", [{"use": "kl", "coefficient": 0.04}]),
        ("init_kl_coef = 0.01", "terms", [{"use": "kl", "coefficient": 0.01}]),
        ("loss.beta = 0.04", "terms", [{"use": "kl", "coefficient": 0.04}]),
        ("entropy_coef = 0.001", "terms", [{"use": "entropy", "coefficient": 0.001}]),
        ("actor_rollout_ref.actor.use_kl_loss = true", "terms", [{"use": "kl", "coefficient": 0.001}]),
        ('loss_type = "dr_grpo"', "weighting", "constant"),
        ('loss_type = "grpo"', "weighting", "sequence"),
        ("mask_truncated_completions = true", "select", "finished"),
        ('actor_rollout_ref.actor.loss_agg_mode = "token-mean"', "weighting", "token"),
        ('actor_rollout_ref.actor.loss_agg_mode = "seq-mean-token-mean"', "weighting", "sequence"),
        ('actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"', "loss", "clip"),
        ('algorithm.adv_estimator = "rloo"', "advantage", "rloo"),
        ('advantage_estimator = "dr_grpo"', "advantage", "dr_grpo"),
        ('advantage_estimator = "reinforce"', "advantage", "batch"),  # OpenRLHF's REINFORCE++
        ("scale_rewards = false", "advantage", "dr_grpo"),
        ('scale_rewards = "group"', "advantage", "grpo"),
        ("algorithm.norm_adv_by_std_in_grpo = false", "advantage", "dr_grpo"),
        ("use_vllm = true", "rollout.engine", "vllm"),
        ('vllm_mode = "colocate"', "rollout.engine", {"use": "vllm", "process": "inside"}),
        ('actor_rollout_ref.rollout.name = "hf"', "rollout.engine", "hf"),
        ("bf16 = false", "model.dtype", "float32"),
        ("use_peft = true", "model.lora", {}),
        ("lora = true", "model.lora", {}),
        ("actor_rollout_ref.model.enable_gradient_checkpointing = true", "model.gradient_checkpointing", "full"),
        ("packing_samples = true", "update.layout", "packed"),
        ("adam_beta2 = 0.999", "optimizer.betas", [0.9, 0.999]),
        ("adam_beta1 = 0.8", "optimizer.betas", [0.8, 0.95]),
        ("warmup_ratio = 0.1", "optimizer.warmup_steps", 20),  # of 200 steps
        ('stop_strings = "</answer>"', "rollout.stop", ["</answer>"]),
        ('stop_strings = ["</answer>", "User:"]', "rollout.stop", ["</answer>", "User:"]),
        ('report_to = "wandb"', "track", ["wandb"]),
        ('report_to = ["wandb"]', "track", ["wandb"]),
        ('trainer.logger = ["console", "wandb"]', "track", ["wandb"]),
        ('trainer.logger = "wandb"', "track", ["wandb"]),
        ("use_wandb = true", "track", "wandb"),
    ],
)
def test_a_value_of_another_program_is_translated_and_the_translation_works(plain, written, key, value):
    error = refusal(plain, written)
    toml = error.remedy.partition(": write ")[2]
    assert tomllib.loads(toml) == tomllib.loads(as_settings({key: value}))
    load(plain, [toml])


def test_a_loss_type_of_trl_that_is_a_loss_sets_both(plain):
    remedy = refusal(plain, 'loss_type = "cispo"').remedy
    assert 'weighting = "token"' in remedy
    assert 'loss = "cispo"' in remedy


def test_trl_s_bound_of_cispo_is_that_of_the_ratio_itself(plain):
    """5 in TRL is a ratio of 5, and 1 + `clip_high` here."""
    remedy = refusal(plain, 'loss = "cispo"', "epsilon_high = 5.0").remedy
    assert remedy == "use 'loss.clip_high': write loss.clip_high = 4.0"
    assert refusal(plain, "epsilon_high = 0.28").remedy == "use 'loss.clip_high'"


@pytest.mark.parametrize("betas", ["0.9", "[0.9]"])
def test_a_value_of_ours_that_is_wrong_itself_is_the_mistake_beside_it(plain, betas):
    error = refusal(plain, f"optimizer.betas = {betas}", "adam_beta1 = 0.8")
    assert "optimizer.betas" in str(error)
    assert "adam_beta1" in str(error)


@pytest.mark.parametrize(
    "written", ["beta = 0.0", "use_vllm = false", "use_wandb = false", "entropy_coef = 0", 'report_to = "none"']
)
def test_a_value_that_is_the_default_here_is_to_be_removed(plain, written):
    assert ": write" not in refusal(plain, written).remedy
    assert refusal(plain, written).remedy.startswith("remove")


@pytest.mark.parametrize(
    "written",
    [
        'loss_type = "bnpo"', 'scale_rewards = "batch"', 'report_to = "swanlab"', "trainer.logger = true",
        'trainer.logger = ["wandb", "swanlab"]', 'adam_beta1 = "0.9"', 'warmup_ratio = "0.1"', "warmup_ratio = inf",
    ],
)  # fmt: skip
def test_a_value_without_a_counterpart_names_the_key_alone(plain, written):
    assert refusal(plain, written).remedy == f"use {own_name(written.partition(' ')[0])!r}"


@pytest.mark.parametrize(
    ("written", "sets", "numbers"),
    [
        ("per_device_train_batch_size = 8", [], ["8", "128", "16"]),
        ("per_device_train_batch_size = 8", ["rollout.rollouts_per_prompt = 4"], ["8", "32", "4"]),
        ("train_batch_size = 128", [], ["128", "2048", "16"]),  # OpenRLHF
    ],
)
def test_a_key_that_counts_completions_says_how_many_its_number_would_be(plain, written, sets, numbers):
    error = refusal(plain, written, *sets)
    assert "'rollout.prompts_per_step'" in error.remedy
    assert re.findall(r"\d+", error.remedy) == numbers


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("num_train_epochs = 3", "steps"),
        ("gradient_accumulation_steps = 4", "update.tokens_per_micro_batch"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size = 64", "update.updates_per_step"),
        ("max_seq_length = 512", "prompt.max_prompt_tokens"),
    ],
)
def test_a_key_in_another_unit_names_ours(plain, written, key):
    remedy = refusal(plain, written).remedy
    assert remedy.startswith(f"use {key!r}, which counts ")


@pytest.mark.parametrize("name", ["epsilon", "cliprange", "clip_range", "eps_clip"])
def test_a_clip_of_one_number_is_the_width_on_both_sides(plain, name):
    low, high = refusal(plain, f"{name} = 0.1").remedy.partition(": write ")[2].split(", ")
    assert (low, high) == ("loss.clip_low = 0.1", "loss.clip_high = 0.1")
    load(plain, [low, high])
