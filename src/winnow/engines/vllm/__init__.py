"""vLLM as an engine, in the trainer's process or in a separate one."""
