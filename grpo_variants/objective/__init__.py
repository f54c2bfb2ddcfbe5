"""The objective stage: from log-probabilities and advantages to the loss and its gradient."""
