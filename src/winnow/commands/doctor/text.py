"""A report as lines of text for a terminal, with control characters escaped."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from winnow.view.text import WIDTH, one_line

Section = Mapping[str, Any]
BFLOAT16 = {True: "bfloat16", False: "no bfloat16", None: "bfloat16 unknown"}


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report, section by section, then what is missing."""
    for name, describe in SECTIONS.items():
        section = report.get(name, {})
        text = [f"unknown: {section['error']}"] if "error" in section else list(describe(section))
        for number, line in enumerate(text):
            yield _filled(name if number == 0 else "", line)
    for number, one in enumerate(report["missing"]):
        yield _filled("missing" if number == 0 else "", f"to {one['to']}: {one['do']}")
    yield "winnow can run here" if report["ok"] else "winnow cannot run here"


def _filled(name: str, line: str) -> str:
    text = f"{name:<11}{one_line(line)}"
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * 13, break_long_words=False, break_on_hyphens=False)


def _winnow(w: Section) -> Iterator[str]:
    yield w["version"] if w["commit"] is None else f"{w['version']} (commit {w['commit']})"


def _system(s: Section) -> Iterator[str]:
    where = ", in a virtual environment" if s["virtual_env"] else ""
    yield s["os"]
    yield f"Python {s['python']}{where}: {s['executable']}"


def _processor(p: Section) -> Iterator[str]:
    limited = "" if p["usable"] == p["cores"] else f" ({p['usable']:g} usable)"
    yield f"{p['model']}, {p['cores']} cores{limited}: {' '.join(p['instructions']) or p['architecture']}"


def _products(p: Section) -> Iterator[str]:
    from winnow.models.products import Products  # imports torch, which may be missing: then there is no measurement

    tokens, inputs, outputs = p["shape"]
    yield str(Products(tokens, inputs, outputs, p["threads"], p["gflops"], p["unsteadiness"]))


def _memory(m: Section) -> Iterator[str]:
    yield f"{_size(m['bytes'])}, {_size(m['free_bytes'])} free"


def _cuda(c: Section) -> Iterator[str]:
    for card in c["cards"]:
        number = "?" if card["index"] is None else card["index"]
        yield (
            f"{number}: {card['name']}, {_size(card['bytes'])}, {_size(card['free_bytes'])} free, compute capability "
            f"{card['compute_capability']}, {BFLOAT16[card['bfloat16']]}, driver {card['driver']}"
        )
    built = f"torch is built for {c['built_for'] or 'CPUs'}"
    seen = f", {c['visible']} visible" if c["built_for"] else ""
    selected = c["CUDA_VISIBLE_DEVICES"]
    hidden = "" if selected is None else f" (CUDA_VISIBLE_DEVICES={selected})"
    nccl = f", NCCL {c['nccl']}" if c["nccl"] else ""
    none = "nvidia-smi lists no card" if c["visible"] else "no card"
    yield f"{'' if c['cards'] else f'{none}; '}{built}{seen}{hidden}{nccl}"


def _disks(d: Section) -> Iterator[str]:
    """A line for each file system, with the folders on it."""
    systems: dict[Any, list[str]] = {}
    for name, place in d.items():
        systems.setdefault(place["file_system"], []).append(f"{name.replace('_', ' ')} {place['path']}")
    for system, folders in systems.items():
        free = next(place["free_bytes"] for place in d.values() if place["file_system"] == system)
        yield f"{_size(free)} free: {', '.join(folders)}"


def _network(n: Section) -> Iterator[str]:
    proxies = f"proxy set ({', '.join(n['proxies'])})" if n["proxies"] else "no proxy"
    offline = f", offline ({', '.join(n['offline'])})" if n["offline"] else ""
    endpoint = ", another hub (HF_ENDPOINT)" if n["HF_ENDPOINT"] else ""
    hub = "connection to the hub not tested (--network)" if n["hub"] is None else f"the hub {n['hub']}"
    yield f"{proxies}{offline}{endpoint}; {hub}"


def _sandbox(s: Section) -> Iterator[str]:
    layers = {
        "bubblewrap": s["bubblewrap"],
        f"landlock {s['landlock']}": s["landlock"],
        "seccomp": s["seccomp"],
        "user namespaces": s["user_namespaces"],
        f"control groups v{s['control_groups']}": s["control_groups"],
    }
    yield s["chosen"] or "none works"
    yield f"available: {', '.join(name for name, available in layers.items() if available) or 'nothing'}"


def _packages(p: Section) -> Iterator[str]:
    yield ", ".join(f"{name} {version or 'MISSING'}" for name, version in p["needed"].items())
    yield from (f"{name} has an unfit version: winnow needs {wanted}" for name, wanted in p["unfit"].items())
    yield from (f"{name} cannot be imported: {error}" for name, error in p["broken"].items())
    installed = [f"{name} {package['version']}" for name, package in p["optional"].items() if package["version"]]
    yield f"optional: {', '.join(installed) or 'none'}"


def _vllm(v: Section) -> Iterator[str]:
    use = f"can sample on {v['device']}" if v["device"] else f"cannot sample here: {v['why_not']}"
    yield f"{v['version'] or ''} {use}".strip()


def _ray(r: Section) -> Iterator[str]:
    yield f"{r['version'] or 'not installed'}{', RAY_ADDRESS is set' if r['RAY_ADDRESS'] else ''}"


def _chosen(c: Section) -> Iterator[str]:
    on = f" on {c['engine_device']}" if c["engine_device"] else ""
    yield (
        f"by default: policy on {c['device']} in {c['dtype']}, {c['engine']} samples{on}, "
        f"layout {c['layout']}, verify workers {c['verify_workers']}, threads {c['threads']}"
    )


def _size(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**30:.1f} GiB"


_IN_ORDER: Sequence[Callable[[Section], Iterator[str]]] = (
    *(_winnow, _system, _processor, _products, _memory, _cuda, _disks),
    *(_network, _sandbox, _packages, _vllm, _ray, _chosen),
)
SECTIONS = {describe.__name__.removeprefix("_"): describe for describe in _IN_ORDER}
