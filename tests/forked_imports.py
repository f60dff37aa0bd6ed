"""What every fork of forked.py finds imported. It is set aside for good: no collection of garbage looks through it, and
none writes to the memory that all forks have in common.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401
import peft  # noqa: F401
import pyarrow.pandas_compat
import pyarrow.parquet  # noqa: F401
import rich.live  # noqa: F401
import tokenizers  # noqa: F401
import torch  # noqa: F401
import transformers
import transformers.conversion_mapping
import transformers.models.auto.modeling_auto
import transformers.models.auto.tokenization_auto
import transformers.models.llama.modeling_llama
import transformers.models.qwen2.modeling_qwen2  # noqa: F401

import winnow.commands
import winnow.training.fit  # noqa: F401
import winnow_lab.profile.measurement
import winnow_lab.profile.work  # noqa: F401

gc.collect()
gc.freeze()
gc.enable()
