"""A text, whose divergences fake tools measure."""

TEXT = "".join(f"line {at}: {at * 7919:x}\n" for at in range(400))
