"""The samplers: prompt ids in, sampled ids with their log-probabilities out."""
