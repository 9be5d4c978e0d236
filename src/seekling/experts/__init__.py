"""Teacher episodes to train on: scripted experts that act through the real environment."""
