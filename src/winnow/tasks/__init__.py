"""Tasks, which make problems, and templates, which render them as prompts."""
