"""Small programs that stand in for others."""

from pathlib import Path

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
--list-devices                          print list of available devices and exit
-fit,  --fit [on|off]                   whether to adjust unset arguments
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, bf16, q8_0,
                                        q4_0, turbo3, q8_KV
                                        (default: f16)
                                        (env: LLAMA_ARG_CACHE_TYPE_K)
-ctv,  --cache-type-v TYPE              KV cache data type for V
                                        allowed values: f16, q8_0
                                        (default: f16)
--spec-draft-type-k, -ctkd, --cache-type-k-draft TYPE
                                        KV cache data type for K for the draft
                                        allowed values: q5_0
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use one buffer, see also --not-an-option
"""
"""In the manner of llama-server's, shortened; a fork's types among those of K."""


def script(path: Path, body: str) -> Path:
    """An executable shell script at *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def llama_like(
    path: Path, *, version="version: 0.6.0 (build 11434, commit abc)", devices=""
) -> Path:
    """A program that answers questions as llama-server does; counts them in a file."""
    listed = devices or "  (none)"
    return script(
        path,
        f"""\
echo "$1" >> {path}.asked
case "$1" in
--version) echo "{version}" >&2; echo "built with GNU 12.2.0 for Linux" >&2;;
--list-devices) printf 'Available devices:\\n%s\\n' '{listed}';;
--help) cat <<'END'
{HELP}
END
;;
*) exit 1;;
esac""",
    )


def asked_of(path: Path) -> list[str]:
    """The questions that a program of `llama_like` was asked."""
    return Path(f"{path}.asked").read_text().split()
