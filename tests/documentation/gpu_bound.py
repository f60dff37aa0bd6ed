"""The least seconds of a step on a card, as docs/one-gpu.md has them: what has to be read, and what has to be computed.

Sampling reads all weights once per token of the longest rollout, and the keys and values of every rollout once per
token of it, or computes 2 operations per weight and token, whichever takes longer. An update computes 2 operations per
weight and token forward, 2 again as it recomputes, and backward 4, or 2 if the weights have no gradient.
"""

from __future__ import annotations

# TFLOP/s in bfloat16 without sparsity, and TB/s, as the vendor publishes them
CARDS = {"RTX 4090": (165.2, 1.008), "L40S": (362.0, 0.864), "A100 80 GB": (312.0, 2.039)}
# Of the published config.json: hidden size, layers, heads, key-value heads, inner size, vocabulary, tied.
SHAPES = {
    "0.5B": (896, 24, 14, 2, 4864, 151936, True),
    "1.5B": (1536, 28, 12, 2, 8960, 151936, True),
    "3B": (2048, 36, 16, 2, 11008, 151936, True),
    "7B": (3584, 28, 28, 4, 18944, 152064, False),
}
ROLLOUTS, TRAINED, LONGEST, LENGTH, PROMPT = 512, 128, 512, 256, 150


def least_seconds(size: str, card: str, *, adapter: bool) -> float:
    hidden, layers, heads, groups, inner, vocabulary, tied = SHAPES[size]
    key_value = hidden // heads * groups
    layer = 2 * hidden * hidden + 2 * hidden * key_value + 3 * hidden * inner
    weights = layers * layer + vocabulary * hidden * (1 if tied else 2)
    flops, bandwidth = (1e12 * number for number in CARDS[card])
    read = 2 * weights * LONGEST + 2 * 2 * layers * key_value * ROLLOUTS * LENGTH * (PROMPT + LENGTH / 2)
    sampling = max(read / bandwidth, 2 * weights * ROLLOUTS * LENGTH / flops)
    return sampling + (6 if adapter else 8) * weights * TRAINED * (PROMPT + LENGTH) / flops
