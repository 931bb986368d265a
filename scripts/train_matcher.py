"""
Train the built-in model's matcher from nothing: minutes on two cores.

    pip install torch
    python scripts/train_matcher.py --out scripts/matcher.npz

With the same seed, versions and threads it makes the same numbers. A new matcher
makes another model: see `checked_built_in_path`.

What is trained is in `built_in_model.Matcher`: codes of bytes, hashes of what
lies farther back, and the two projections whose products say how alike two windows
are. The layers around it copy exactly, so no attention is needed here: windows are
cut out of texts, the windows before all places of a stretch of text are the keys,
and some of them, told to find themselves, the queries.
"""

import argparse
import ast
import math
import random
import re
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from string import ascii_letters, ascii_lowercase, digits
from typing import Any

import numpy as np
import torch
from built_in_model import BEGIN, SEEN, SLOTS, TOKENS

CODE, HASH, LEVELS, MATCH = 8, 31, 2, 47
"""Dimensions of a code and of a hash, layers of hashes, dimensions of the match."""

REACH = SLOTS * 2**LEVELS - 1
"""Bytes of a window."""

STRETCH, QUERIES = 6144, 768
"""Keys and queries of a step."""

CONTEXT = 2**17
"""Keys that those of a step stand for: wrong ones count so much more."""

WORDS = tuple(
    re.findall(
        r"\w+",
        "alpha beta gamma delta index value count total buffer stream token cache "
        "layer head key query block page line text data node left right start stop "
        "begin end size width depth score loss rate step batch item entry table row "
        "column field name path file mode flag state error result read write open "
        "close send recv parse format load store merge split join filter map reduce "
        "sort find match scan copy move push pop get set add self return None True "
        "False not in is for if ",
    )
)

HELD_OUT = {"http/server.py", "json/decoder.py", "textwrap.py", "shlex.py"}
"""Never trained on: what recall of real code is measured with."""

RATE, NOISE = 3e-3, 0.03
"""The learning rate, and the noise on each code that a quantized cache makes."""

Parameters = dict[str, Any]
Function = tuple[str, list[str]]


def likely(chance: random.Random, probability: float) -> bool:
    """Whether something so probable happens this time."""
    return chance.random() < probability


def word(chance: random.Random, length: int, alphabet: str) -> str:
    """So many random characters."""
    return "".join(chance.choices(alphabet, k=length))


def name(chance: random.Random) -> str:
    """A function's or a variable's name, random or made of words."""
    if likely(chance, 0.5):
        alphabet = chance.choice((ascii_letters, ascii_lowercase + digits))
        return chance.choice(ascii_lowercase) + word(
            chance, chance.randint(3, 15), alphabet
        )
    parts = chance.choices(WORDS, k=chance.randint(1, 3))
    return "_".join(parts) + chance.choice(("", "", str(chance.randint(0, 999))))


def literal(chance: random.Random) -> str:
    """A string or a number."""
    text = " ".join(chance.choices(WORDS, k=chance.randint(1, 5)))
    secret = word(chance, chance.randint(4, 20), ascii_letters + digits)
    number = str(chance.randint(0, 10 ** chance.randint(1, 9)))
    return chance.choice((f'"{secret}"', number, f"'{text}'"))


def random_body(chance: random.Random, lines: int) -> Function:
    """Assignments of random literals to random names, of one form throughout."""
    alphabet = chance.choice((ascii_letters + digits, ascii_lowercase))
    names, values = chance.randint(3, 15), chance.randint(4, 32)
    return f"def {name(chance)}():", [
        f"    {chance.choice(ascii_lowercase)}{word(chance, names, alphabet)}"
        f' = "{word(chance, values, ascii_letters + digits)}"'
        for _ in range(lines)
    ]


def statement(chance: random.Random) -> str:
    """A line that looks like code."""
    one, two, three = (
        chance.choice(WORDS) if likely(chance, 0.7) else name(chance) for _ in range(3)
    )
    value = literal(chance)
    return chance.choice(
        (
            f"    {one} = {value}",
            f"    {one} = {value}",
            f"    {one} = {two}({three}, {value})",
            f"    if {one} {chance.choice(('==', '<', 'in', 'is not'))} {two}:",
            f"        return {chance.choice((one, value))}",
            f"    self.{one}.{two}({value})",
            f"    # {' '.join(chance.choices(WORDS, k=chance.randint(2, 9)))}",
            f"    for {one} in range({chance.randint(2, 500)}):",
        )
    )


def mixed_body(chance: random.Random, lines: int) -> Function:
    """Lines that look like code."""
    arguments = ", ".join(chance.choices(WORDS, k=chance.randint(0, 3)))
    return f"def {name(chance)}({arguments}):", [
        statement(chance) for _ in range(lines)
    ]


def soup(chance: random.Random, lines: int) -> Function:
    """Lines of random characters, of few or many kinds."""
    printable = "".join(map(chr, range(33, 127)))
    foreign = "".join(map(chr, range(0xC0, 0x250)))
    alphabet = chance.choice((ascii_letters + " ", printable, "ab01", foreign))
    return f"def {name(chance)}():", [
        "    " + word(chance, chance.randint(5, 60), alphabet) for _ in range(lines)
    ]


def library() -> list[list[Function]]:
    """Functions of Python's own library, by file, but for those held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for path in sorted([*root.glob("*.py"), *root.glob("*/*.py")]):
        place = path.relative_to(root).as_posix()
        if place in HELD_OUT or place.startswith(("site-packages", "test", "lib2to3")):
            continue
        source = path.read_text("utf-8", errors="replace")
        rows = source.split("\n")
        nodes = [n for n in ast.walk(ast.parse(source)) if type(n) is ast.FunctionDef]
        ends = [(node.lineno, node.end_lineno or 0) for node in nodes]
        found = [(rows[a - 1], rows[a:b]) for a, b in ends if b - a >= len("four")]
        if sum(len(row) for _, body in found for row in body) > STRETCH // 2:
            files.append(found)
    return files


def document(chance: random.Random, files: list[list[Function]]) -> bytes:
    """Functions of one kind, some of them near-duplicates, a stretch long or more."""
    kinds = (random_body, mixed_body, soup, None)
    kind = chance.choices(kinds, (4, 2, 1, 4))[0]
    functions: list[Function] = []
    size = 0
    while size < STRETCH + 2000:
        if kind is None:
            file = chance.choice(files)
            start = chance.randrange(len(file))
            more = (file[start:] + file[:start])[:40]
        else:
            more = [kind(chance, chance.randint(4, 24))]
            if functions and likely(chance, 0.15):
                old = chance.choice(functions)[1]
                new = [x if likely(chance, 0.6) else statement(chance) for x in old]
                more = [(more[0][0], new)]
        functions += more
        size += sum(
            len(row.encode()) + 1 for sign, body in more for row in [sign, *body]
        )
    return "\n\n".join("\n".join([sign, *body]) for sign, body in functions).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """
    A stretch of text and what is asked in it.

    Attributes:
        keys: Shape (n, 63): the window before each place, nearest byte first.
        successors: Shape (n,): the byte at each place.
        queries: Shape (768, 63): windows, some of them changed far back.
        places: Shape (768,): which key each query is to find.
    """

    keys: Any
    successors: Any
    queries: Any
    places: Any


def batch(chance: random.Random, text: bytes) -> Batch:
    """Cut a stretch out of *text* and ask for places in it."""
    start = chance.randrange(max(1, len(text) - STRETCH))
    text = text[start : start + STRETCH]
    tokens = np.array([BEGIN] * REACH + list(text))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, REACH)[:-1, ::-1]
    places = np.array([chance.randrange(len(text)) for _ in range(QUERIES)])
    signatures = _signatures(text)
    fresh = QUERIES * 2 // 5 if signatures else 0
    starts = [chance.choice(signatures) for _ in range(fresh)]
    for row, (_, body) in enumerate(starts):
        into = chance.randrange(24 if likely(chance, 0.6) else 100)
        places[row] = min(body + into, len(text) - 1)
    queries = windows[places]
    for row, (sign, _) in enumerate(starts):
        # As when recall begins: a header comes before the signature, not its text.
        known = int(places[row]) - sign
        head = chance.choice(
            (b"\n\n# recall\n", b"\n\n# recall\n", b"\n\n", b"\n# x\n")
        )
        other = chance.randrange(len(text))
        before = np.array([*head[::-1], *windows[other]])
        queries[row, known:] = before[: max(0, REACH - known)]
    for row in range(fresh, QUERIES):
        if likely(chance, 0.4):
            cut = chance.randrange(9, REACH)
            queries[row, cut:] = windows[chance.randrange(len(text)), cut:]
    return Batch(
        keys=torch.tensor(windows.copy()),
        successors=torch.tensor(list(text)),
        queries=torch.tensor(queries),
        places=torch.tensor(places),
    )


def _signatures(text: bytes) -> list[tuple[int, int]]:
    """Where lines that define a function begin, and where their bodies do."""
    found = []
    start = 0
    for row in text.splitlines(keepends=True):
        stop = start + len(row)
        if row.lstrip().startswith(b"def ") and stop < len(text) - 20:
            found.append((start, stop))
        start = stop
    return found


def initial(seed: int) -> Parameters:
    """Random codes, and projections that keep scalar products as well as they can."""
    chance = torch.Generator().manual_seed(seed)

    def projection(rows: int, columns: int) -> Any:
        square = torch.randn(columns, rows, generator=chance)
        return torch.linalg.qr(square)[0].T.contiguous()

    seen = SEEN * CODE
    parameters = {"codes": torch.randn(TOKENS, CODE, generator=chance)}
    for level in range(LEVELS):
        parameters[f"hash_{level}"] = projection(HASH, seen)
        seen += HASH
    # A match of two equal windows scores about 60 nats.
    match = projection(MATCH, seen) * math.sqrt(seen / MATCH * 60 / SLOTS)
    parameters["query"], parameters["key"] = match, match.clone()
    return {name: tensor.requires_grad_() for name, tensor in parameters.items()}


def codes(parameters: Parameters) -> Any:
    """Shape (260, 8): rows of length one."""
    return torch.nn.functional.normalize(parameters["codes"], dim=1)


def seen(parameters: Parameters, window: Any, *, start: int, levels: int) -> Any:
    """
    What a place knows of its window from byte *start* on, as the layers compute it.

    Args:
        parameters: Those that are trained.
        window: Shape (n, 63, 8): codes, nearest byte first.
        start: First byte, 0 being the nearest.
        levels: How many hashes it has.

    Returns:
        Shape (n, 120 + 31 levels).
    """
    parts = [window[:, start : start + SEEN].flatten(1)]
    for level in range(levels):
        back = start + SLOTS * 2**level
        far = seen(parameters, window, start=back, levels=level)
        parts.append(far @ parameters[f"hash_{level}"].T)
    return torch.cat(parts, 1)


def projected(parameters: Parameters, windows: Any, side: str) -> Any:
    """Shape (n, 47): queries or keys, of codes blurred as a quantized cache does."""
    known = codes(parameters)[windows]
    known = known + NOISE * torch.randn_like(known)
    known = seen(parameters, known, start=0, levels=LEVELS)
    return known @ parameters[side].T


def loss_of(parameters: Parameters, asked: Batch) -> tuple[Any, Any]:
    """
    How surprised the match is of each query's next byte, and of its place.

    Returns:
        Twice shape (768,), in nats.
    """
    query = projected(parameters, asked.queries, "query")
    key = projected(parameters, asked.keys, "key")
    blur = 2.5 * NOISE / 8 * key.detach().norm(dim=1, keepdim=True)
    key = key + blur * torch.randn_like(key)
    scores = query @ key.T - 0.5 * key.square().sum(1)
    wanted = asked.successors[asked.places]
    right = asked.successors[None] == wanted[:, None]
    scores = scores + ~right * math.log(CONTEXT / STRETCH)
    everything = torch.logsumexp(scores, 1)
    byte = torch.logsumexp(scores.masked_fill(~right, -1e9), 1)
    place = scores.gather(1, asked.places[:, None])[:, 0]
    return everything - byte, everything - place


def train(*, steps: int, seed: int) -> Parameters:
    """Train from nothing and tell how it goes."""
    torch.manual_seed(seed)
    chance = random.Random(seed)  # noqa: S311 - texts, not secrets
    parameters, files = initial(seed), library()
    adam = torch.optim.Adam(parameters.values(), betas=(0.9, 0.98))
    mean, began = 0.0, time.monotonic()
    for step in range(1, steps + 1):
        if step % 2:
            text = document(chance, files)
        byte, place = loss_of(parameters, batch(chance, text))
        warm, done = min(1.0, step / 50), step / steps
        adam.param_groups[0]["lr"] = (
            RATE * warm * (0.03 + 0.485 * (1 + math.cos(math.pi * done)))
        )
        adam.zero_grad()
        (byte.mean() + 0.1 * place.mean()).backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        adam.step()
        mean += (float(byte.detach().mean()) - mean) / min(step, 50)
        if step % 100 == 0:
            spent = time.monotonic() - began
            print(f"{step}/{steps}: {mean:.4f} nats, {spent:.0f} s", flush=True)
    return parameters


def save(parameters: Parameters, path: Path, *, seed: int) -> None:
    """Write what is trained, in 16 bits, with the mean energies of what it computes."""
    chance = random.Random(seed)  # noqa: S311 - texts, not secrets
    files = library()
    asked = [batch(chance, document(chance, files)) for _ in range(8)]
    with torch.no_grad():
        windows = codes(parameters)[torch.cat([b.keys[::8] for b in asked])]
        known = seen(parameters, windows, start=0, levels=LEVELS)
        hashes = known[:, SEEN * CODE :].square().mean(0).reshape(LEVELS, HASH)
        keys = (known @ parameters["key"].T).square().sum(1)
    stored = {name: tensor.detach().numpy() for name, tensor in parameters.items()}
    stored["codes"] = codes(parameters).detach().numpy()
    stored["energies"] = hashes.sum(1).numpy()
    stored["key_energy"] = keys.mean().numpy()
    half = {name: array.astype(np.float16) for name, array in stored.items()}
    np.savez_compressed(path, **half)


def main() -> None:
    """Train, then write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="an .npz file")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    parameters = train(steps=asked.steps, seed=asked.seed)
    save(parameters, asked.out, seed=asked.seed + 1)


if __name__ == "__main__":
    main()
