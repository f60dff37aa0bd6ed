"""The display of `winnow doctor`: one golden file with a whole machine, a bare one, and cards that torch lacks."""

from __future__ import annotations

from golden_files import assert_golden
from winnow.commands.doctor.examine import build_report
from winnow.commands.doctor.machine import cards
from winnow.commands.doctor.text import SECTIONS, lines

CARDS = """0, NVIDIA H100 80GB HBM3, 81559, 80995, 9.0, 550.54.15
1, Tesla T4, 15360, 15000, 7.5, 550.54.15
"""
WHOLE = {
    "winnow": {"version": "0.16.0", "commit": "1a2b3c4d5e6f, changed"},
    "system": {"os": "Debian 13", "python": "3.13.1", "executable": "~/venv/bin/python", "virtual_env": True},
    "processor": {
        "model": "Xeon 8480+",
        "architecture": "x86_64",
        "cores": 16,
        "usable": 2.5,
        "instructions": ["avx2", "avx512f", "amx_bf16"],
    },
    "products": {
        "shape": [512, 1024, 1024],
        "threads": 2,
        "gflops": {"float32": 208.4, "bfloat16": 937.1},
        "bfloat16_to_float32_time": 0.222,
        "unsteadiness": 1.02,
    },
    "memory": {"bytes": 64 * 2**30, "free_bytes": 48 * 2**30},
    "cuda": {
        "built_for": "CUDA 12.8",
        "available": True,
        "visible": 1,
        "CUDA_VISIBLE_DEVICES": "0",
        "nccl": "2.27.5",
        "cards": cards(CARDS),
    },
    "disks": {
        "working_directory": {"path": "/work", "free_bytes": 2**30, "file_system": 1},
        "huggingface_cache": {"path": "~/.cache/huggingface", "free_bytes": 900 * 2**30, "file_system": 2},
        "temporary": {"path": "/tmp", "free_bytes": 2**30, "file_system": 1},
    },
    "network": {"proxies": ["HTTPS_PROXY"], "offline": ["HF_HUB_OFFLINE"], "HF_ENDPOINT": True, "hub": None},
    "sandbox": {
        "chosen": "landlock 6 and seccomp",
        "complaint": None,
        "bubblewrap": False,
        "landlock": 6,
        "seccomp": True,
        "user_namespaces": True,
        "control_groups": 2,
    },
    "packages": {
        "needed": {"numpy": "2.3", "torch": "2.9", "scipy": "1.16"},
        "unfit": {"torch": ">=2.11"},
        "broken": {"scipy": "ImportError: libopenblas is missing"},
        "optional": {
            "matplotlib": {"version": "3.10", "extra": "plot", "for": "draw runs (winnow plot)", "wants": None},
            "ray": {"version": "2.0", "extra": "ray", "for": "run sweeps and ranks on a cluster", "wants": ">=2.40"},
            "trackio": {"version": None, "extra": "trackio", "for": "track runs with trackio", "wants": None},
        },
    },
    "vllm": {"version": "0.32.0", "device": "cuda", "why_not": None},
    "ray": {"version": "2.0", "RAY_ADDRESS": True},
    "chosen": {
        "device": "cuda:0",
        "dtype": "bfloat16",
        "engine": "vllm",
        "engine_device": "cuda:0",
        "layout": "packed",
        "verify_workers": 2,
        "threads": 2,
    },
}
BARE = WHOLE | {
    "winnow": {"version": "0.16.0", "commit": None},
    "system": WHOLE["system"] | {"virtual_env": False},
    "processor": WHOLE["processor"] | {"usable": 16, "instructions": [], "bfloat16": False},
    "products": {
        "shape": [16, 1024, 1024],
        "threads": 16,
        "gflops": {"float32": 40.0, "bfloat16": 2.0},
        "bfloat16_to_float32_time": 20.0,
        "unsteadiness": 1.5,
    },
    "memory": {"bytes": 2**30, "free_bytes": None},
    "cuda": {
        "built_for": None,
        "available": False,
        "visible": 0,
        "CUDA_VISIBLE_DEVICES": None,
        "nccl": None,
        "cards": [],
    },
    "disks": {"temporary": {"path": "/tmp", "free_bytes": 2**30, "file_system": 1}},
    "network": {
        "proxies": [],
        "offline": [],
        "HF_ENDPOINT": False,
        "hub": "does not answer: no reply in time",
    },
    "sandbox": {
        "chosen": None,
        "complaint": "no landlock",
        "bubblewrap": False,
        "landlock": 0,
        "seccomp": False,
        "user_namespaces": None,
        "control_groups": None,
    },
    "packages": {"needed": {"numpy": "2.3", "peft": None}, "unfit": {}, "broken": {}, "optional": {}},
    "vllm": {"version": None, "device": None, "why_not": "it is not installed"},
    "ray": {"version": None, "RAY_ADDRESS": False},
    "chosen": WHOLE["chosen"]
    | {"device": "cpu", "dtype": "float32", "engine": "native", "engine_device": None, "layout": "padded"},
}
NO_CARD = {"built_for": "CUDA 13.1", "available": False, "visible": 0, "nccl": None, "CUDA_VISIBLE_DEVICES": None}
CUDA = {
    "one card that torch lacks": {**NO_CARD, "cards": cards(CARDS)[:1]},
    "a card that nvidia-smi lacks": {**NO_CARD, "available": True, "visible": 1, "cards": []},
    "a card without numbers": {**NO_CARD, "cards": cards("[N/A], NVIDIA A100 MIG, [N/A], [N/A], [N/A], 550\n")},
}


def shown(sections):
    return "\n".join(lines(build_report({name: lambda data=data: data for name, data in sections.items()})))


def fails():
    raise PermissionError("not \x1b[31myours")


def test_the_report_as_text():
    failed = "\n".join(lines(build_report({name: fails for name in SECTIONS})))
    parts = {"whole": shown(WHOLE), "bare": shown(BARE), "every probe fails": failed}
    parts |= {name: "\n".join(SECTIONS["cuda"](section)) for name, section in CUDA.items()}
    assert_golden("doctor", "\n\n".join(f"== {name}\n{text}" for name, text in parts.items()))
