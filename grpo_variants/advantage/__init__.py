"""The advantage stage: from the rewards of a batch to one advantage per response or token."""
