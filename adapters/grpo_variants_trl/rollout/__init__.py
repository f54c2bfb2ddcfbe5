"""What happens while TRL samples: prompts, rewards, dynamic sampling, greedy baselines."""
