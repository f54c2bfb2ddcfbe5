"""Hand-written arithmetic behind the same definitions: equal in value and gradient, cheaper in time and memory."""
