"""Learners and samplers that are elsewhere: on a Ray cluster, or behind a Tinker service."""
