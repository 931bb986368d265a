"""Settings for laws: a busy machine is no defect."""

from hypothesis import settings

unhurried = settings(deadline=None)
