"""Episodes to weights: SFT, RL, losses, packing and checkpoints."""
