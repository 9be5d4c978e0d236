"""A server of the Tinker API: programs written for Tinker train and sample a small model on this machine."""
