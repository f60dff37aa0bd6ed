"""The files of a run: folder, manifest, checkpoints and logs."""
