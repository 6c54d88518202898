"""Training on top of the ring."""
