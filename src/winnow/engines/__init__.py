"""Engines: what samples rollouts. Importing this registers them all."""

from winnow.engines import hf, native, scripted, vllm

__all__ = ["hf", "native", "scripted", "vllm"]
