"""`winnow push`: publish a trained model on the hub, with a card that states its task, its accuracy and its budget."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from winnow.commands.command_line import print_text
from winnow.errors import DataError
from winnow.models.folder import PUBLISHED_FILES, cached_folder
from winnow.run_view.configuration import at, evaluations, heading
from winnow.run_view.summary import summary
from winnow.state.disk import errors_as
from winnow.state.logbook import read_metrics
from winnow.state.saved_runs import Manifest, check_is_model, manifest_of, run_of
from winnow.version import __version__

# Of the files of a model (`PUBLISHED_FILES`), those with which a checkpoint resumes its training.
OF_TRAINING = ("trainer.json", "manifest.json", "adapter/*")
CARD = "README.md"


def push(
    model: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model folder, such as a checkpoint of a run.")],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository; it must not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Only its owner can read it.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Add a commit to a repository that exists.")] = False,
    card_only: Annotated[bool, typer.Option("--card", help="Print the card, and publish nothing.")] = False,
) -> None:
    """Publish a model on the hub with a card. A run's card states its task, its accuracy and its budget."""
    check_is_model(str(model))
    if not (model / "config.json").is_file():
        raise DataError(
            f"there is no model in the folder {model}",
            remedy="give a model folder, such as a checkpoint",
            code="data.missing",
        )
    own = model / CARD
    unread = errors_as(
        DataError,
        f"{own} is no text in UTF-8",
        "save it as UTF-8, or remove it",
        code="data.unreadable",
        of=(UnicodeDecodeError,),
    )
    with unread:
        card = own.read_text(encoding="utf-8") if own.is_file() else card_of(model, repo)
    if card_only:
        print_text(card)
        return
    print_text(publish(model, repo, card, private=private, update=update))


def card_of(model: Path, repo: str) -> str:
    """The card of a model. For a checkpoint of a run it has what the run was and what came of it."""
    run = run_of(str(model))
    manifest = None if run is None else manifest_of(run)
    base = at(manifest.config, "model", "path") if manifest else None
    head = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["winnow", "reinforcement-learning", "rlvr"],
        **({"base_model": base} if isinstance(base, str) and _is_of_hub(base) else {}),
    }
    parts = [
        "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---"]),
        f"# {repo.rpartition('/')[2]}",
        *(_training(run, manifest, model) if run is not None and manifest is not None else ()),
        f"```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("{repo}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{repo}")\n```',
    ]
    return "\n\n".join(parts) + "\n"


def _is_of_hub(base: str) -> bool:
    """Whether the model that a run started from is one of the hub: its cache has it, and no folder is called so.

    The form of a name does not tell: `a/b` may be a folder of the place where the run was started. A base that is not
    certain is left out of the card.
    """
    return base.count("/") == 1 and not Path(base).exists() and cached_folder(base) is not None


def rows_until(rows: Sequence[Mapping[str, float]], done: int) -> list[Mapping[str, float]]:
    """The rows of the first `done` steps, and the evaluation after them, which measured a checkpoint's weights."""
    evaluated = (
        {key: value for key, value in row.items() if key == "step" or key.startswith("eval/")}
        for row in rows
        if row["step"] == done
    )
    return [*(row for row in rows if row["step"] < done), *evaluated]


def _training(run: Path, manifest: Manifest, checkpoint: Path) -> Iterator[str]:
    """What a run was up to a checkpoint, as paragraphs. Paths of this machine are not among it."""
    done = int(checkpoint.resolve().name.rpartition("-")[2])  # steps, from its name
    config, rows = manifest.config, rows_until(read_metrics(run), done)
    table = config.get("model")  # a manifest may contain anything
    settings = table if isinstance(table, Mapping) else {}
    named = _without_folders({**config, "model": {**settings, "path": Path(str(settings.get("path"))).name}})
    yield f"Trained with winnow {__version__} by reinforcement learning with verifiable rewards: {heading(named)}."
    keys = {
        "task": at(named, "task", "use"),
        "reward": at(named, "reward", "use"),
        "learning rate": at(config, "optimizer", "learning_rate"),
        "precision": at(config, "model", "dtype"),
        "seed": config.get("seed"),
    }
    yield "\n".join(
        ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in keys.items() if value is not None)]
    )
    system, template = (at(config, "prompt", key) for key in ("system", "template"))
    message = f", with the system message {json.dumps(system, ensure_ascii=False)}" if system else ""
    yield f"Its prompts had the template `{Path(str(template)).name}`{message}."
    text = summary(rows, config, evaluations(manifest.data))
    yield f"What the run measured (± is one standard error over problems, not over seeds):\n\n```text\n{text}\n```"
    if at(config, "model", "lora") and at(config, "model", "dtype") == "bfloat16":
        yield "It measured the adapter beside its base. These weights are their sum, rounded to bfloat16."


def _without_folders(value: Any) -> Any:
    """The same data, with every "file.py:function" without its folder."""
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folders(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and ".py:" in value else value


def publish(model: Path, repo: str, card: str, *, private: bool, update: bool) -> str:
    """Upload the files of a model and its card as one commit; returns its address.

    Raises DataError for a repository that exists (without `update`), and where the hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    operations = [
        CommitOperationAdd(path_in_repo=CARD, path_or_fileobj=card.encode()),
        *(CommitOperationAdd(path_in_repo=str(p.relative_to(model)), path_or_fileobj=p) for p in files_of(model)),
    ]
    try:
        if not update and api.repo_exists(repo):
            raise DataError(
                f"{repo} exists on the hub",
                remedy="choose another name, or add a commit with --update",
                code="data.exists",
            )
        if update and private and api.repo_exists(repo) and not api.repo_info(repo).private:
            raise DataError(
                f"{repo} is public, and an update makes no repository private",
                remedy="make it private on the hub first, or omit --private",
                code="data.exists",
            )
        api.create_repo(repo, private=private, exist_ok=True)
        commit = api.create_commit(repo, operations, commit_message=f"A model of winnow {__version__}")
    except DataError:
        raise
    except Exception as error:  # errors of the hub and the network have no common base class
        raise DataError(
            f"{repo} could not be published: {error}",
            remedy="check the name, the network, and that you are logged in (hf auth login)",
            code="data.unwritable",
        ) from error
    return str(commit.commit_url)


def files_of(model: Path) -> Sequence[Path]:
    """The files of a model folder that belong to the model, and not to the state of its training."""
    found = {path for pattern in PUBLISHED_FILES for path in model.rglob(pattern) if path.is_file()}
    return sorted(p for p in found if not any(p.relative_to(model).match(pattern) for pattern in OF_TRAINING))
