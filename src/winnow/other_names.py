"""What papers and other programs call winnow's members, keys and values, and how each is written here.

Every remedy for such a name is made from the tables of this file. The settings in it are TOML, which can be pasted
into a configuration or given to `--set`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Value = Any  # of TOML
Ours = Callable[[str], Value]  # the value of a key of winnow in the configuration, or its default

# Published methods: the names by which they are sought in any family, and the settings that make the method here. Those
# that train on every rollout of a prompt have select = "all".
METHODS: Mapping[str, tuple[str, Mapping[str, Value]]] = {
    "PODS": ("pods down_sampling max_variance_down_sampling", {"select": "max_variance"}),
    "GRPO": ("grpo", {"select": "all", "advantage": "grpo", "weighting": "sequence", "loss": "clip"}),
    "Dr. GRPO": ("dr_grpo drgrpo", {"select": "all", "advantage": "dr_grpo", "weighting": "constant", "loss": "clip"}),
    "DAPO": (
        "dapo clip_higher",
        {"select": "all", "advantage": "grpo", "weighting": "token", "loss": {"use": "clip", "clip_high": 0.28}},
    ),
    "GSPO": ("gspo", {"select": "all", "advantage": "grpo", "weighting": "sequence", "loss": "gspo"}),
    "CISPO": ("cispo", {"select": "all", "advantage": "grpo", "weighting": "token", "loss": "cispo"}),
    "RLOO": ("rloo", {"select": "all", "advantage": "rloo", "loss": "reinforce"}),
    "PPO": ("ppo", {"select": "all", "advantage": "gae", "loss": "clip", "critic": {"form": "model"}}),
    "REINFORCE": ("reinforce policy_gradient", {"select": "all", "advantage": "raw", "loss": "reinforce"}),
    "REINFORCE++": ("reinforce_plus_plus", {"select": "all", "advantage": "batch", "loss": "clip"}),
    "MaxRL": ("maxrl", {"select": "all", "advantage": "maxrl", "loss": "reinforce"}),
    "RAFT": (
        "raft rejection_sampling",
        {"select": "all", "advantage": "raft", "weighting": "token", "loss": "reinforce"},
    ),
    "RAFT++": (
        "raft_plus_plus",
        {"select": "all", "advantage": "raft", "weighting": "token", "loss": "raft_plus_plus"},
    ),
    "GVM": ("gvm", {"allocate": "gvm", "select": "all", "weighting": "prompt"}),
    "Knapsack RL": ("knapsack_rl", {"allocate": "knapsack", "select": "all"}),
    "VIP": ("vip", {"allocate": "vip_rloo", "select": "all", "advantage": "rloo", "weighting": "prompt"}),
    "GRESO": ("greso", {"sample": "greso"}),
    "MoPPS": ("mopps", {"sample": "mopps"}),
    "AdaRFT": ("adarft curriculum", {"sample": "adarft"}),
    "Reinforce-Ada": ("reinforce_ada reinforce_ada_balance", {"rounds": "balanced"}),
    "Reinforce-Ada-pos": ("reinforce_ada_pos", {"rounds": "positive"}),
    "SPEED": ("speed speed_rl", {"rounds": "screening"}),
    "Pilot-Commit": ("pilot_commit", {"rounds": "pilot_commit"}),
    "dynamic sampling": ("dynamic_sampling filter_groups", {"rollout.dynamic_sampling_rounds": 10}),
    "IcePop": ("icepop", {"correction": "icepop"}),
}

# Key of a family -> its member -> names of the member alone, with its own where other programs have that one too.
MEMBERS: Mapping[str, Mapping[str, str]] = {
    "advantage": {"dr_grpo": "mean_only centered", "raw": "no_baseline", "gae": "gae"},
    "correction": {
        "token_truncate": "tis truncated_importance_sampling",
        "sequence_mask": "mis masked_importance_sampling",
        "icepop": "token_mask",
    },
    "loss": {"clip": "vanilla ppo_clip clipped", "reinforce": "pg vanilla_policy_gradient"},
    "reward": {"pattern": "regex regexp", "overlong": "soft_overlong_punishment"},
    "rollout.engine": {"hf": "hf transformers huggingface", "vllm": "vllm"},
    "select": {
        "finished": "mask_truncated_completions overlong_filtering",
        "max_reward": "best_of_n top_k",
        "all": "none",
    },
    "task": {"jsonl": "parquet csv json"},
    "terms": {"kl": "k1 k2 k3 kl_k3 low_var_kl kl_loss kl_penalty", "entropy": "entropy_bonus"},
    "track": {
        "wandb": "wandb weave",
        "tensorboard": "tensorboard tensorboardx",
        "mlflow": "mlflow",
        "trackio": "trackio",
    },
    "weighting": {
        "token": "token_mean",
        "sequence": "seq_mean_token_mean sequence_mean",
        "constant": "seq_mean_token_sum_norm",
    },
}

# Our key -> its names in other programs: those of TRL, OpenRLHF and common ones by their last part, verl's in full.
# docs/from-trl.md and docs/from-verl.md list the same names and the differences; a test compares the two.
_KEYS: Mapping[str, str] = {
    "advantage": "scale_rewards algorithm.adv_estimator algorithm.norm_adv_by_std_in_grpo advantage_estimator",
    "advantage.gamma": "algorithm.gamma",
    "advantage.kl_reward": "algorithm.use_kl_in_reward algorithm.kl_ctrl.kl_coef",
    "advantage.lam": "algorithm.lam lambd",
    "checkpoint.every": "save_steps trainer.save_freq",
    "checkpoint.keep_last": "save_total_limit trainer.max_actor_ckpt_to_keep",
    "correction": "vllm_importance_sampling_correction algorithm.rollout_correction",
    "critic.optimizer.learning_rate": "critic_learning_rate critic.optim.lr",
    "critic.optimizer.max_grad_norm": "critic.grad_clip",
    "critic.pretraining_steps": "trainer.critic_warmup",
    "evaluate.every": "eval_steps trainer.test_freq trainer.val_before_train",
    "evaluate.greedy": "actor_rollout_ref.rollout.val_kwargs",
    "evaluate.rollouts_per_prompt": "num_generations_eval",
    "log.every": "logging_steps",
    "log.rollouts": "log_completions trainer.rollout_data_dir",
    "loss": "actor_rollout_ref.actor.policy_loss.loss_mode importance_sampling_level",
    "loss.clip_high": "epsilon_high actor_rollout_ref.actor.clip_ratio_high",
    "loss.clip_low": "clip_range cliprange epsilon actor_rollout_ref.actor.clip_ratio_low eps_clip",
    "loss.dual": "delta actor_rollout_ref.actor.clip_ratio_c",
    "model.dtype": "torch_dtype bf16 model_init_kwargs",
    "model.gradient_checkpointing": "actor_rollout_ref.model.enable_gradient_checkpointing",
    "model.lora": "lora use_peft peft_config",
    "model.lora.alpha": "lora_alpha",
    "model.lora.rank": "lora_rank lora_r actor_rollout_ref.model.lora_rank",
    "model.lora.targets": "lora_target_modules target_modules",
    "model.path": "model_name model_name_or_path actor_rollout_ref.model.path pretrain",
    "model.quantization": "load_in_4bit",
    "optimizer.betas": "adam_beta1 adam_beta2 actor_rollout_ref.actor.optim.betas",
    "optimizer.eps": "adam_epsilon",
    "optimizer.learning_rate": "lr actor_rollout_ref.actor.optim.lr actor_learning_rate",
    "optimizer.max_grad_norm": "grad_clip actor_rollout_ref.actor.grad_clip max_norm",
    "optimizer.schedule": "lr_scheduler_type",
    "optimizer.warmup_steps": "warmup_ratio actor_rollout_ref.actor.optim.lr_warmup_steps lr_warmup_ratio",
    "output": "output_dir trainer.default_local_dir save_path",
    "prompt.max_prompt_tokens": "max_seq_length max_prompt_length data.max_prompt_length prompt_max_len",
    "prompt.system": "system_prompt",
    "prompt.template_options": "chat_template_kwargs data.apply_chat_template_kwargs",
    "ranks.learner": "actor_rollout_ref.actor.strategy",
    "reward": "reward_funcs reward.custom_reward_function.path remote_rm_url",
    "reward.parts": "reward_weights",
    "rollout.dynamic_sampling_rounds": "algorithm.filter_groups",
    "rollout.engine": "use_vllm vllm_mode actor_rollout_ref.rollout.name",
    "rollout.engine.compiled": "actor_rollout_ref.rollout.enforce_eager",
    "rollout.engine.gpu_memory_utilization": (
        "vllm_gpu_memory_utilization actor_rollout_ref.rollout.gpu_memory_utilization"
    ),
    "rollout.engine.sleep": "vllm_enable_sleep_mode actor_rollout_ref.rollout.free_cache_engine",
    "rollout.engine.tensor_parallel": "vllm_tensor_parallel_size actor_rollout_ref.rollout.tensor_model_parallel_size",
    "rollout.max_new_tokens": "max_tokens max_completion_length data.max_response_length generate_max_len",
    "rollout.max_rollouts_at_once": "actor_rollout_ref.rollout.max_num_seqs",
    "rollout.prompts_per_step": (
        "batch_size train_batch_size per_device_train_batch_size rollout_batch_size data.train_batch_size"
    ),
    "rollout.rollouts_per_prompt": "group_size num_generations actor_rollout_ref.rollout.n n_samples_per_prompt",
    "rollout.stop": "stop_strings",
    "rollout.temperature": "actor_rollout_ref.rollout.temperature",
    "rollout.top_p": "actor_rollout_ref.rollout.top_p",
    "seed": "data.shuffle data.seed",
    "select": "mask_truncated_completions",
    "steps": "max_steps num_train_epochs trainer.total_epochs trainer.total_training_steps num_episodes",
    "task": "dataset data.train_files data.val_files prompt_data",
    "task.answer": "label_key",
    "task.path": "dataset_name",
    "task.question": "data.prompt_key input_key",
    "terms": (
        "beta kl_coef init_kl_coef entropy_coef entropy_loss_coef actor_rollout_ref.actor.use_kl_loss "
        "actor_rollout_ref.actor.kl_loss_coef actor_rollout_ref.actor.entropy_coeff"
    ),
    "track": "wandb report_to trainer.logger use_wandb use_tensorboard",
    "update.epochs": "num_iterations actor_rollout_ref.actor.ppo_epochs max_epochs",
    "update.layout": "actor_rollout_ref.model.use_remove_padding packing_samples",
    "update.tokens_per_micro_batch": (
        "gradient_accumulation_steps actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu micro_train_batch_size micro_rollout_batch_size"
    ),
    "update.updates_per_step": "steps_per_generation generation_batch_size actor_rollout_ref.actor.ppo_mini_batch_size",
    "verify.workers": "reward.num_workers",
    "weighting": "loss_type actor_rollout_ref.actor.loss_agg_mode",
}
OTHER_NAMES: Mapping[str, str] = {name: own for own, names in _KEYS.items() for name in names.split()}

# Other name -> how our key counts. {value} is the number given, {n} our rollouts of a prompt, {all} their product.
_COMPLETIONS = (
    "which counts prompts, not completions: {value} would be {all} completions with rollout.rollouts_per_prompt = {n}"
)
_TOKENS = "which counts tokens, not rows; its size changes memory and time, and no gradient"
_EPOCHS = "which counts steps: an epoch of N problems has N / rollout.prompts_per_step of them"
_UPDATES = "which counts updates: the prompts of a step divided by those of an update"
_UNITS: Mapping[str, str] = {
    "per_device_train_batch_size": _COMPLETIONS,
    "train_batch_size": _COMPLETIONS,
    "batch_size": _COMPLETIONS,
    "gradient_accumulation_steps": _TOKENS,
    "micro_train_batch_size": _TOKENS,
    "micro_rollout_batch_size": _TOKENS,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": _TOKENS,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": _TOKENS,
    "num_train_epochs": _EPOCHS,
    "num_episodes": _EPOCHS,
    "trainer.total_epochs": _EPOCHS,
    "generation_batch_size": _UPDATES,
    "actor_rollout_ref.actor.ppo_mini_batch_size": _UPDATES,
    "max_seq_length": "which counts the prompt's tokens alone; those of a completion are rollout.max_new_tokens",
}

# A value of another program -> winnow's settings: empty for the default here, None for a value that has no counterpart
Form = Callable[[Value, Ours], Mapping[str, Value] | None]


def _term(use: str) -> Form:
    return lambda value, ours: {"terms": [{"use": use, "coefficient": value}]} if value else {}


def _switch(key: str, on: Value, off: Value = None) -> Form:
    return lambda value, ours: {key: on} if value is True else {key: off} if off is not None else {}


def _member(key: str, **others: str) -> Form:
    """The member for a name that another program has for one; `others` are names of this program alone."""

    def form(value: Value, ours: Ours) -> Mapping[str, Value] | None:
        name = "none" if value is False else value
        found = others.get(str(name)) or member_called(key, str(name))
        return {key: found} if found else None

    return form


def _warmup(value: Value, ours: Ours) -> Mapping[str, Value] | None:
    steps = ours("steps")
    shares = isinstance(value, (int, float)) and 0 <= value <= 1 and isinstance(steps, int)
    return {"optimizer.warmup_steps": round(value * steps)} if shares else None


def _beta(place: int) -> Form:
    def form(value: Value, ours: Ours) -> Mapping[str, Value] | None:
        betas = ours("optimizer.betas")
        if not (isinstance(betas, (list, tuple)) and len(betas) == 2 and isinstance(value, (int, float))):
            return None
        return {"optimizer.betas": [*betas[:place], value, *betas[place + 1 :]]}

    return form


def _logger(value: Value, ours: Ours) -> Mapping[str, Value] | None:
    """A list of loggers of verl or TRL, or one of them. A name without a counterpart here is not translated."""
    every = value if isinstance(value, (list, tuple)) else [value]
    names = [name for name in every if name not in ("console", "none")]
    found = [member_called("track", str(name)) for name in names]
    return {"track": found} if found and all(found) else None if found else {}


def _loss_type(value: Value, ours: Ours) -> Mapping[str, Value] | None:
    """TRL's `loss_type` is a weighting, and with "cispo" also a loss."""
    settings = _member("weighting")(value, ours)
    return {**settings, "loss": "cispo"} if settings and value == "cispo" else settings


def _both_bounds(value: Value, ours: Ours) -> Mapping[str, Value]:
    return {"loss.clip_low": value, "loss.clip_high": value}


def _upper_bound(value: Value, ours: Ours) -> Mapping[str, Value] | None:
    """TRL clamps the ratio of CISPO at `epsilon_high` itself, and that of any other loss at 1 more."""
    cispo = "cispo" in (ours("loss"), ours("loss.use"), ours("loss_type"))
    above = cispo and isinstance(value, (int, float)) and value >= 1
    return {"loss.clip_high": round(value - 1, 9)} if above else None


_FORMS: Mapping[str, Form] = {
    **dict.fromkeys(("clip_range", "cliprange", "epsilon", "eps_clip"), _both_bounds),
    "epsilon_high": _upper_bound,
    "beta": _term("kl"),
    "kl_coef": _term("kl"),
    "init_kl_coef": _term("kl"),
    "actor_rollout_ref.actor.kl_loss_coef": _term("kl"),
    "actor_rollout_ref.actor.use_kl_loss": _switch("terms", [{"use": "kl", "coefficient": 0.001}]),  # verl's default
    "entropy_coef": _term("entropy"),
    "entropy_loss_coef": _term("entropy"),
    "actor_rollout_ref.actor.entropy_coeff": _term("entropy"),
    "importance_sampling_level": lambda value, ours: (
        {"loss": "gspo", "weighting": "sequence"} if value == "sequence" else {}
    ),
    "loss_type": _loss_type,
    "mask_truncated_completions": _switch("select", "finished"),
    "actor_rollout_ref.actor.loss_agg_mode": _member("weighting"),
    "actor_rollout_ref.actor.policy_loss.loss_mode": _member("loss"),
    "scale_rewards": _member("advantage", group="grpo", none="dr_grpo"),
    "algorithm.adv_estimator": _member("advantage"),
    "advantage_estimator": _member("advantage", group_norm="grpo", reinforce="batch"),  # OpenRLHF's REINFORCE++
    "algorithm.norm_adv_by_std_in_grpo": _switch("advantage", "grpo", "dr_grpo"),
    "use_vllm": _switch("rollout.engine", "vllm"),
    "vllm_mode": lambda value, ours: {
        "rollout.engine": {"use": "vllm", "process": "inside" if value == "colocate" else "own"}
    },
    "actor_rollout_ref.rollout.name": _member("rollout.engine"),
    "actor_rollout_ref.rollout.enforce_eager": lambda value, ours: {"rollout.engine.compiled": value is not True},
    "bf16": _switch("model.dtype", "bfloat16", "float32"),
    "load_in_4bit": _switch("model.quantization", "nf4"),
    "use_peft": _switch("model.lora", {}),
    "lora": _switch("model.lora", {}),
    "actor_rollout_ref.model.enable_gradient_checkpointing": _switch("model.gradient_checkpointing", "full"),
    "actor_rollout_ref.model.use_remove_padding": _switch("update.layout", "packed"),
    "packing_samples": _switch("update.layout", "packed"),
    "adam_beta1": _beta(0),
    "adam_beta2": _beta(1),
    "warmup_ratio": _warmup,
    "lr_warmup_ratio": _warmup,
    "stop_strings": lambda value, ours: {"rollout.stop": list(value) if isinstance(value, (list, tuple)) else [value]},
    "report_to": _logger,
    "trainer.logger": _logger,
    "use_wandb": _switch("track", "wandb"),
    "use_tensorboard": _switch("track", "tensorboard"),
    "wandb": _switch("track", "wandb"),
}


_NOT_A_LOSS = ("advantage", "allocate", "critic.optimizer", "optimizer")  # their `beta` and `epsilon` are others


def own_name(written: str) -> str | None:
    """winnow's key for the key `written` of another program; None for a name that `OTHER_NAMES` lacks."""
    name = _sought(written)
    return None if name is None else OTHER_NAMES[name]


def _sought(written: str) -> str | None:
    table, _, last = written.rpartition(".")
    names = (written,) if last in ("beta", "epsilon") and table in _NOT_A_LOSS else (written, last)
    return next((name for name in names if name in OTHER_NAMES), None)


def remedy_for_key(written: str, value: Value, ours: Ours) -> str | None:
    """What to write instead of another program's key with this value; None for a name that `OTHER_NAMES` lacks.

    `ours` returns the value of a key of winnow in the same configuration.
    """
    name = _sought(written)
    if name is None:
        return None
    own = OTHER_NAMES[name]
    settings = _FORMS[name](value, ours) if name in _FORMS else None
    if settings is not None:
        return f"use {own!r}: write {as_settings(settings)}" if settings else f"remove it: {own!r} is so by default"
    if name not in _UNITS:
        return f"use {own!r}"
    n = ours("rollout.rollouts_per_prompt")
    product = value * n if isinstance(value, int) and isinstance(n, int) else "as many"
    return f"use {own!r}, {_UNITS[name].format(value=value, n=n, all=product)}"


def member_called(key: str, name: str) -> str | None:
    """The member of the family at `key` that papers or other programs call `name`; None for any other name."""
    sought = _spelled(name)
    settings = _method(sought)[1]
    own = settings.get(key)
    if own is not None:
        return str(own["use"] if isinstance(own, Mapping) else own)
    return next((member for member, names in MEMBERS.get(key, {}).items() if sought in names.split()), None)


def remedy_for_member(key: str, name: str) -> str | None:
    """What to write instead of a name that the family at `key` lacks; None for a name that no table has."""
    title, settings = _method(_spelled(name))
    own = member_called(key, name)
    if not title:
        return own and f"did you mean {own!r}?"
    method = as_settings(settings)
    return f"did you mean {own!r}, as in {title} ({method})?" if own else f"remove it; {title} is {method}"


def _method(sought: str) -> tuple[str, Mapping[str, Value]]:
    """The title and the settings of a method; empty for a name that no method has."""
    found = ((title, settings) for title, (names, settings) in METHODS.items() if sought in names.split())
    return next(found, ("", {}))


def _spelled(name: str) -> str:
    """A name as the tables have it: "Dr. GRPO", "dr-grpo" and "DrGRPO" are one, and "RAFT++" is raft_plus_plus."""
    plain = name.lower().replace("++", "_plus_plus").replace(".", "")
    return "_".join(plain.replace("-", " ").replace("_", " ").split())


def as_settings(settings: Mapping[str, Value]) -> str:
    """Settings as TOML in one line: `advantage = "grpo", loss = "clip"`."""
    return ", ".join(f"{key} = {as_toml(value)}" for key, value in settings.items())


def as_key(name: object) -> str:
    """One part of a key as TOML, in quotes unless it may be bare."""
    text = str(name)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else json.dumps(text, ensure_ascii=False)


def as_toml(value: Value) -> str:
    """A value as TOML."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{as_key(key)} = {as_toml(v)}" for key, v in value.items() if v is not None)
        return f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
