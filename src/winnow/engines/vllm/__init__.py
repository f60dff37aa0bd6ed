"""vLLM as an engine, in the trainer's process or in one of its own."""
