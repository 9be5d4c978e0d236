"""A recipe from beginning to end: world, policy, stages, run folder. The only room besides cli that knows all others."""
