"""Every key of the configuration: type, default, meaning and names in other programs; a configuration as TOML."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from winnow.config import FORM, Config, Member, RewardSection, dump, form_of, sections_in

_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false"}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}

# Our key -> its names in other programs: TRL's and common ones by their last part, verl's in full. docs/from-trl.md and
# docs/from-verl.md list the same names and the differences; a test compares the two.
_ELSEWHERE: Mapping[str, str] = {
    "advantage": "scale_rewards algorithm.adv_estimator algorithm.norm_adv_by_std_in_grpo",
    "advantage.gamma": "algorithm.gamma",
    "advantage.kl_reward": "algorithm.use_kl_in_reward",
    "advantage.lam": "algorithm.lam",
    "checkpoint.every": "save_steps trainer.save_freq",
    "checkpoint.keep_last": "save_total_limit trainer.max_actor_ckpt_to_keep",
    "correction": "vllm_importance_sampling_correction algorithm.rollout_correction",
    "critic.pretraining_steps": "trainer.critic_warmup",
    "evaluate.every": "eval_steps trainer.test_freq trainer.val_before_train",
    "evaluate.greedy": "actor_rollout_ref.rollout.val_kwargs",
    "evaluate.rollouts_per_prompt": "num_generations_eval",
    "log.every": "logging_steps",
    "log.rollouts": "log_completions trainer.rollout_data_dir",
    "loss": "actor_rollout_ref.actor.policy_loss.loss_mode",
    "loss.clip_high": "epsilon_high",
    "loss.clip_low": "clip_range cliprange epsilon actor_rollout_ref.actor.clip_ratio_low",
    "loss.dual": "delta actor_rollout_ref.actor.clip_ratio_c",
    "model.dtype": "torch_dtype bf16 model_init_kwargs",
    "model.gradient_checkpointing": "actor_rollout_ref.model.enable_gradient_checkpointing",
    "model.lora": "lora use_peft peft_config",
    "model.lora.alpha": "lora_alpha",
    "model.lora.rank": "lora_rank lora_r actor_rollout_ref.model.lora_rank",
    "model.lora.targets": "lora_target_modules target_modules",
    "model.path": "model_name model_name_or_path actor_rollout_ref.model.path",
    "model.quantization": "load_in_4bit",
    "optimizer.betas": "adam_beta1 adam_beta2 actor_rollout_ref.actor.optim.betas",
    "optimizer.eps": "adam_epsilon",
    "optimizer.learning_rate": "lr actor_rollout_ref.actor.optim.lr",
    "optimizer.max_grad_norm": "grad_clip actor_rollout_ref.actor.grad_clip",
    "optimizer.schedule": "lr_scheduler_type",
    "optimizer.warmup_steps": "warmup_ratio actor_rollout_ref.actor.optim.lr_warmup_steps",
    "output": "output_dir trainer.default_local_dir",
    "prompt.max_prompt_tokens": "max_seq_length max_prompt_length data.max_prompt_length",
    "prompt.system": "system_prompt",
    "prompt.template_options": "chat_template_kwargs data.apply_chat_template_kwargs",
    "ranks.learner": "actor_rollout_ref.actor.strategy",
    "reward": "reward_funcs reward.custom_reward_function.path",
    "reward.parts": "reward_weights",
    "rollout.dynamic_sampling_rounds": "algorithm.filter_groups",
    "rollout.engine": "use_vllm vllm_mode actor_rollout_ref.rollout.name",
    "rollout.engine.compiled": "actor_rollout_ref.rollout.enforce_eager",
    "rollout.engine.gpu_memory_utilization": (
        "vllm_gpu_memory_utilization actor_rollout_ref.rollout.gpu_memory_utilization"
    ),
    "rollout.engine.sleep": "vllm_enable_sleep_mode actor_rollout_ref.rollout.free_cache_engine",
    "rollout.engine.tensor_parallel": "vllm_tensor_parallel_size actor_rollout_ref.rollout.tensor_model_parallel_size",
    "rollout.max_new_tokens": "max_tokens max_completion_length data.max_response_length",
    "rollout.max_rollouts_at_once": "actor_rollout_ref.rollout.max_num_seqs",
    "rollout.prompts_per_step": "batch_size per_device_train_batch_size data.train_batch_size",
    "rollout.rollouts_per_prompt": "group_size num_generations actor_rollout_ref.rollout.n",
    "rollout.stop": "stop_strings",
    "rollout.temperature": "actor_rollout_ref.rollout.temperature",
    "rollout.top_p": "actor_rollout_ref.rollout.top_p",
    "seed": "data.shuffle data.seed",
    "steps": "max_steps num_train_epochs trainer.total_epochs trainer.total_training_steps",
    "task": "dataset data.train_files data.val_files",
    "task.path": "dataset_name",
    "task.question": "data.prompt_key",
    "terms": "kl_coef beta entropy_coef actor_rollout_ref.actor.use_kl_loss actor_rollout_ref.actor.entropy_coeff",
    "track": "wandb report_to trainer.logger",
    "update.epochs": "num_iterations actor_rollout_ref.actor.ppo_epochs",
    "update.layout": "actor_rollout_ref.model.use_remove_padding",
    "update.tokens_per_micro_batch": (
        "gradient_accumulation_steps actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    ),
    "update.updates_per_step": "steps_per_generation generation_batch_size actor_rollout_ref.actor.ppo_mini_batch_size",
    "verify.workers": "reward.num_workers",
    "weighting": "loss_type actor_rollout_ref.actor.loss_agg_mode",
}
OTHER_NAMES: Mapping[str, str] = {name: own for own, names in _ELSEWHERE.items() for name in names.split()}


def own_name(written: str) -> str | None:
    """winnow's key for the key `written` of another program; None for a name that `OTHER_NAMES` lacks."""
    return OTHER_NAMES.get(written) or OTHER_NAMES.get(written.rpartition(".")[2])


def format_toml(config: Config, *, secrets: bool = False) -> str:
    """The resolved configuration as TOML that can be loaded again, one dotted key per line, as for `--set`. `secrets`
    as in `dump`.
    """
    return "\n".join(_lines(dump(config, secrets=secrets)))


def changed_lines(config: Config) -> tuple[list[str], int]:
    """The lines of `format_toml` with a value that is not the key's default, and the number of the other lines.

    An option of a member has no default here unless the member itself is the default one.
    """
    lines, defaults = (format_toml(each).splitlines() for each in (config, Config.model_validate({})))
    changed = [line for line in lines if line not in set(defaults)]
    return changed, len(lines) - len(changed)


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key, named as in a TOML file and `--set`; `terms[].coefficient` is a key of each table in a list."""

    name: str
    type: str
    default: str  # as TOML writes it; "" where there is none
    meaning: str


def keys() -> Iterator[Key]:
    """All keys, in the order of config.py. Raises ValueError for a key without a docstring there."""
    whole = format_toml(Config.model_validate({"model": {"lora": {}}}))
    yield from _keys([Config], "", dict(line.split(" = ", 1) for line in whole.splitlines()))


def _keys(forms: list[type[BaseModel]], prefix: str, defaults: dict[str, str]) -> Iterator[Key]:
    """Keys of a table, which has one section or several forms."""
    for field_name in dict.fromkeys(name for form in forms for name in form.model_fields):
        having = [form for form in forms if field_name in form.model_fields]
        fields = [form.model_fields[field_name] for form in having]
        name = prefix + field_name
        inner = list(sections_in(fields[0].annotation))
        is_member = any(issubclass(section, (Member, RewardSection)) for section in inner)
        if not inner or is_member or fields[0].default is None:
            default = defaults.get(name) or defaults.get(f"{name}.use") or next(filter(None, map(_default, fields)), "")
            own = " or ".join(json.dumps(form_of(form)) for form in having) if having != forms else ""
            only = f" Only with {FORM} {own}." if own else ""
            yield _key(name, fields, default, only)
        if inner and inner != [Member]:
            listed = typing.get_origin(fields[0].annotation) is tuple
            yield from _keys(inner, f"{name}{'[]' if listed else ''}.", defaults)


def _key(name: str, fields: list[FieldInfo], default: str, only: str) -> Key:
    """The key of a table's forms: `fields` are those of the forms that have it."""
    meaning = next((field.description for field in fields if field.description), None)
    if not meaning:
        raise ValueError(f"{name} has no meaning: write it in winnow/config.py, as a docstring under the field")
    types = dict.fromkeys(_type(field.annotation, field.metadata) for field in fields)
    return Key(name=name, type=" or ".join(types), default=default, meaning=" ".join(meaning.split()) + only)


def _default(field: FieldInfo) -> str:
    """The default of a key that a configuration without lists does not print."""
    return "" if field.is_required() or field.default is None else json.dumps(field.default)


def _type(annotation: Any, bounds: Iterable[Any] = ()) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0], [bound for each in arguments[1:] for bound in getattr(each, "metadata", [each])])
    if origin is typing.Literal:
        return " or ".join(map(json.dumps, arguments))
    if origin is tuple:
        several = arguments[-1] is Ellipsis
        return f"list of {_type(arguments[0])}" if several else f"[{', '.join(map(_type, arguments))}]"
    if origin is dict:
        return f"table of {_type(arguments[1])}"
    if arguments:  # a union. None means that the key is absent, and TOML has no functions
        own = (_type(a, bounds) for a in arguments if a is not type(None) and not _is_function(a))
        return " or ".join(dict.fromkeys(own))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "member" if issubclass(annotation, (Member, RewardSection)) else "table"
    ends = ((sign, getattr(bound, name, None)) for bound in bounds for name, sign in _BOUNDS.items())
    within = ", ".join(f"{sign} {end}" for sign, end in ends if end is not None)
    return f"{_WORDS.get(annotation, annotation.__name__)} {within}".strip()


def _is_function(annotation: Any) -> bool:
    return typing.get_origin(annotation) is typing.get_origin(Callable[..., Any])


def _lines(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} = {_value(v)}" for key, v in value.items() if v is not None)
        return f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
