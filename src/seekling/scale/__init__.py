"""Runs over several processes and machines, behind the small interfaces of rollout and learn."""
