"""Loads, checks and saves models, adapters and tokenizers, including the bundled policy."""
