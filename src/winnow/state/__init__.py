"""What a run keeps on the disk: its folder, manifest, checkpoints and logs."""
