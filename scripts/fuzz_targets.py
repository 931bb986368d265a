"""What is fuzzed: each reader of bytes from elsewhere, and what it may raise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import fuzz_files as files
import fuzz_seeds as seeds
import fuzz_servers as servers
from fuzz_claims import claim

from codeneedle.errors import CellError, CodeneedleError, MachineError, RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    A reader of bytes from elsewhere.

    Attributes:
        name: What ``--target`` takes.
        reads: Takes any bytes.
        refuses: What it may raise; anything else is a defect.
        seeds: Inputs to begin with.
        fragments: Each is tried over and over, 64 KiB long.
        share: Of all inputs, how many parts are its own.
    """

    name: str
    reads: Callable[[bytes], object]
    refuses: type[CodeneedleError] | tuple[()]
    seeds: Callable[[], list[bytes]]
    fragments: tuple[bytes, ...] = ()
    share: int = 1

    def digest(self, data: bytes) -> None:
        """Read *data*; whatever this raises is a defect of ours."""
        try:
            self.reads(data)
        except self.refuses as error:
            claim(bool(str(error) and error.hint), "an error has words and a hint")

    def inputs(self) -> Iterator[bytes]:
        """What is tried before anything is made up."""
        yield b""
        yield from self.seeds()
        yield from map(seeds.stretched, (*GENERAL, *self.fragments))


GENERAL = (b"\0", b"\xff", b" ", b"\n", b"a", b"0", b"[", b"{", b'"', b"a\n", b"\\")
"""What any reader may choke on."""


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="answers",
            reads=servers.read_answer,
            refuses=CellError,
            seeds=seeds.streams,
            fragments=(b'\0\1data: {"content":"a\\n"}\n', b'\4\0{"a":', b"\0\0data"),
            share=8,
        ),
        Target(
            name="server-log",
            reads=servers.read_server_log,
            refuses=(),
            seeds=lambda: [*seeds.logs("real"), *seeds.logs("quoted")],
            fragments=(b"\x1b]", b"\x1b[", b"prompt cache", b"K (", b"splits = 1"),
            share=6,
        ),
        Target(
            name="perplexity",
            reads=servers.read_perplexity,
            refuses=(),
            seeds=lambda: seeds.logs("perplexity"),
            fragments=(
                b"[1]",
                b"[1]1",
                b"A : ",
                b"1 1.0 \xc2\xb1 ",
                b"over 1 chunks, ",
            ),
            share=8,
        ),
        Target(
            name="bench",
            reads=servers.read_bench_lines,
            refuses=CellError,
            seeds=lambda: seeds.logs("bench"),
            fragments=(b"--a,", b"allowed values: a,", b"version: ", b'{"a":'),
            share=17,
        ),
        Target(
            name="base-file",
            reads=files.read_base_file,
            refuses=(),
            seeds=seeds.base_files,
            share=10,
        ),
        Target(
            name="gguf",
            reads=files.read_gguf,
            refuses=MachineError,
            seeds=seeds.ggufs,
            share=8,
        ),
        Target(
            name="sweep-file",
            reads=files.read_sweep,
            refuses=RequestError,
            seeds=seeds.sweep_files,
            fragments=(b"a=", b"[a]\n", b"a.", b"a=[", b'"""', b"a={b="),
            share=8,
        ),
        Target(
            name="corpus-file",
            reads=files.read_corpus,
            refuses=RequestError,
            seeds=seeds.corpus_files,
            fragments=(b"a=", b"[a]\n", b"a.", b"a=[", b'"""', b"a={b="),
            share=10,
        ),
        Target(
            name="records",
            reads=files.read_record,
            refuses=(),
            seeds=seeds.records,
            fragments=(b'{"a":', b"[1,"),
            share=6,
        ),
        Target(
            name="replies",
            reads=files.read_reply,
            refuses=(),
            seeds=seeds.replies,
            fragments=(b"<think>", b"</think>", b"```\n", b"\0a\n", b"\r", b"~~~"),
            share=15,
        ),
        Target(
            name="python",
            reads=files.source_reader(".py"),
            refuses=RequestError,
            seeds=seeds.python_texts,
            fragments=(b"(", b"-", b"def f():0\n", b"lambda:", b"f(", b"a.", b"not "),
            share=5,
        ),
        Target(
            name="javascript",
            reads=files.source_reader(".js"),
            refuses=RequestError,
            seeds=seeds.javascript_texts,
            fragments=(b"(", b"function a(){", b"a=>", b"`${", b"/a/", b"!", b"a=>{"),
            share=3,
        ),
        Target(
            name="php",
            reads=files.source_reader(".php"),
            refuses=RequestError,
            seeds=seeds.php_texts,
            fragments=(b"<?php ", b"function a(){\n", b"<<<A\n", b"$"),
            share=4,
        ),
    )
}
"""Everything that is fuzzed, by name."""
