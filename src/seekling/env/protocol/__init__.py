"""The grammars an agent may act in: tags, code and tools."""
