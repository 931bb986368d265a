"""
Divergence: ordinary text that is read, its right tokens and next-token distributions
beside the reference's.
"""
