"""Recipes: the configurations in the package, each named by a bare word, such as arithmetic.

    find_config("arithmetic")         # the recipe of this name
    find_config("./arithmetic.toml")  # a file

A word is bare if it has neither a path separator nor a dot. It never names a file, and a path never names a recipe by
its last part. A recipe names no file by a relative path, so it means the same wherever the package is installed.
"""

from __future__ import annotations

import os
from pathlib import Path

from winnow.errors import ConfigError, near_miss

FOLDER = Path(__file__).parent
SUFFIX = ".toml"
CONFIG = "config.toml"  # the configuration in a folder that `winnow init` makes


def recipe_paths() -> dict[str, Path]:
    """name -> file of every recipe, sorted by name."""
    return {path.stem: path for path in sorted(FOLDER.glob(f"*{SUFFIX}"))}


def recipe_at(path: Path) -> str | None:
    """The name of the recipe in this file; None for another file."""
    is_recipe = path.suffix == SUFFIX and path.stem in recipe_paths() and path.resolve().parent == FOLDER.resolve()
    return path.stem if is_recipe else None


def summary(path: Path) -> str:
    """The first line of a recipe's opening comment, without its mark."""
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("#").strip()


def find_config(name: str | Path, folder: str | Path = "") -> Path:
    """The file of a configuration. Text is a recipe if it is a bare word; otherwise, and as a `Path`, it is a path.

    A relative path starts from `folder`, by default the working directory. Raises ConfigError for a bare word that is
    no recipe, for one that is also a file or a folder in `folder`, and for what is neither a text nor a path.
    """
    if not isinstance(name, (str, Path)):
        raise ConfigError(
            f"a {type(name).__name__} is given as the configuration, which is the name of a recipe or a path",
            remedy="name what it is: reward=my_function",
            code="config.value",
        )
    if isinstance(name, Path) or not _is_bare(name):
        return Path(folder, os.path.expanduser(name))
    recipes, here = recipe_paths(), Path(folder, name)
    if name in recipes and not os.path.lexists(here):
        return recipes[name]
    raise _ambiguous(name, recipes[name], here) if name in recipes else _unknown(name, here)


def _is_bare(name: str) -> bool:
    return bool(name) and not any(mark in name for mark in (".", os.sep, os.altsep) if mark)


def _ambiguous(name: str, recipe: Path, here: Path) -> ConfigError:
    return ConfigError(
        f"{name!r} is a recipe, and also a {_kind(here)} in {_place(here)}",
        remedy=f"write {_written(here)} for the {_kind(here)}, or {str(recipe)!r} for the recipe",
        code="config.duplicate",
    )


def _unknown(name: str, here: Path) -> ConfigError:
    if os.path.lexists(here):
        return ConfigError(
            f"{name!r} is no recipe, but a {_kind(here)} in {_place(here)}",
            remedy=f"write {_written(here)} for the {_kind(here)}, or the name of a recipe (winnow list recipes)",
            code="config.unknown_name",
        )
    paths = f"{f'./{name}'!r} or {name + SUFFIX!r}"
    return ConfigError(
        f"there is no recipe {name!r}, and a word without a separator or a suffix names a recipe",
        remedy=f"for a file, write {paths}; for a recipe, {near_miss(name, recipe_paths())}",
        code="config.unknown_name",
    )


def _kind(path: Path) -> str:
    return "folder" if path.is_dir() else "file"


def _place(path: Path) -> str:
    return "the working directory" if path.parent == Path() else f"{path.parent}"


def _written(path: Path) -> str:
    """The path of a file, or of the configuration in a folder, so that it is not a bare word."""
    inside = path / CONFIG
    return repr(f"./{path.name}/{CONFIG}" if inside.is_file() else f"./{path.name}")
