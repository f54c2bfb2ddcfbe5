"""What is written beside TRL's checkpoints, and the reference that moves during a run."""
