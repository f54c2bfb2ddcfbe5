"""verl's settings, and what verl cannot do for a variant."""
