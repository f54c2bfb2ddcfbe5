"""TRL's flags, and what TRL cannot do for a variant."""
