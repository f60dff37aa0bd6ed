"""Tasks, which make problems, and templates, which render them as prompts. Importing this registers the tasks."""

from winnow.tasks import (
    arithmetic,
    code,
    guess_number,
    ifbench,
    instructions,
    jsonl,
    mathematics,
    reasoning_gym,
    verifiers,
)

__all__ = [
    "arithmetic",
    "code",
    "guess_number",
    "ifbench",
    "instructions",
    "jsonl",
    "mathematics",
    "reasoning_gym",
    "verifiers",
]
