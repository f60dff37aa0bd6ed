"""What a run computes in, and what its weights are kept in."""

from __future__ import annotations

import pytest
import torch

from golden_files import assert_golden
from refusals import refused
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.models import device
from winnow.models.device import (
    WORKSPACE,
    describe_precision,
    distinct_places,
    keeps_masters,
    set_deterministic,
    set_matrix_products,
)
from winnow.models.load import load

LORA = {"model": {"dtype": "bfloat16", "lora": {}}}
PURE = {
    "model": {"dtype": "bfloat16"},
    "optimizer": {"master_weights": False, "stochastic_rounding": True},
}


NF4 = {"lora": {}, "quantization": "nf4"}
RUNS = [
    ({"model": {"dtype": "float32"}}, False),
    ({"model": {"dtype": "float32", "tf32": True}}, False),
    ({"model": {"dtype": "float64"}}, False),
    ({"model": {"dtype": "bfloat16"}}, True),
    (PURE, False),
    (LORA, False),
    ({"model": {"dtype": "float32", **NF4}}, False),
    ({"model": {"dtype": "bfloat16", **NF4}, "optimizer": {"moments": "8bit"}}, False),
    ({"model": {"dtype": "bfloat16"}, "optimizer": {"moments": "8bit"}}, True),
]


def test_masters_are_kept_for_whole_16_bit_weights_alone() -> None:
    assert [keeps_masters(validate(keys)) for keys, _ in RUNS] == [masters for _, masters in RUNS]


def test_the_description_of_precisions() -> None:
    """On a CPU and on a GPU."""
    lines = [
        f"{describe_precision(validate(keys), 'cpu')}\n{describe_precision(validate(keys), 'cuda:0')}\n"
        for keys, _ in RUNS
    ]
    assert_golden("precision", "\n".join(lines))


@pytest.fixture
def matrix_products():
    """torch's own settings, given back."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_set_whatever_it_was(matrix_products, tf32) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not tf32
    set_matrix_products(tf32=tf32)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (tf32, tf32)


@pytest.fixture
def algorithms(monkeypatch):
    """torch's own settings, given back, and cuBLAS's in an environment where it has none."""
    monkeypatch.setenv(WORKSPACE, "")  # so that it is taken back, too
    monkeypatch.delenv(WORKSPACE)
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield monkeypatch
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def test_determinism_on_a_gpu_is_switched_on_and_off(algorithms) -> None:
    torch.backends.cudnn.benchmark = True
    set_deterministic(torch.device("cuda"), deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled(), "what cannot repeat must not run"
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
    assert device.os.environ[WORKSPACE] == ":4096:8"
    set_deterministic(torch.device("cuda"), deterministic=False)
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic) == (False, False)


def test_a_cpu_needs_no_deterministic_mode(algorithms) -> None:
    set_deterministic(torch.device("cpu"), deterministic=True)
    assert (torch.are_deterministic_algorithms_enabled(), WORKSPACE in device.os.environ) == (False, False)


def test_determinism_is_refused_after_cublas_has_started(algorithms) -> None:
    algorithms.setattr(torch.cuda, "device_count", lambda: 2)
    algorithms.setattr(torch.cuda, "memory_reserved", lambda number: number)  # on the second one
    with refused(ConfigError, f"{WORKSPACE}=:4096:8", key="deterministic", code="config.unsupported"):
        set_deterministic(torch.device("cuda"), deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()
    algorithms.setenv(WORKSPACE, ":16:8")
    set_deterministic(torch.device("cuda"), deterministic=True)
    assert device.os.environ[WORKSPACE] == ":16:8"
    algorithms.setattr(torch.cuda, "memory_reserved", lambda number: 0)
    algorithms.setenv(WORKSPACE, ":0:0")
    with refused(ConfigError, "':0:0'", WORKSPACE, key="deterministic", code="config.unsupported"):
        set_deterministic(torch.device("cuda"), deterministic=True)


def test_determinism_is_possible_where_cuda_has_started_without_cublas(algorithms) -> None:
    """The choice of a precision starts CUDA, and so does the choice of a rank's device."""
    algorithms.setattr(torch.cuda, "is_initialized", lambda: True)
    algorithms.setattr(torch.cuda, "device_count", lambda: 1)
    algorithms.setattr(torch.cuda, "memory_reserved", lambda number: 0)
    set_deterministic(torch.device("cuda"), deterministic=True)
    assert device.os.environ[WORKSPACE] == ":4096:8"


def test_distinct_places_suspend_the_deterministic_mode_only_inside(algorithms) -> None:
    with distinct_places():
        assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    for warn_only in (False, True):
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        with distinct_places():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only


@pytest.mark.parametrize("arch", ["qwen2", "llama"])
def test_masters_are_the_weights_of_the_files_and_the_model_those_rounded(tiny_folder, arch) -> None:
    folder = str(tiny_folder(arch))
    exact, plain = load(folder), load(folder, dtype="bfloat16")
    with_masters = load(folder, dtype="bfloat16", masters=True)
    parameters = dict(with_masters.model.named_parameters())
    assert parameters.keys() == with_masters.masters.keys()
    for name, parameter in exact.model.named_parameters():
        assert torch.equal(with_masters.masters[name], parameter)
        assert parameters[name].dtype == torch.bfloat16
    rounded = with_masters.model.state_dict()
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(weight, rounded[name]), name
    buffers = [{name: b.dtype for name, b in of.model.named_buffers()} for of in (plain, with_masters)]
    assert buffers[0] == buffers[1]
    assert with_masters.model.dtype == with_masters.model.config.dtype == torch.bfloat16
    assert (load(folder).masters, plain.masters) == ({}, {})
