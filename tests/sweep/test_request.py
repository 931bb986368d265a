"""What a person asks for, page by page."""

from dataclasses import replace
from pathlib import Path

import pytest

from codeneedle.sweep.request import Request, Variant, pages

PLAIN = Variant("plain", ())
SWA = Variant("swa", ("--swa-full",))


def names(**asked):
    """What the pages of such a request are called."""
    return [page.page for page in pages(Request(**asked))]


def test_a_request_without_axes_is_a_page_without_a_name():
    """
    It stays what it is, and is left to us what suits the model.
    """
    (page,) = pages(Request())

    assert Request() == page
    assert (None, None, True) == (page.model, page.context, page.rotation)


def test_pages_are_the_product_of_all_axes():
    """
    Each has one value of each axis, weights outermost.
    """
    models = (Path("a.gguf"), Path("b.gguf"))
    asked = Request(
        models=models,
        contexts=(4096, 8192),
        rotations=(True, False),
        variants=(PLAIN, SWA),
    )
    found = pages(asked)

    assert 16 == len(found)
    assert [*[models[0]] * 8, *[models[1]] * 8] == [page.model for page in found]
    assert 8 == len({page.page for page in found})
    assert "context-4096+rotation-on+plain" == found[0].page
    assert "context-8192+rotation-off+swa" == found[-1].page
    assert (8192, False) == (found[-1].context, found[-1].rotation)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"models": (Path("a.gguf"), Path("b.gguf"))}, ["", ""]),
        ({"contexts": (4096,)}, [""]),
        ({"contexts": (4096, 8192)}, ["context-4096", "context-8192"]),
        ({"rotations": (True,)}, [""]),
        ({"rotations": (False,)}, ["rotation-off"]),
        ({"rotations": (True, False)}, ["rotation-on", "rotation-off"]),
        ({"variants": (SWA,)}, [""]),
        ({"variants": (PLAIN, SWA)}, ["plain", "swa"]),
        (
            {"contexts": (4096, 8192), "rotations": (False,)},
            ["context-4096+rotation-off", "context-8192+rotation-off"],
        ),
    ],
)
def test_a_page_is_called_after_what_pages_differ_in(asked, expected):
    """
    An axis of one value needs no name, but for what llama.cpp does not do by itself;
    weights have a folder of their own.
    """
    assert expected == names(**asked)


def test_arguments_of_a_page_come_last():
    """
    llama-server takes the last of two, so a variant may change what all have.
    """
    asked = Request(
        server_args=("-t", "2"), variants=(PLAIN, Variant("t", ("-t", "1")))
    )

    assert [("-t", "2"), ("-t", "2", "-t", "1")] == [
        page.server_args for page in pages(asked)
    ]


def test_a_page_is_the_only_page_of_itself_but_for_its_name():
    """
    Nothing of the request is lost on the way.
    """
    asked = Request(contexts=(4096, 8192), seed=7, skip_fallback=True)
    first = pages(asked)[0]

    assert replace(asked, contexts=(4096,), page="context-4096") == first
