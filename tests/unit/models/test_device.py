from __future__ import annotations

import re

import torch

from refusals import refused
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.models.device import describe_gpu, driver_version, resolve_device


def test_auto_takes_the_fastest_that_is_there() -> None:
    best = "cuda" if torch.cuda.is_available() else "cpu"
    assert resolve_device("auto") == torch.device(best)
    assert resolve_device("cpu") == torch.device("cpu")


def test_a_missing_device_is_refused() -> None:
    if torch.cuda.is_available():
        assert resolve_device("cuda") == torch.device("cuda")
    else:
        with refused(ConfigError, "'cuda'", "'auto'", "'cpu'", key="device", code="config.unsupported"):
            resolve_device("cuda")


def test_mps_is_not_offered_and_the_remedy_works() -> None:
    """It has no float64, in which tokens are drawn."""
    with refused(ConfigError, "'mps'", key="device", code="config.value") as caught:
        validate({"device": "mps"})
    for offered in re.findall(r"'(\w+)'", caught.value.remedy):
        assert validate({"device": offered}).device == offered
    assert "'cpu'" in caught.value.remedy
    with refused(ConfigError, "'mps'", "'cpu'", key="device", code="config.unsupported"):
        resolve_device("mps")


def test_a_gpu_is_described_by_what_its_bits_depend_on(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    found = describe_gpu(torch.device("cuda"))
    assert found.keys() == {"name", "driver", "cuda", "cudnn"}
    assert (found["name"], found["cuda"]) == ("NVIDIA H200", torch.version.cuda)
    assert describe_gpu(torch.device("cpu")) == {}


def test_without_nvidia_s_driver_there_is_no_version_of_it() -> None:
    assert driver_version("libnothing-of-the-kind.so.1") is None
