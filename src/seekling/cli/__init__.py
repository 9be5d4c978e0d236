"""The `seekling` command: parses arguments, builds the parts and calls one function of a room."""
