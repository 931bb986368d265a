"""Probes: each measures a served model in one way."""
