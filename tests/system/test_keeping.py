"""What stands where a file of ours should be is read, or put aside."""

import os

import pytest

from codeneedle.system.files import contents, put_aside, why


def test_a_file_is_read_and_nothing_is_nothing(tmp_path):
    """
    A link that leads nowhere is nothing, too.
    """
    (tmp_path / "file").write_bytes(b"{}")
    (tmp_path / "link").symlink_to("nowhere")

    assert b"{}" == contents(tmp_path / "file")
    assert None is contents(tmp_path / "none")
    assert None is contents(tmp_path / "link")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "no regular file"),
        (os.mkfifo, "no regular file"),
        (lambda path: path.symlink_to(path.name), "symbolic links"),
    ],
)
def test_what_is_no_file_is_not_waited_for(tmp_path, make, reason):
    """
    A pipe that nobody writes to would be read for ever.
    """
    make(tmp_path / "file")

    with pytest.raises(OSError, match=r".") as caught:
        contents(tmp_path / "file")

    assert reason in why(caught.value)


def test_what_is_put_aside_takes_the_place_of_nothing(tmp_path):
    """
    The second damaged one is counted.
    """
    for content in ("a", "b", "c"):
        (tmp_path / "file").write_text(content)
        put_aside(tmp_path / "file")

    assert {"file.damaged": "a", "file.damaged-2": "b", "file.damaged-3": "c"} == {
        path.name: path.read_text() for path in tmp_path.iterdir()
    }
