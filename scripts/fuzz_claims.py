"""What a reader that is fuzzed claims of itself."""


def claim(fact: object, words: str) -> None:
    """Stop where something does not hold that always does."""
    if not fact:
        raise AssertionError(words)
