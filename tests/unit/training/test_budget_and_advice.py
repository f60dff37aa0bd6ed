from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from chat_templates import CHATML, FOLDER, of_bytes, render_here
from refusals import refused
from winnow.commands.check.dry_run import check_lines, describe, dry_run, product_lines
from winnow.config_file import validate
from winnow.config_keys import format_toml
from winnow.errors import ConfigError, DataError
from winnow.memory.plan import MemoryPart, MemoryPlan
from winnow.models.load import load_tokenizer
from winnow.models.products import Products
from winnow.records import Prompt
from winnow.tasks.templates import Rendered
from winnow.training.advice import (
    LARGE,
    about_prompts,
    advice,
    before_training,
    missing_answer_forms,
    precision_on_cpu,
)
from winnow.training.budget import budget
from winnow.training.prompts import FirstPrompt
from winnow.training.resolve import resolve_members

HERE = Path()
NO_PROMPTS = Rendered(prompts=[], dropped=0)
INSIDE = {"verify": {"workers": 0}}  # a process for a few golds costs more than all else


def members(**keys):
    """32 prompts x 16 rollouts, 4 kept, 1 update, 256 x 9 evaluation rollouts; limits out of the way."""
    rollout = {"max_rollouts_at_once": 512, **keys.pop("rollout", {})}
    return resolve_members(validate({"rollout": rollout, **keys}), HERE)


def advised(**keys):
    c = members(**keys)
    return list(advice(c, budget(c)))


def numbers(line):
    """The numbers in a line of text, in order."""
    return [float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", line)]


def described(configuration):
    """{first word: the rest} of the description of a configuration's budget."""
    lines = describe(configuration.config, budget(configuration))
    return {line.split()[0]: line.partition(" ")[2] for line in lines}


def test_the_counts_of_the_defaults():
    b = budget(members(steps=100, evaluate={"every": 10}))

    assert (b.prompts, b.rollouts, b.kept, b.updates, b.rows) == (32, 512, 4, 1, 128)
    assert (b.longest_row, b.rows_at_once, b.micro_batches) == (512 + 64, 16384 // 576, 5)
    assert (b.evaluation, b.evaluations) == (256 * 9, 1 + 9 + 1)  # before step 0; steps 10 ... 90; after the last


@pytest.mark.parametrize(
    ("keys", "times"),
    [
        ({"evaluate": {"every_minutes": 30}, "max_hours": 6}, 2 + 11),  # after 0.5 ... 5.5 hours; 6.0 is the end
        ({"evaluate": {"every_minutes": 60, "every": 10}, "max_hours": 1.5}, 2 + 1 + 9),
        ({"evaluate": {"every_minutes": 30}, "max_hours": 0.25}, 2),
        ({"evaluate": {"every_minutes": 30}}, 2 + 99),  # there may be one before every step
        ({"evaluate": {"every_minutes": 1}, "max_hours": 6}, 2 + 99),
    ],
)
def test_the_number_of_evaluations_by_the_minute_is_a_maximum(keys, times):
    c = members(steps=100, **keys)
    assert budget(c).evaluations == times
    assert numbers(described(c)["evaluation"])[2] == times


def test_several_updates_of_a_step_have_averages_as_they_divide_its_prompts_by_tokens():
    c = members(steps=10, update={"updates_per_step": 5, "epochs": 2})
    lines = described(c)
    assert (budget(c).updates, budget(c).rows) == (10, 26)  # 32 x 4 / 5, rounded up
    assert numbers(lines["updates"]) == [2, 5, 10, 6.4, 26, 100]
    assert "at most" in lines["kept"]
    assert "at most" not in lines["updates"] + lines["micro-batch"]


def test_dynamic_sampling_may_train_on_more_prompts_than_are_planned():
    lines = described(members(rollout={"dynamic_sampling_rounds": 4}))
    assert "twice" in lines["kept"]
    assert "at most" not in lines["updates"] + lines["micro-batch"]


@pytest.mark.parametrize(
    ("select", "kept"),
    [
        ("all", 16),
        ({"use": "random", "keep_per_prompt": 0.5}, 8),
        ([{"use": "random", "keep_per_prompt": 8}, {"use": "max_variance", "keep_per_prompt": 0.25}], 2),
    ],
)
def test_a_chain_of_selectors_keeps_the_rollouts_of_its_last_one(select, kept):
    assert budget(members(select=select)).kept == kept


def test_the_description_has_the_counts_in_the_order_of_the_step():
    lines = described(members(steps=10, rollout={"max_new_tokens": 100}))

    assert list(lines) == ["rollouts", "kept", "updates", "micro-batch", "evaluation"]
    assert numbers(lines["rollouts"]) == [32, 16, 512, 51]  # the last one in thousands
    assert numbers(lines["kept"]) == [4, 128]
    assert numbers(lines["updates"]) == [1, 1, 1, 32, 128, 10]
    assert numbers(lines["evaluation"]) == [256, 2304, 2, 5120]
    assert numbers(described(members(steps=10, max_hours=1.5))["evaluation"]) == [256, 2304, 2, 5120, 1.5]


@pytest.mark.parametrize(
    ("critic", "counts", "words"),
    [
        ({"form": "shared"}, [], ["kept", "head"]),
        ({"form": "adapter", "updates_per_step": 3}, [1, 3, 3], ["kept", "adapter"]),
        (
            {"form": "model", "train_on": "all", "epochs": 2, "pretraining_steps": 20},
            [2, 1, 2, 20],
            ["verified", "model"],
        ),
    ],
)
def test_a_value_model_is_described_before_the_updates_of_the_policy(critic, counts, words):
    lines = described(members(advantage="gae", critic=critic, model={"lora": {"rank": 2}}))
    assert list(lines)[1:4] == ["kept", "values", "updates"]
    assert numbers(lines["values"]) == counts
    assert numbers(lines["updates"])[-1] == 100 - critic.get("pretraining_steps", 0)
    assert all(word in lines["values"].replace(":", "").split() for word in words)


def test_dynamic_sampling_multiplies_the_most_tokens():
    lines = described(members(rollout={"max_new_tokens": 100, "dynamic_sampling_rounds": 4}))
    assert numbers(lines["rollouts"]) == [32, 16, 512, 4, 256]


@pytest.mark.parametrize(("rollouts", "lower"), [(2, False), (3, True)])
def test_fewer_rollouts_are_kept_only_where_this_drops_some(rollouts, lower):
    (text,) = (t for t in advised(rollout={"rollouts_per_prompt": rollouts}, select={"use": "max_variance",
               "keep_per_prompt": rollouts}) if "nothing is dropped" in t)  # fmt: skip
    assert ("lower keep_per_prompt" in text) is lower


def test_the_limit_of_one_of_several_rewards_is_named_by_its_place():
    parts = [{"use": "format"}, {"use": "code_tests", "total_seconds": 4.5}]
    with refused(ConfigError, "reward.parts.1.total_seconds", 4.5, key="verify.timeout_seconds"):
        members(reward={"parts": parts}, verify={"timeout_seconds": 3.0})


def test_a_sound_configuration_gets_no_advice():
    assert advised() == []


def test_a_default_that_nobody_chose_is_not_advised_about():
    few = {"prompts_per_step": 4, "rollouts_per_prompt": 4}
    keys = {"evaluate": {"problems": 4, "rollouts_per_prompt": 1}, "rollout": few}
    for chosen in ({}, {"max_rollouts_at_once": 512}):
        own = resolve_members(validate({**keys, "rollout": {**few, **chosen}}), HERE)
        named = [text for text in advice(own, budget(own)) if "max_rollouts_at_once" in text]
        assert len(named) == len(chosen)


@pytest.mark.parametrize(("use", "count"), [("fixed", 2), ("auto", 0)])
def test_first_sizes_that_the_run_may_change_are_not_advised_about(use, count):
    """16 rollouts, all kept, of at most 512 at once; the run may choose 16 times as many, and keep fewer."""
    few = {"prompts_per_step": 4, "rollouts_per_prompt": 4}
    texts = advised(rollout=few, plan={"use": use}, evaluate={"problems": 4, "rollouts_per_prompt": 1})
    assert sum("max_rollouts_at_once" in text or "keep_per_prompt" in text for text in texts) == count


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"update": {"updates_per_step": 64}}, ["update.updates_per_step = 64", 32]),
        ({"update": {"updates_per_step": 5}}, ["update.updates_per_step = 5", "4 or 8"]),
        ({"select": {"use": "max_variance", "keep_per_prompt": 16}}, ["keep_per_prompt", 16, 4]),
        ({"select": {"use": "max_variance", "keep_per_prompt": 1}}, ["'grpo'", "prompt", 0, 2]),
        (
            {"select": {"use": "random", "keep_per_prompt": 1, "chunk": 4}, "advantage": {"use": "grpo", "chunk": 4}},
            ["'grpo'", "chunk", 0, 2],
        ),
        ({"loss": "reinforce", "update": {"epochs": 2}}, ["'reinforce'", 2, "loss = 'clip'"]),
        ({"loss": "no_baseline", "advantage": "raw", "update": {"updates_per_step": 2}}, ["'no_baseline'", 2]),
        ({"evaluate": {"every": 2}}, ["evaluate.every", 5]),
        ({"update": {"tokens_per_micro_batch": 500}}, ["update.tokens_per_micro_batch = 500", 576]),
        ({"update": {"tokens_per_micro_batch": 500, "max_trained_tokens": 40}}, ["tokens_per_micro_batch", 552]),
        ({"update": {"max_trained_tokens": 64}}, ["update.max_trained_tokens = 64", "rollout.max_new_tokens = 64"]),
        ({"rollout": {"max_rollouts_at_once": 8192}}, ["rollout.max_rollouts_at_once = 8192", 2048]),
        ({"weighting": "unbiased"}, ["'unbiased'", "select"]),
        (
            {
                "advantage": "gae",
                "critic": {"form": "model"},
                "select": "all",
                "rollout": {"dynamic_sampling_rounds": 3},
            },
            ["rollout.dynamic_sampling_rounds", "'gae'"],
        ),
        ({"weighting": "unbiased", "select": {"use": "threshold", "high": 0.5}}, ["'unbiased'", "select"]),
        ({"weighting": "accepted", "select": {"use": "max_reward", "keep_per_prompt": 12}}, ["'accepted'", "select"]),
        ({"weighting": "accepted"}, ["select = 'all'", "weighting = 'prompt'"]),
    ],
)
def test_advice_names_the_key_and_the_number_that_fits(keys, named):
    (advice,) = advised(**keys)
    for name in named:
        assert re.search(rf"(?<!\w){re.escape(str(name))}(?!\w)", advice), (name, advice)


@pytest.mark.parametrize(
    "keys",
    [
        {"select": "all"},
        {"loss": "reinforce"},
        {"update": {"updates_per_step": 8, "epochs": 3}},
        {"advantage": "raw", "select": {"use": "random", "keep_per_prompt": 1}},
        {"advantage": {"use": "grpo", "statistics": "group"}, "select": {"use": "random", "keep_per_prompt": 1}},
        {"select": {"use": "random", "keep_per_prompt": 1, "chunk": 4}},
        {"select": {"use": "random", "keep_per_prompt": 2, "chunk": 4}, "advantage": {"use": "grpo", "chunk": 4}},
        {"evaluate": {"every": 5}},
        {"update": {"max_trained_tokens": 63}},
        {"weighting": "unbiased", "select": "all"},
        {"weighting": "accepted", "select": {"use": "threshold", "low": 1.0}},
        {"model": {"dtype": "bfloat16", "lora": {}}},
    ],
)
def test_an_intended_combination_gets_no_advice(keys):
    assert advised(**keys) == []


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        ({"optimizer": {"learning_rate": 1e-4}}, False),  # the bundled policy
        ({"model": "some/model"}, False),
        ({"model": "some/model", "optimizer": {"learning_rate": 2e-5}}, False),
        ({"model": "some/model", "optimizer": {"learning_rate": 2.1e-5}}, True),
        ({"model": {"path": "some/model", "lora": {}}, "optimizer": {"learning_rate": 1e-4}}, False),
    ],
)
def test_a_high_learning_rate_for_all_weights_of_a_model_is_named(keys, warned):
    advice = [line for line in advised(**keys) if "optimizer.learning_rate" in line]
    assert len(advice) == warned
    started = [
        line
        for line in before_training(members(**keys).config, NO_PROMPTS, {None: NO_PROMPTS})
        if "optimizer.learning_rate" in line
    ]
    assert started == advice


@pytest.mark.parametrize(
    ("model", "optimizer", "warned"),
    [
        ({"dtype": "bfloat16"}, {"learning_rate": 1e-5}, True),
        ({"dtype": "bfloat16"}, {"learning_rate": 1.1e-5}, False),
        ({"dtype": "bfloat16"}, {"learning_rate": 1e-6, "master_offset": True}, False),
        ({"dtype": "bfloat16"}, {"learning_rate": 1e-6, "master_weights": False, "stochastic_rounding": True}, False),
        ({"dtype": "bfloat16", "lora": {}}, {"learning_rate": 1e-6}, False),
        ({"dtype": "float32"}, {"learning_rate": 1e-6}, False),
    ],
)
def test_a_rate_that_bfloat16_weights_follow_late_is_named_with_the_offset(model, optimizer, warned):
    keys = {"model": {"path": "some/model", **model}, "optimizer": optimizer}
    config = members(**keys).config
    for lines in (advised(**keys), before_training(config, NO_PROMPTS, {None: NO_PROMPTS})):
        assert len([line for line in lines if "optimizer.master_offset = true" in line]) == warned


def test_prompts_that_are_too_long_are_named_with_the_limit_and_the_first():
    config, some = validate({"prompt": {"max_prompt_tokens": 37}}), Rendered(prompts=[], dropped=3, first_dropped="q8")
    held_out = {None: NO_PROMPTS, "other": some}
    for lines in (about_prompts(config, some, held_out), before_training(config, some, held_out)):
        about = [line for line in lines if "prompt.max_prompt_tokens" in line]
        assert [numbers(line) for line in about] == [[3, 3, 37]] * 2
        assert all("'q8'" in line for line in about)
        assert "other" in about[1]


def test_check_reports_the_prompts_that_training_will_drop(tmp_path, monkeypatch):
    render_here(monkeypatch)
    rows = [{"question": "x" * (300 if i == 5 else 1) + str(i), "answer": "1", "id": f"q{i}"} for i in range(8)]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text('{"question": "y", "answer": "1", "id": "t"}\n')
    task = {"use": "jsonl", "train": str(file), "test": str(tmp_path / "test.jsonl"), "id": "id"}
    keys = {"prompt": {"max_prompt_tokens": 200}, "evaluate": {"split": "test"}, "rollout": {"prompts_per_step": 4}}
    keys |= INSIDE
    about, few = dry_run(members(task=task, **keys)).prompts.warnings
    assert numbers(few) == [256, 1]
    assert numbers(about) == [1, 8, 200]
    assert "'q5'" in about
    path = tmp_path / "run.toml"
    path.write_text(format_toml(members(task=task, **keys).config))
    assert any("'q5'" in line for line in check_lines(path, [], None))


def test_check_counts_the_problems_that_the_splits_have(tmp_path, monkeypatch):
    """12 of 256 requested validation problems, one of them too long, and 3 test problems of another task: 14 x 9."""
    render_here(monkeypatch)
    questions = {
        "train": [f"train {i}" for i in range(16)],
        "validation": ["x" * 300, *(f"validation {i}" for i in range(11))],
        "test": ["test 0", "test 1", "train 7"],
    }
    files = {split: str(tmp_path / f"{split}.jsonl") for split in questions}
    for split, of_split in questions.items():
        rows = [json.dumps({"question": question, "answer": "1"}) for question in of_split]
        Path(files[split]).write_text("\n".join(rows))
    other = {"use": "jsonl", "test": files.pop("test")}
    keys = {"prompt": {"max_prompt_tokens": 200}, "evaluate": {"tasks": [other]}, "rollout": {"prompts_per_step": 4}}
    keys |= INSIDE
    path = tmp_path / "run.toml"
    path.write_text(format_toml(members(task={"use": "jsonl", **files}, steps=1, **keys).config))
    lines = list(check_lines(path, [], None))
    (evaluation,) = [line for line in lines if line.startswith("evaluation")]
    assert numbers(evaluation)[:3] == [14, 126, 2]
    notes = " ".join(" ".join(lines).split())
    assert re.findall(r"evaluate\.problems = (\d+), but (the task|jsonl) has (\d+) (\w+)", notes) == [
        ("256", "the task", "12", "validation"),
        ("256", "jsonl", "3", "test"),
    ]
    assert re.findall(r"evaluate\.tasks: (\d+) of (\d+) test", notes) == [("1", "3")]  # as `train` warns
    elsewhere = members(task={"use": "jsonl", **files}, model={"path": "owner/not-in-the-cache"}, **keys)
    assert dry_run(elsewhere).prompts.evaluated == 15  # without its tokenizer, no prompt is too long


def test_the_memory_of_a_run_that_chooses_its_sizes_is_that_of_the_largest(monkeypatch):
    """As in training: else a check passes, and training is refused."""
    render_here(monkeypatch)
    few = {"task": {"use": "arithmetic", "size": 64}, **INSIDE}
    keys = {"rollout": {"prompts_per_step": 4, "rollouts_per_prompt": 8}, "select": "all", **few}
    plan = {"use": "auto", "prompts_per_step": (2, 16), "rollouts_per_prompt": (2, 64)}
    auto = members(plan=plan, **keys)
    most = members(rollout={"prompts_per_step": 16, "rollouts_per_prompt": 64}, select="all", **few)
    needs = [{part.name: part.bytes for part in dry_run(one).plan.parts} for one in (auto, most, members(**keys))]
    assert needs[0] == needs[1] != needs[2]
    assert numbers(described(auto)["sizes"]) == [10, 2, 64, 2, 16]

    (line,) = [line for line in describe(auto.config, budget(auto), problems=12, ranks=4) if line.startswith("sizes")]
    assert numbers(line) == [10, 2, 64, 4, 12]  # no more prompts than problems, and one for each process


def test_a_missing_file_of_costs_is_refused_by_a_check(tmp_path):
    with refused(DataError, code="data.unreadable"):
        dry_run(members(plan={"use": "auto", "costs": str(tmp_path / "none.json")}, select="all"))


def test_an_allocation_that_changes_shares_of_the_objective_is_named():
    def advice(**changes):
        return [line for line in advised(**{"allocate": "gvm", **changes}) if line.startswith("allocate = 'gvm'")]

    assert len(advice(weighting="token")) == 1
    assert advice(weighting="prompt") == advice(weighting="unbiased") == []
    assert advised(allocate="uniform", weighting="token") == []


def test_the_first_trained_tokens_are_described():
    c = members(rollout={"max_new_tokens": 100}, update={"max_trained_tokens": 40})
    assert numbers(described(c)["trained"]) == [40, 100]
    assert budget(c).longest_row == c.config.prompt.max_prompt_tokens + 40


def test_an_uneven_allocation_has_averages_instead_of_limits():
    lines = described(members(steps=10, allocate="gvm_online", weighting="prompt"))

    assert "gvm_online" in lines["rollouts"]
    assert numbers(lines["rollouts"])[:2] == [32, 16]
    assert numbers(lines["kept"]) == [4, 128]
    assert numbers(lines["updates"])[-3:] == [32, 128, 10]
    assert numbers(lines["micro-batch"])[-1] == 5
    assert all("average" in lines[name] for name in ("rollouts", "kept", "updates"))
    assert not any("at most" in line for line in lines.values())


def test_the_rollouts_of_a_probe_are_additional():
    c = members(steps=10, allocate="gvm", probe={"every": 4, "rollouts_per_prompt": 8}, rollout={"max_new_tokens": 100})

    # 4 steps x 32 prompts x 8; three windows for 10 steps of 512: 3 x 1024 / 5120; tokens in thousands
    assert numbers(described(c)["probe"]) == [128, 8, 1024, 4, 60.0, 102]


def advised_decoding(folder, *, flags="fma avx512_bf16 sse", size=LARGE, device="cpu", **keys):
    cpu = folder / "cpuinfo"
    cpu.write_text(f"processor : 0\nflags : {flags}\n")
    plan = MemoryPlan(jobs="", parts=(MemoryPart("weights", size, "always", device),))
    return list(precision_on_cpu(members(**keys), plan, cpu))


@pytest.mark.parametrize("flags", ["fma avx512_bf16 sse", "amx_bf16"])
def test_decoding_in_bfloat16_is_advised_where_the_cpu_supports_it(tmp_path, flags):
    (sentence,) = advised_decoding(tmp_path, flags=flags)
    assert "rollout.engine = {use = 'native', dtype = 'bfloat16'}" in sentence
    assert "and correction corrects" in sentence


@pytest.mark.parametrize(
    "change",
    [
        {"flags": "fma avx512_bf160 avx512f"},
        {"size": LARGE - 1},
        {"device": "cuda"},
        {"model": {"dtype": "bfloat16"}},
        {"rollout": {"engine": {"use": "native", "dtype": "bfloat16"}}},
        {"rollout": {"engine": {"use": "native", "process": "own"}}},
        {"rollout": {"engine": "hf"}},
    ],
)
def test_decoding_in_bfloat16_is_not_advised_otherwise(tmp_path, change):
    assert advised_decoding(tmp_path, **change) == []


def test_nothing_is_advised_where_the_instructions_of_the_cpu_are_unknown(tmp_path):
    plan = MemoryPlan(jobs="", parts=(MemoryPart("weights", LARGE, "always", "cpu"),))
    for dtype in ("auto", "bfloat16"):
        assert list(precision_on_cpu(members(model={"dtype": dtype}), plan, tmp_path / "none")) == []


def test_check_measures_products_of_the_models_shape_on_a_cpu_alone(monkeypatch):
    def measured(inputs, outputs):
        return Products(512, inputs, outputs, 2, {"float32": 200.0, "bfloat16": 800.0}, 1.0)

    monkeypatch.setattr("winnow.commands.check.dry_run.measure_products", measured)
    sizes = SimpleNamespace(hidden_size=576, intermediate_size=1536)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: sizes))
    (line,) = product_lines(SimpleNamespace(device="cpu", model=model))
    assert numbers(line) == [512, 576, 576, 1536, 2, 200, 800, 0.25]
    assert list(product_lines(SimpleNamespace(device="cuda:0", model=model))) == []
    sizes.intermediate_size = None  # of a family with another MLP
    assert list(product_lines(SimpleNamespace(device="cpu", model=model))) == []


@pytest.mark.parametrize(
    ("flags", "device", "dtype", "warned"),
    [
        ("fma avx512f", "cpu", "bfloat16", True),
        ("fma avx512_bf16", "cpu", "bfloat16", False),
        ("amx_bf16", "cpu", "bfloat16", False),
        ("fma avx512f", "cpu", "float32", False),
        ("fma avx512f", "cuda", "bfloat16", False),
    ],
)
def test_bfloat16_is_warned_about_on_a_cpu_without_instructions_for_it(tmp_path, flags, device, dtype, warned):
    cpu = tmp_path / "cpuinfo"
    cpu.write_text(f"processor : 0\nflags : {flags}\n")
    plan = MemoryPlan(jobs="", parts=(MemoryPart("weights", 1, "always", device),))
    assert bool(list(precision_on_cpu(members(model={"dtype": dtype}), plan, cpu))) == warned


@pytest.mark.parametrize("critic", [{"form": "shared"}, lambda groups: [[[0.0] * 4] * 2]])
def test_trained_tokens_are_not_cut_under_an_advantage_that_reads_values(critic):
    keys = {"advantage": {"use": "gae"}, "update": {"max_trained_tokens": 16}}
    with refused(ConfigError, key="update.max_trained_tokens"):
        if callable(critic):
            resolve_members(validate(keys), HERE, critic=critic)
        else:
            members(critic=critic, **keys)


def test_tags_that_are_special_tokens_are_in_no_text_that_a_reward_reads():
    tokenizer = of_bytes((FOLDER / "qwen3.jinja").read_text(encoding="utf-8"), (*CHATML[:2], "</think>", CHATML[2]))
    own = members(reward="boxed")
    prompt = Prompt(id="p", tokens=np.zeros(1, np.int64), text="\\boxed{}", answer="1", task="t")
    first = FirstPrompt.of(prompt, tokenizer, own.config)
    assert (first.known, first.omitted) == (frozenset(), ("</think>",))
    (sentence,) = missing_answer_forms(own, first)
    assert "</think>" in sentence
    assert not list(missing_answer_forms(own, FirstPrompt.of(prompt, load_tokenizer("bundled"), own.config)))
