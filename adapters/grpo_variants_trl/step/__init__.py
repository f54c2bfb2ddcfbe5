"""What happens in an optimizer step: its counts, its micro-batches, its metrics."""
