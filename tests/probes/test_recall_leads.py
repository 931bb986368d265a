"""Leads: which places of an answer are asked for, and what is made of the replies."""

from dataclasses import dataclass, field

from codeneedle.engines.responses import Reply, TokenPiece
from codeneedle.probes.recall import Leads, first_words, leads

PROMPT = "corpus\nquestion\n"
ANSWER = "    ab = 1\n\n  \u20ac = 2\n"


@dataclass
class Bytes:
    """
    A server whose tokens are bytes, that goes on as *text* does.

    Attributes:
        text: What it says after its beginnings.
        cached: Share of a prompt that it finds in its cache.
        asked: Lengths of the prompts it was asked to go on with.
    """

    text: str = PROMPT + ANSWER
    cached: float = 1.0
    asked: list[int] = field(default_factory=list)

    def tokens(self, text):
        return tuple(text.encode())

    def pieces(self, text):
        return tuple(TokenPiece(byte, "x") for byte in text.encode())

    def complete(self, question):
        at = len(question.prompt)
        self.asked.append(at)
        return Reply(
            text="x",
            finish="length",
            prompt_tokens=at,
            cached_tokens=int(at * self.cached),
            logprobs=(-0.5,),
            gaps=(float(at),),
            ids=(self.text.encode()[at],),
        )


def test_the_first_word_of_each_line_is_asked_for():
    """
    Blank lines have none; a character of several bytes moves the places after it.
    """
    assert [] == first_words("")
    assert [] == first_words("  \n\t\n")
    assert [4, 14] == first_words(ANSWER)


def test_leads_are_asked_from_the_last_to_the_first():
    """
    So that each finds all that it needs in the cache; told in the order of the text.
    """
    server = Bytes()
    found = leads(server, PROMPT, ANSWER)
    start = len(PROMPT)

    assert [start + 14, start + 4] == server.asked
    assert found == Leads(
        places=(4, 14),
        logprobs=(-0.5, -0.5),
        gaps=(start + 4.0, start + 14.0),
    )


def test_a_token_that_falls_otherwise_leads_by_nothing():
    """
    Computed alone it is another one: a tie, within what rounding makes of it.
    """
    other = Bytes(text=(PROMPT + ANSWER).replace("ab", "xb"))

    assert (0.0, len(PROMPT) + 14.0) == leads(other, PROMPT, ANSWER).gaps


def test_a_server_that_reads_all_again_is_asked_no_further():
    """
    A cache that cannot be cut back makes each lead as dear as the whole prompt.
    """
    long = "x" * 1000 + "\n"
    server = Bytes(text=long + ANSWER, cached=0.0)
    found = leads(server, long, ANSWER)

    assert found.is_dear
    assert 1 == len(server.asked) == len(found.places)


def test_what_tokens_span_both_texts_is_left_out():
    """
    Of a tokenizer that takes the beginning of an answer together with the end of
    the question, the first places have no token of their own.
    """

    class Merging(Bytes):
        def tokens(self, text):
            # The newline of the question and the indentation are one token.
            return tuple(text.encode().replace(b"\n    a", b"\x80"))

    found = leads(Merging(text=PROMPT + ANSWER + "x" * 99), PROMPT, ANSWER)

    assert (14,) == found.places


def test_an_answer_without_words_has_no_leads():
    """
    Nothing is asked.
    """
    server = Bytes()

    assert Leads() == leads(server, PROMPT, "\n\n")
    assert [] == server.asked
