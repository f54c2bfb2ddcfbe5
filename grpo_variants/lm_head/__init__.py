"""The chunked LM head: from hidden states to log-probabilities, entropies and gradients, in chunks of tokens."""
