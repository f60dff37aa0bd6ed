"""The files of a model: where they are, and those that training does not change.

In every function, `path` has one of several forms. It names a tiny policy inside the package ("bundled", or, for the
environments of winnow, "bundled:calculator" and "bundled:guess_number"), or "published": the published model in the
cache folder that the variable WINNOW_PUBLISHED names. It may also be a folder in Hugging Face format, or a hub id,
which means its folder in the hub's cache. Files are checked before they are opened.

Tokenizer, chat templates and generation settings are copied byte by byte into each checkpoint of a run. transformers
would rewrite them in its present form: other keys, a template in another file, end tokens omitted.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from winnow.errors import ConfigError, DataError

# The files of a model on the hub that are downloaded or published; neither pickles nor code.
PUBLISHED_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt", "*.model", "LICENSE*")
BUNDLED = Path(__file__).parent / "bundled"
IN_PACKAGE = {
    "bundled": BUNDLED,
    "bundled:calculator": Path(__file__).parent / "bundled_calculator",
    "bundled:guess_number": Path(__file__).parent / "bundled_guess_number",
}
PUBLISHED = "published"
SETTINGS = ("*.json", "*.jinja", "*.txt", "*.model")  # all but the weights
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
MOST = 2**28  # bytes of a file that is copied into checkpoints; the largest known file has about 20 MB
GENERATION = "generation_config.json"
NAMES = (  # of the files that are copied into checkpoints
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja",
    "chat_template.json", "additional_chat_templates/*.jinja", GENERATION,
)  # fmt: skip
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_SHARD = re.compile(r"\w[\w.-]*\.safetensors")


@contextmanager
def relabel_errors(key: str, of: str = "model.path") -> Iterator[None]:
    """A context in which errors about a model that is not the policy name its `key`."""
    try:
        yield
    except (ConfigError, DataError) as error:
        problem, remedy = (text.replace(of, key) for text in (error.problem, error.remedy))
        below = error.key is not None and f"{error.key}.".startswith(f"{of}.")
        renamed = f"{key}{error.key[len(of) :]}" if error.key is not None and below else error.key
        raise type(error)(problem, remedy=remedy, key=renamed, code=error.code) from error


def settings_folder(path: str) -> Path:
    """The folder with the settings and the tokenizer, downloaded from the hub where necessary.

    Raises DataError if there is no such model, and for the folder of an adapter.
    """
    folder = _download(path, SETTINGS) if is_hub_id(path) else _local(path)
    if (folder / "adapter_config.json").exists():
        raise refused(
            f"model.path: {folder} holds an adapter (adapter_config.json) and no whole model",
            "name the folder of the merged model, such as a checkpoint of winnow",
            "data.unfit_model",
        )
    return folder


def weights_folder(path: str) -> Path:
    """The same folder with every file of weights, all of them safetensors. Raises DataError otherwise."""
    folder = settings_folder(path)
    names = weight_files(folder)
    if is_hub_id(path) and _missing(folder, names):
        folder = _download(path, names, revision=folder.name)  # the revision whose index was read
    if missing := _missing(folder, names):
        raise refused(
            f"model.path: no usable weights of {path!r}: {folder} has no {missing[0]}",
            "copy every *.safetensors file of the model into the folder (winnow opens no other kind)",
            "data.missing",
        )
    return folder


def weight_files(folder: Path) -> tuple[str, ...]:
    """Names of the files with the weights.

    Raises DataError for an index that is malformed or names files that winnow does not open: pickles, or files outside
    the folder.
    """
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return (WEIGHTS,)
    try:
        names = sorted({str(name) for name in json.loads((folder / INDEX).read_bytes())["weight_map"].values()})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise refused(
            f"{folder / INDEX} is no index of weights ({type(error).__name__})", "copy it again", "data.malformed"
        ) from error
    for name in names:
        if not _SHARD.fullmatch(name):
            raise refused(
                f"{folder / INDEX} names {name!r}, and weights are read only from *.safetensors files in the model's "
                f"folder",
                "download them in that form",
                "data.unfit_model",
            )
    return tuple(names)


def refused(problem: str, remedy: str, code: str = "data.unfit_model") -> DataError:
    """The error about a model folder that cannot be used."""
    return DataError(problem, remedy=remedy, key="model.path", code=code)


def _missing(folder: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if not (folder / name).is_file()]


def is_hub_id(path: str) -> bool:
    """Whether the path is a hub id. Its first part is no folder here, or the hub's cache contains the model.

    Raises DataError for text that is neither a folder nor a hub id.
    """
    folder = _local(path)  # this and os.path.isdir accept text that cannot be a path
    if path in IN_PACKAGE or os.path.isdir(folder):
        return False
    if path == PUBLISHED:
        raise refused(
            f"model.path: {path!r} is the folder {folder}, which does not exist",
            f"run {_published_script()}, or set WINNOW_PUBLISHED or model.path to the folder of such a model",
            "data.missing",
        )
    may_be_id = _HUB_ID.fullmatch(path) is not None
    if may_be_id and (not os.path.isdir(folder.parent) or cached_folder(path)):
        return True
    hint = f" ({folder.parent} is here, and has no {folder.name})" if may_be_id else ""
    raise refused(
        f"model.path: {path!r} is a file, and a model is a folder"
        if os.path.isfile(folder)
        else f"model.path: there is no folder {path!r}{hint}",
        'set it to "bundled", a model folder, or a hub id "owner/name" (`winnow fetch` downloads one into a folder)',
        "data.missing",
    )


def _published_script() -> str:
    """The script that makes the folder "published": its path in the clone that winnow is imported from, if it is."""
    script = Path(__file__).parents[3] / "scripts" / "published-model"
    return str(script) if script.is_file() else "scripts/published-model in a clone of winnow"


def cached_folder(hub_id: str) -> Path | None:
    """The folder of a model in the hub's cache; None where the cache lacks the model's config.json. Sends no request to
    the hub.
    """
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(hub_id, "config.json")
    except ValueError:  # the hub's rules for ids are stricter than _HUB_ID
        return None
    return Path(config).parent if isinstance(config, str) else None


def _local(path: str) -> Path:
    if path == PUBLISHED:
        path = os.environ.get("WINNOW_PUBLISHED") or "~/.cache/winnow/published"
    return IN_PACKAGE[path] if path in IN_PACKAGE else Path(os.path.expanduser(path))


@functools.cache  # so that a run reads one revision, by one request
def _download(hub_id: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(patterns), revision=revision))
    except Exception as error:  # errors of the hub, the network and the disk have no common base
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise refused(
            f"model.path: there is no folder {hub_id!r} here, and the hub did not give a model of that id ({reason})",
            "check the network and the id, or set it to a folder",
            "data.missing",
        ) from error


def published_files(folder: Path) -> dict[str, bytes]:
    """{name: content} of the published files in a model folder: a few megabytes to about 20.

    Contents are kept, not paths: a run takes days, and the folder may be moved, or deleted from the hub's cache. Raises
    DataError for a file that cannot be read or is too large. It also does for a link to another place, because
    checkpoints get published; links to the blobs of the hub's cache are accepted.
    """
    files = (file for name in NAMES for file in sorted(folder.glob(name)) if file.is_file())
    return {file.relative_to(folder).as_posix(): _content(file, folder) for file in files}


def write_published_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the result of `published_files` into another folder, over files of the same names."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)


def _content(file: Path, folder: Path) -> bytes:
    place, home = file.resolve(), folder.resolve()
    if not (place.is_relative_to(home) or place.is_relative_to(home.parent.parent / "blobs")):
        raise refused(
            f"model.path: {file} is a link to {place}, outside of the model's folder",
            "copy the file into that folder",
            "data.unreadable",
        )
    try:
        if file.stat().st_size > MOST:
            raise refused(
                f"model.path: {file} has {file.stat().st_size} bytes, at most {MOST} are read",
                "remove it",
                "data.unreadable",
            )
        return file.read_bytes()
    except OSError as error:
        raise refused(
            f"model.path: cannot read {file}: {error.strerror}",
            "make it readable: every checkpoint needs it",
            "data.unreadable",
        ) from error
