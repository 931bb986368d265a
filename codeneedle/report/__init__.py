"""Reports: each shows records in one form."""
