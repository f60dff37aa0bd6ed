"""What a run computes in, and what its weights are kept in."""

from __future__ import annotations

import pytest
import torch

from winnow.config_file import validate
from winnow.models.load import load
from winnow.models.precision import in_words, keeps_masters, set_matrix_products

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
        (PURE, False, *2 * ("bfloat16, updates rounded at random; gradients and moments in float32",)),
        (LORA, False, *2 * ("bfloat16, the adapter in float32",)),
        (
            {"model": {"dtype": "float32", "lora": {}, "quantization": "nf4"}},
            False,
            "float32 on a base of 4 bits (nf4)",
            "float32 with TF32 off on a base of 4 bits (nf4)",
        ),
        (
            {"model": {"dtype": "bfloat16", "lora": {}, "quantization": "nf4"}, "optimizer": {"moments": "8bit"}},
            False,
            *2 * ("bfloat16 on a base of 4 bits (nf4), the adapter in float32, its moments in 8 bits",),
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
