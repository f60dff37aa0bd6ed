"""The files of a run: its folder, manifest, checkpoints and logs."""
