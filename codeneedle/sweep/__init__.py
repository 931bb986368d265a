"""Sweeps: requested, planned, prepared, run."""
