"""
The prompts of the generation probe: seeded ones of its own, or those of a file.

Own prompts ask for what people use long answers for: a calculation in steps, code,
explanations, a list with a rule, a plan with tool calls. Names and numbers follow from
the seed. `record.WORDING` is raised with every change here.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle.errors import BadInput
from codeneedle.probes.generation.record import MOST_PROMPTS, NAME, OPTION
from codeneedle.probes.transcript.conversations import (
    HINT,
    parse_and_check_conversations,
    read_hash_and_bytes,
)
from codeneedle.records.record import Json
from codeneedle.text import replace_surrogates


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What is asked."""

    name: str  # ``plan``; the number in the user's file
    messages: tuple[Json, ...]
    """As OpenAI's API has them; the last one is not the assistant's."""

    tools: tuple[Json, ...] = ()  # definitions of tools, as OpenAI's API has them
    file: Path | None = None  # the user's file; None of one that comes with the program

    @property
    def is_built_in_prompt(self) -> bool:
        """Whether it comes with the program."""
        return self.file is None

    @property
    def error_source(self) -> str:
        """What errors name."""
        whose = f"{OPTION} {self.file}" if self.file else f"--probe {NAME}"
        return f"{whose}, prompt {self.name}"

    @property
    def completion_text(self) -> str:
        """What a model without a chat template continues."""
        said = (str(message["content"]) for message in self.messages)
        return "\n\n".join(said) + "\n\n"

    @property
    def has_tool_calls(self) -> bool:
        """Whether a message calls a tool, or tells what one returned."""
        return any(m["role"] == "tool" or "tool_calls" in m for m in self.messages)

    @property
    def sha256(self) -> str:
        """Hash of messages and tools."""
        stated = json.dumps([self.messages, self.tools], sort_keys=True)
        return hashlib.sha256(stated.encode()).hexdigest()


# --- the user's


def read_hash_and_prompts(path: Path) -> tuple[str, tuple[Prompt, ...]]:
    """
    The SHA-256 of the file *path*, and its prompts, each up to its last question.

    OpenAI's messages or ShareGPT's conversations, as JSON or JSON lines; or a prompt in
    each line of text.

    Raises:
        BadInput: If it cannot be read, naming the line; if it holds none, or too many.
    """
    source = f"{OPTION} {path}"
    try:
        sha256, data = read_hash_and_bytes(path, option=OPTION)
        read = _prompts_of_conversations if _has_json_start(data) else _prompts_of_lines
        prompts = tuple(replace(prompt, file=path) for prompt in read(data, path))
    except BadInput as error:
        error.hint = _FORMS
        raise
    if not prompts:
        raise BadInput(source=source, reason="it has no prompt", hint=_FORMS)
    if len(prompts) > MOST_PROMPTS:
        raise BadInput(
            source=source,
            reason=f"it has {len(prompts):,} prompts, more than {MOST_PROMPTS:,}",
            hint="Eight long answers tell much; thirty-six can show that few are lost.",
        )
    return sha256, prompts


_FORMS = f"{HINT} Or it holds a prompt in each line of text."


def _has_json_start(data: bytes) -> bool:
    """Whether *data* begins an object or a list."""
    return data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in {b"{", b"["}


def _prompts_of_conversations(data: bytes, path: Path) -> Iterator[Prompt]:
    """Conversations as prompts by number, each cut behind its last question."""
    read = parse_and_check_conversations(data, path, needs_assistant=False)
    for number, conversation in enumerate(read, start=1):
        turns = list(conversation.turns)
        while turns and turns[-1].role not in {"user", "tool"}:
            turns.pop()
        reason = "" if turns else "it has no message of a user"
        if not all(call.has_json_arguments for turn in turns for call in turn.calls):
            reason = "it has arguments of a tool call that are no JSON"
        if reason:
            source = f"{path}, line {conversation.line}"
            raise BadInput(source=source, reason=reason, hint=_FORMS)
        yield Prompt(
            name=str(number),
            messages=tuple(turn.message() for turn in turns),
            tools=conversation.tools,
        )


def _prompts_of_lines(data: bytes, path: Path) -> Iterator[Prompt]:
    """A prompt for each line that is not blank; these are numbered from 1."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadInput(
            source=f"{path}, line {line}", reason="it is not UTF-8", hint=_FORMS
        ) from error
    prompts = [
        line.strip() for line in replace_surrogates(text).split("\n") if line.strip()
    ]
    for number, prompt in enumerate(prompts, start=1):
        yield _user_prompt(str(number), prompt)


def _user_prompt(name: str, text: str, tools: tuple[Json, ...] = ()) -> Prompt:
    return Prompt(name=name, messages=({"role": "user", "content": text},), tools=tools)


# --- our own


def make_built_in_prompts(seed: int) -> tuple[Prompt, ...]:
    """
    The prompts of the program, in order, with names and numbers by *seed*.

    They are the same on any platform and Python.
    """
    return tuple(
        # Of a generator each, so that a change of one leaves the others as they are.
        write(random.Random(f"{seed} {name}"), name)  # noqa: S311 - no secret
        for name, write in _WRITERS.items()
    )


def _calculation_prompt(chance: random.Random, name: str) -> Prompt:
    """A calculation day by day."""
    crates, bottles, price = (
        chance.randint(*at) for at in ((14, 38), (18, 32), (3, 9))
    )
    broken, days = chance.randint(11, 29), chance.randint(4, 9)
    return _user_prompt(
        name,
        f"A small brewery fills {crates} crates a day with {bottles} bottles each. Of "
        f"every day's bottles, {broken} break before they are sold; the others cost "
        f"{price} coins each. From the third day on it fills two crates more each day "
        f"than on the day before. What has it taken in after {days} days? Work it out "
        "day by day, check the sum in a second way, and state the number at the end.",
    )


def _puzzle_prompt(chance: random.Random, name: str) -> Prompt:
    """A puzzle of four people and what they carry."""
    people = chance.sample(["Ines", "Tomas", "Leila", "Piotr", "Maud", "Kenji"], 4)
    goods = chance.sample(["rope", "paint", "salt", "seeds", "tar", "wool"], 4)
    first, second, third, fourth = people
    return _user_prompt(
        name,
        f"{first}, {second}, {third} and {fourth} each carry one thing to the harbour: "
        f"{', '.join(goods[:3])} or {goods[3]}. {first} carries neither {goods[0]} nor "
        f"{goods[1]}. {second} walks beside the one with the {goods[2]}. {third} has "
        f"never carried {goods[3]}, and {fourth} carries {goods[0]} whenever {first} "
        f"carries {goods[3]}. Who carries what? Suppose first that {first} carries "
        f"{goods[2]} and say what follows; then suppose that it is {goods[3]}. Tell at "
        "the end which answer is right, or what is missing to decide it.",
    )


def _program_prompt(chance: random.Random, name: str) -> Prompt:
    """The task of a Python class with tests."""
    thing = chance.choice(["library loans", "bus departures", "greenhouse readings"])
    hours = chance.randint(3, 20)
    return _user_prompt(
        name,
        f"Write a short Python class that keeps {thing} in memory: methods to add an "
        f"entry, to change one, and to list those of the last {hours} hours, newest "
        "first; an error of its own for an entry that does not exist. Explain in words "
        "what each method does and why, show how the class is used, and write two "
        "tests for it with pytest.",
    )


def _parser_prompt(chance: random.Random, name: str) -> Prompt:
    """A parser of a file of records, explained."""
    mark, unit = chance.choice(["@", "~", "%"]), chance.choice(["km", "kg", "kWh"])
    return _user_prompt(
        name,
        f"A text file holds one record a line, such as `harbour {mark} 12.5 {unit}, "
        f"low tide` or `mill {mark} -3 {unit}`: a name, a mark, a value with its unit, "
        "and a note that may be missing. Blank lines and lines that begin with # do "
        "not count. Tell a colleague who knows JavaScript how to write a parser for "
        "it: which function does what, which mistakes in a file it must report and in "
        "which words, which cases are easy to forget. Then write the code, and five "
        "tests for it.",
    )


def _explanation_prompt(chance: random.Random, name: str) -> Prompt:
    """An explanation in six paragraphs."""
    what = chance.choice(
        [
            "a mechanical clock keeps time, from the weight to the hands",
            "a letter written by hand reaches another country, from desk to desk",
            "bread rises and becomes firm, from the flour to the crust",
        ]
    )
    return _user_prompt(
        name,
        f"Explain how {what}. Write for a curious person of fifteen, in six paragraphs "
        "of about eighty words; each paragraph explains one step, says what would go "
        "wrong without it, and leads to the next. No list, no headings.",
    )


def _report_prompt(chance: random.Random, name: str) -> Prompt:
    """A report that weighs two choices."""
    year, town = (
        chance.randint(1820, 1890),
        chance.choice(["Harlow", "Selby", "Ostrava"]),
    )
    return _user_prompt(
        name,
        f"In {year} the town of {town} must choose between a canal and a railway; it "
        "can pay for one. Write the report of the engineer to the council: what each "
        "would carry, what it costs to build and to keep, what the mill, the farmers "
        "and the inn would lose or win, which risks nobody has named yet, and a "
        "recommendation with two conditions. Sober prose, about seven hundred words.",
    )


def _list_prompt(chance: random.Random, name: str) -> Prompt:
    """A list that keeps to rules."""
    people, letter = chance.randint(3, 6), chance.choice("bdfglmprst")
    return _user_prompt(
        name,
        f"Plan the dinners of seven days for a family of {people}. The rules: one line "
        "a day, from Monday to Sunday; no dish twice; no dish that begins with the "
        f"letter {letter}; after each dish, in brackets, how many minutes it takes; "
        "fish on two days that are not next to each other. After the list, say which "
        "rule was hardest to keep, and why.",
    )


def _tool_calls_prompt(chance: random.Random, name: str) -> Prompt:
    """A plan with calls of three tools."""
    city, guests = chance.choice(["Lisbon", "Turku", "Graz"]), chance.randint(12, 60)
    tools = (
        _tool_definition(
            "find_rooms", "Finds rooms for a meeting.", "city", "guests", "day"
        ),
        _tool_definition("weather", "Forecast of a day.", "city", "day"),
        _tool_definition("book", "Books a room.", "room", "day", "name"),
    )
    return _user_prompt(
        name,
        "Three functions exist: find_rooms(city, guests, day), weather(city, day) and "
        "book(room, day, name). Explain step by step how an assistant uses them to "
        f"find a room in {city} for {guests} people on a dry day of next week, and "
        "what it does if a day is wet, if no room is large enough, or if a call fails. "
        "Then write the calls for Monday and Tuesday, with an answer that each could "
        "have, and the message to the guests.",
        tools,
    )


def _tool_definition(name: str, purpose: str, *arguments: str) -> Json:
    """The definition of a tool whose *arguments* are texts, all required."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": purpose,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string"} for argument in arguments},
                "required": [*arguments],
            },
        },
    }


_WRITERS: dict[str, Callable[[random.Random, str], Prompt]] = {
    "steps": _calculation_prompt,
    "puzzle": _puzzle_prompt,
    "program": _program_prompt,
    "parser": _parser_prompt,
    "how": _explanation_prompt,
    "report": _report_prompt,
    "list": _list_prompt,
    "plan": _tool_calls_prompt,
}
