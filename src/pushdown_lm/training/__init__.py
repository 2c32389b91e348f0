"""Training: recipes, the trainer, run folders, checkpoints, freezing and LoRA."""
