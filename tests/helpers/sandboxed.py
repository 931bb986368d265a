"""The mark of tests that need a sandbox of the system."""

import pytest
import sandbox

try:
    sandbox.refuse_without()
    _LACKING = ""
except sandbox.NoSandbox as error:
    _LACKING = str(error)

confined = pytest.mark.skipif(bool(_LACKING), reason=f"no sandbox here: {_LACKING}")
