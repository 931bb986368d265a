"""Stored records, setups, and the folders they are in."""
