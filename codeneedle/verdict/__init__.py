"""What a pair loses against a limit, and how sure that is."""
