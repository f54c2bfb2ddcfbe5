"""What every folder may use: groups, masked reductions, and checks of values and tensors."""
