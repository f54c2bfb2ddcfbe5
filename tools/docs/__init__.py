"""What writes the documentation."""
