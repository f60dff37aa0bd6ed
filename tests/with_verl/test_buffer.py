"""The replay buffer and the counts on verl's real TransferQueue, KVBatchMeta, TensorDict and advantages.

A local Ray cluster stores the rollouts, as in a run. No rollout is sampled, and no policy is trained.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from refusals import refused
from winnow.algos.advantage import dr_grpo, grpo
from winnow.algos.plain_groups import plain_group, prompt_id, selector_of
from winnow.algos.selectors import keep_verified
from winnow.errors import ConfigError
from winnow.registry import members
from winnow.seeds import Rng
from winnow_verl.buffer import PODSReplayBuffer, PODSReplayBufferAsync
from winnow_verl.trainer import COUNT, MODE, PODSTrainer, check_buffer, set_counts

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl and of what it imports

N, M, STEP, SEED = 16, 4, 3, 7
OPTIONS = {"threshold": {"low": 0.25}}
SELECTORS = {
    name: {"use": name, **OPTIONS.get(name, {})}
    for name, entry in members("selector").items()
    if entry.origin == "winnow"
}
LONGEST = 9


@pytest.fixture(scope="module", autouse=True)
def queue():
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # of a busy machine
    ray.init(num_cpus=8, include_dashboard=False, logging_level="error")  # each actor of the queue takes one
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture(autouse=True)
def emptied():
    yield
    for partition, keys in (tq.kv_list() or {}).items():
        if keys:
            tq.kv_clear(keys=list(keys), partition_id=partition)


def buffer_of(kind=PODSReplayBuffer, **options):
    given = {"rollouts_per_prompt": N, "keep_per_prompt": M, "seed": SEED, "max_response_length": LONGEST, **options}
    return kind(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create(given),
        poll_interval=0.01,
        refill_fn=None,
    )


def reward_of(prompt, session):
    return float((3 * prompt + 5 * session) % 7) / 6


def length_of(prompt, session):
    return 2 + (prompt + session) % 8


def messages(prompt):
    return [{"role": "user", "content": f"What is {prompt} + 1?"}]


def put(prompts=2, n=N, partition="train", outputs=1, reward=reward_of):
    """Finished prompts with their rollouts, as an agent loop of verl puts them; the uids."""
    uids = [f"uid{prompt}" for prompt in range(prompts)]
    for prompt, uid in enumerate(uids):
        keys, fields, tags = [], [], []
        for session in range(n):
            for output in range(outputs):
                length = length_of(prompt, session)
                scores = torch.zeros(length)
                scores[-1] = reward(prompt, session) if output == outputs - 1 else 99.0
                keys.append(f"{uid}_{session}_{output}")
                fields.append({"rm_scores": scores, "responses": torch.ones(length), "raw_prompt": messages(prompt)})
                tags.append({"status": "success", "response_len": length, "global_steps": STEP})
        tq.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(fields), tags=tags)
    tags = [{"is_prompt": True, "status": "finished", "global_steps": STEP} for _ in uids]
    tq.kv_batch_put(keys=uids, partition_id=partition, tags=tags)
    return uids


def places(keys, uid):
    return sorted(int(key.split("_")[1]) for key in keys if key.split("_")[0] == uid)


def winnows_groups(prompts, n=N):
    return [
        plain_group(
            prompt_id(messages(p)),
            np.array([np.float32(reward_of(p, s)) for s in range(n)], dtype=np.float64),
            tokens=[np.zeros(length_of(p, s), np.int64) for s in range(n)],
            finished=[length_of(p, s) < LONGEST for s in range(n)],
        )
        for p in range(prompts)
    ]


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("select", SELECTORS.values(), ids=str)
def test_equal_rewards_are_selected_and_weighed_as_by_winnow(select, normalised):
    """The sets that winnow keeps, and verl's advantages over them within 1e-6 of winnow's."""
    uids = put(prompts=3)
    batch, _ = buffer_of(select=dict(select)).sample(STEP, "train", 3)
    select_of_winnow, rng = selector_of(select, keep=M), Rng((SEED, "select", STEP))
    groups = [group.fill(keep=keep_verified(select_of_winnow, group, rng)) for group in winnows_groups(3)]
    for uid, group in zip(uids, groups, strict=True):
        assert places(batch.keys, uid) == np.flatnonzero(group.keep).tolist()
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rm_scores"])
    scores = torch.tensor([float(of.sum()) for of in data["rm_scores"]])[:, None]
    index = np.array([key.split("_")[0] for key in batch.keys], dtype=object)
    theirs, _ = compute_grpo_outcome_advantage(
        scores, torch.ones_like(scores), index, norm_adv_by_std_in_grpo=normalised
    )
    ours = grpo(groups, eps=1e-6) if normalised else dr_grpo(groups)
    of_key = {
        f"{uid}_{session}_0": value
        for uid, values in zip(uids, ours, strict=True)
        for session, value in enumerate(np.asarray(values))
    }
    alone = {uid for uid, group in zip(uids, groups, strict=True) if int(np.asarray(group.keep).sum()) == 1}
    for key, value in zip(batch.keys, theirs[:, 0].tolist(), strict=True):
        if key.split("_")[0] not in alone:  # verl gives a group of one its reward, and winnow 0
            assert value == pytest.approx(of_key[key], rel=1e-6, abs=1e-6)  # verl computes in float32


def test_what_is_not_kept_leaves_the_queue():
    put(prompts=2)
    batch, metrics = buffer_of().sample(STEP, "train", 2)
    assert len(batch.keys) == len(batch.tags) == 2 * M
    assert set(tq.kv_list("train")["train"]) == set(batch.keys)
    assert metrics["budget/share_kept"] == M / N
    lengths = [length_of(p, s) for p in range(2) for s in range(N)]
    assert metrics["budget/generated_tokens"] == sum(lengths)
    assert metrics["budget/trained_tokens"] == sum(tag["response_len"] for tag in batch.tags)
    assert 0 < metrics["budget/kept_reward_variance"] <= 0.25


def test_other_prompts_stay_in_the_queue():
    put(prompts=3)
    batch, _ = buffer_of().sample(STEP, "train", 2)
    left = set(tq.kv_list("train")["train"]) - set(batch.keys)
    (prompt,) = {f"uid{number}" for number in range(3)} & left  # verl does not promise which prompts come first
    assert left == {prompt, *(f"{prompt}_{session}_0" for session in range(N))}


def test_validation_is_not_selected():
    put(prompts=2, n=3, partition="val")
    batch, metrics = buffer_of().sample(STEP, "val", 2)
    assert len(batch.keys) == 6
    assert not any(name.startswith("budget/") for name in metrics)


def test_outputs_of_a_session_stay_together_and_the_last_has_the_reward():
    put(prompts=1, outputs=2)
    batch, metrics = buffer_of().sample(STEP, "train", 1)
    assert len(batch.keys) == 2 * M
    sessions = {key.rsplit("_", 1)[0] for key in batch.keys}
    assert len(sessions) == M
    kept = [reward_of(0, int(session.split("_")[1])) for session in sessions]
    assert metrics["budget/kept_reward_variance"] == pytest.approx(np.var(kept))


def test_the_asynchronous_buffer_selects_too():
    put(prompts=2)
    batch, _ = buffer_of(PODSReplayBufferAsync).sample(STEP, "train", 2)
    assert len(batch.keys) == 2 * M


def test_a_reward_that_is_not_finite_is_never_kept():
    put(prompts=1, reward=lambda prompt, session: float("nan") if session < 13 else 1.0)
    batch, _ = buffer_of(select="all").sample(STEP, "train", 1)
    assert places(batch.keys, "uid0") == [13, 14, 15]


def prompts_of(count):
    batch = tu.get_tensordict(
        {"raw_prompt": [messages(p) for p in range(count)], "uid": [f"uid{p}" for p in range(count)]}
    )
    assert isinstance(batch, TensorDict)
    return batch


def counts_in(batch):
    """As verl's agent loop reads them, after verl has divided the batch among its workers."""
    stacks = [dict(chunk.items())[COUNT] for chunk in batch.chunk(2)]
    assert all(isinstance(stack, NonTensorStack) for stack in stacks)
    return [stack[place].data for stack in stacks for place in range(len(stack))]


def test_every_prompt_is_sampled_n_times():
    batch = prompts_of(4)
    set_counts(batch, buffer_of())
    assert counts_in(batch) == [N] * 4


def test_an_allocator_moves_rollouts_to_prompts_that_are_neither_solved_nor_hopeless():
    put(prompts=2, reward=lambda prompt, session: float(prompt == 0 or session < 8))
    buffer = buffer_of(allocate="gvm_online")
    buffer.sample(STEP, "train", 2)
    batch = prompts_of(2)
    set_counts(batch, buffer)
    solved, mixed = counts_in(batch)
    assert solved + mixed == 2 * N
    assert 2 <= solved < mixed


def test_the_trainer_is_registered_and_is_synchronous():
    assert get_trainer_cls(MODE) is PODSTrainer
    trainer = PODSTrainer.__new__(PODSTrainer)
    trainer.trainer_mode = MODE
    assert trainer.trainer_mode == "sync"


def test_a_process_of_ray_gets_the_trainer_from_its_environment():
    """As on a cluster that is already running: the variable is in runtime_env, as ray_kwargs.ray_init has it."""

    @ray.remote(num_cpus=0, runtime_env={"env_vars": {"VERL_USE_EXTERNAL_MODULES": "winnow_verl.trainer"}})
    def registered():
        import verl.trainer.ppo.v1  # noqa: F401
        from verl.trainer.ppo.v1 import trainer_base

        return trainer_base.get_trainer_cls("winnow_sync").__name__

    assert ray.get(registered.remote()) == "PODSTrainer"


def test_the_trainer_submits_the_counts(monkeypatch):
    submitted = []
    base = PODSTrainer.__mro__[1]
    monkeypatch.setattr(base, "_submit_batch_to_rollout", lambda self, batch: submitted.append(counts_in(batch)) or 4)
    trainer = PODSTrainer.__new__(PODSTrainer)
    trainer.replay_buffer = buffer_of()
    assert trainer._submit_batch_to_rollout(prompts_of(4)) == 4
    assert submitted == [[N] * 4]


def test_verl_builds_the_buffer_from_its_configuration():
    """trainer.v1.sampler of verl's configuration, read by verl's own function."""
    sampler = {
        "custom_sampler": {"path": "pkg://winnow_verl.buffer", "name": "PODSReplayBuffer"},
        "max_off_policy_threshold": 8,
        "max_off_policy_strategy": "drop",
        "sampler_kwargs": {"rollouts_per_prompt": N, "keep_per_prompt": M},
    }
    config = {"trainer": {"v1": {"sampler": sampler}}, "actor_rollout_ref": {"rollout": {"n": M}}}
    trainer = PODSTrainer.__new__(PODSTrainer)
    trainer.config = OmegaConf.create(config)
    assert isinstance(trainer._build_replay_buffer(), PODSReplayBuffer)
    trainer.config.actor_rollout_ref.rollout.n = N
    with refused(ConfigError, M, N, key="actor_rollout_ref.rollout.n", code="config.combination"):
        trainer._build_replay_buffer()


def test_another_buffer_is_refused():
    with refused(ConfigError, "object", key="trainer.v1.sampler.custom_sampler.name", code="config.missing_key"):
        check_buffer(object(), M)
