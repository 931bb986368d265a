"""Small programs that stand in for those of llama.cpp, some misbehaving by cell."""

import sys
from pathlib import Path

HERE = Path(__file__).parent

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
--list-devices                          print list of available devices and exit
-fit,  --fit [on|off]                   whether to adjust unset arguments
-m,    --model FNAME                    model path to load
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
    path: Path,
    *,
    version="version: 0.6.0 (build 11434, commit abc)",
    devices="",
    system_info="",
) -> Path:
    """A program that answers questions as llama-server does."""
    listed = devices or "  (none)"
    return script(
        path,
        f"""\
case "$1" in
--version) echo "{version}" >&2; echo "built with GNU 12.2.0 for Linux" >&2;;
--list-devices) printf 'Available devices:\\n%s\\n' '{listed}';;
--help) cat <<'END'
{HELP}
END
;;
*) echo '{system_info}' >&2; exit 1;;
esac""",
    )


def single_llama(path: Path, *parts: str) -> Path:
    """A ``llama`` whose *parts* answer as the programs that they are."""
    whole = llama_like(path.with_name(f"{path.name}.parts") / "any")
    return script(
        path,
        f"""\
for part in {" ".join(parts)}; do
  if [ "$1" = "$part" ]; then shift; exec "{whole}" "$@"; fi
done
echo "error: unknown command '$1'" >&2; exit 1""",
    )


def server(folder, faults):
    """A llama-server in *folder*; *faults* of `fake_llama` by cell, or ``counting``."""
    misbehave(folder, faults)
    return script(
        folder / "bin" / "llama-server",
        # Less than what codeneedle grants, so that a log without end ends soon.
        "ulimit -f 600000\n"
        f'exec "{sys.executable}" -I -S "{HERE / "fake_llama.py"}" '
        f'--fake-folder "{folder / "cell-faults"}" "$@"',
    )


def misbehave(folder, faults):
    """From now on, the cells of the `server` in *folder* have these *faults* alone."""
    lines = {cell: "\n".join(of_cell) for cell, of_cell in faults.items()}
    _choose(folder / "cell-faults", lines)


TOOL = """\
for word; do
  case "$before" in --cache-type-k) k=$word;; --cache-type-v) v=$word;; esac
  before=$word
done
fault=none
if [ -e "{chosen}/$k-$v" ]; then fault=$(cat "{chosen}/$k-$v"); fi
HOME="{folder}"; export HOME
exec "{python}" -S "{fake}" "$fault" "$@"
"""


def tools(folder, faults):
    """Tools beside the `server` in *folder*; *faults* of the fakes by name and cell."""
    for name, of_cells in faults.items():
        chosen = folder / f"{name}-faults"
        _choose(chosen, of_cells)
        fake, python = HERE / f"fake_{name}.py", sys.executable
        body = TOOL.format(chosen=chosen, folder=folder, python=python, fake=fake)
        script(folder / "bin" / f"llama-{name}", body)


def fit_params(folder, rule):
    """A llama-fit-params beside the `server` in *folder*, with a *rule* of the fake."""
    fake = f'"{sys.executable}" -S "{HERE / "fake_fit_params.py"}"'
    body = f'HOME="{folder}"; export HOME\nexec {fake} {rule} "$@"'
    return script(folder / "bin" / "llama-fit-params", body)


def _choose(folder, faults):
    """Write one file for each cell with a fault; others are removed."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for cell, fault in faults.items():
        (folder / cell).write_text(fault, encoding="utf-8")
