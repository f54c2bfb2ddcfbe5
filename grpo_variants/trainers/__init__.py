"""What is known about trainers without importing them: their words, their limits, and how they write a variant."""
