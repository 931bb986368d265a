"""
A pip that downloads one wheel, or misbehaves.

Run as ``fake_pip.py FAULT WHEEL`` and pip's own arguments. What it was asked is added
to the file ``asked`` beside the wheel, a line for each call.
"""

import shutil
import sys
import time
from pathlib import Path

fault, wheel, *asked = sys.argv[1:]
with Path(wheel).with_name("asked").open("a") as file:
    file.write(" ".join(asked) + "\n")
if asked == ["--version"]:
    sys.exit()
if fault == "offline":
    sys.exit("WARNING: retrying\nERROR: No matching distribution found for tiny-model")
folder = Path(asked[asked.index("--dest") + 1])
if fault != "empty":
    shutil.copy(wheel, folder)
if fault == "truncated":
    with (folder / Path(wheel).name).open("r+b") as copy:
        copy.truncate(Path(wheel).stat().st_size // 2)
if fault == "hangs":
    Path(wheel).with_name("hangs").touch()
    time.sleep(600)
