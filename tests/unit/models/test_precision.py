"""What a run computes in, and what its weights are kept in."""

from __future__ import annotations

import pytest
import torch

from refusals import refused
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.models import precision
from winnow.models.load import load
from winnow.models.precision import (
    WORKSPACE,
    distinct_places,
    in_words,
    keeps_masters,
    set_deterministic,
    set_matrix_products,
)

LORA = {"model": {"dtype": "bfloat16", "lora": {}}}
PURE = {
    "model": {"dtype": "bfloat16"},
    "optimizer": {"master_weights": False, "stochastic_rounding": True},
}


@pytest.mark.parametrize(
    ("keys", "masters", "cpu", "cuda"),
    [
        ({"model": {"dtype": "float32"}}, False, "float32", "float32 with TF32 off"),
        ({"model": {"dtype": "float32", "tf32": True}}, False, "float32", "float32 with TF32 on"),
        ({"model": {"dtype": "float64"}}, False, "float64", "float64"),
        ({"model": {"dtype": "bfloat16"}}, True, *2 * ("bfloat16, float32 masters; gradients and moments in float32",)),
        (PURE, False, *2 * ("bfloat16, stochastic rounding; gradients and moments in float32",)),
        (LORA, False, "bfloat16, the adapter in float32", "bfloat16, the adapter in float32 with TF32 off"),
        (
            {"model": {"dtype": "float32", "lora": {}, "quantization": "nf4"}},
            False,
            "float32 on a base of 4 bits (nf4)",
            "float32 with TF32 off on a base of 4 bits (nf4)",
        ),
        (
            {"model": {"dtype": "bfloat16", "lora": {}, "quantization": "nf4"}, "optimizer": {"moments": "8bit"}},
            False,
            "bfloat16 on a base of 4 bits (nf4), the adapter in float32, its moments in 8 bits",
            "bfloat16 on a base of 4 bits (nf4), the adapter in float32 with TF32 off, its moments in 8 bits",
        ),
        (
            {"model": {"dtype": "bfloat16"}, "optimizer": {"moments": "8bit"}},
            True,
            *2 * ("bfloat16, float32 masters; gradients in float32, moments in 8 bits",),
        ),
    ],
)
def test_what_is_kept_in_which_precision(keys, masters, cpu, cuda) -> None:
    config = validate(keys)
    assert keeps_masters(config) == masters
    assert (in_words(config, "cpu"), in_words(config, "cuda:0")) == (cpu, cuda)


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


def test_a_gpu_is_told_to_repeat_itself_and_told_otherwise_again(algorithms) -> None:
    torch.backends.cudnn.benchmark = True
    set_deterministic(torch.device("cuda"), deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled(), "what cannot repeat must not run"
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
    assert precision.os.environ[WORKSPACE] == ":4096:8"
    set_deterministic(torch.device("cuda"), deterministic=False)
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic) == (False, False)


def test_a_cpu_repeats_itself_without_being_told(algorithms) -> None:
    set_deterministic(torch.device("cpu"), deterministic=True)
    assert (torch.are_deterministic_algorithms_enabled(), WORKSPACE in precision.os.environ) == (False, False)


def test_it_is_refused_where_cublas_may_have_begun_otherwise(algorithms) -> None:
    algorithms.setattr(torch.cuda, "is_initialized", lambda: True)
    with refused(ConfigError, "not set", f"{WORKSPACE}=:4096:8", key="deterministic", code="config.unsupported"):
        set_deterministic(torch.device("cuda"), deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()
    algorithms.setenv(WORKSPACE, ":16:8")
    set_deterministic(torch.device("cuda"), deterministic=True)
    assert precision.os.environ[WORKSPACE] == ":16:8"
    algorithms.setattr(torch.cuda, "is_initialized", lambda: False)
    algorithms.setenv(WORKSPACE, ":0:0")
    with refused(ConfigError, "':0:0'", WORKSPACE, key="deterministic", code="config.unsupported"):
        set_deterministic(torch.device("cuda"), deterministic=True)


def test_writing_at_distinct_places_takes_no_detour_and_what_follows_is_checked_again(algorithms) -> None:
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
