"""From TRL's configuration to a variant, and what is refused before a model loads."""
