"""Engines sample rollouts. Importing this package registers all of them."""

import winnow.engines.hf
import winnow.engines.native.engine
import winnow.engines.scripted
import winnow.engines.vllm.engine  # noqa: F401
