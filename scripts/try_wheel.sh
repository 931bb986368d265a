#!/usr/bin/env bash
# Builds the wheel and the source archive, and works with the wheel alone: in an empty
# environment, in a folder outside the checkout. Prints what the installation weighs.
#
#   scripts/try_wheel.sh [FOLDER]      where to put both; by default they are not kept
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
out=${1:-$folder/dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)

python3 -m venv "$folder/build"
"$folder/build/bin/python" -m pip install --quiet --disable-pip-version-check hatchling
(cd "$here" && "$folder/build/bin/python" -m hatchling build -d "$out")

python3 -m venv "$folder/alone"
"$folder/alone/bin/python" -m pip install --quiet --disable-pip-version-check "$out"/*.whl
du -sm "$folder/alone" | awk '{print $1, "MiB installed, pip included"}'

mkdir "$folder/elsewhere"
cd "$folder/elsewhere"
codeneedle=$folder/alone/bin/codeneedle
pairs=(--types "f16,q8_0" --same --corpus random-bodies-mini --context 4096 --way force --functions 6)
set -x
"$codeneedle" llama
"$codeneedle" doctor
"$codeneedle" plan "${pairs[@]}"
"$codeneedle" sweep "${pairs[@]}"
"$codeneedle" grid
"$codeneedle" heatmap
"$codeneedle" page
"$codeneedle" verdict
"$codeneedle" models
"$codeneedle" plan corners --context 4096
"$codeneedle" gen-corpus --seed 42
"$codeneedle" fetch smollm2
