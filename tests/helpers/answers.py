"""What a stored observation has answers to, by the part of recall."""


def written(observation):
    """The rounds in which lines were written, in asking order."""
    return _of(observation, "written")


def forced(observation):
    """Those in which right lines were scored."""
    return _of(observation, "forced")


def _of(observation, part):
    answers = observation["answers"].items()
    return [answer for key, answer in answers if key.startswith(f"{part} ")]
