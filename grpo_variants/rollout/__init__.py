"""The rollout stage: which groups are trained on, overlong responses, and how far the engine is from the trainer."""
