"""A recipe from beginning to end: world, policy, stages, run folder. Besides cli, the room that knows all others."""
