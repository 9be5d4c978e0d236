"""What this machine can do, and what a recipe will cost on it. Measures and predicts; changes nothing."""
