"""Engines: what samples rollouts. Importing this registers them all."""

import winnow.engines.hf
import winnow.engines.native.engine
import winnow.engines.scripted
import winnow.engines.vllm.engine  # noqa: F401
