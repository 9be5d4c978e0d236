"""What the agent may do: tools, protocols, the sandbox and the episode's rules. Sees messages, never token ids."""
