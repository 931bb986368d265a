#!/usr/bin/env bash
# Runs a sweep file and checks a pair, as action.yml asks: see there what each variable is.
# Exit code: 0 within the limit, 5 beyond it, 4 open or not measured; 2, 3: it could not run.
#
#   CHECK=q8_0/q4_0 SWEEP=row MODEL=my.gguf scripts/sweep_and_check.sh
set -uo pipefail
codeneedle=${CODENEEDLE:-codeneedle}
out=${OUT:-codeneedle-runs}

words=("${SWEEP:-row}" --out "$out")
[ -z "${MODEL:-}" ] || words+=(--model "$MODEL")
if [ -n "${SERVER:-}" ]; then
  words+=(--llama-server "$SERVER")
else
  "$codeneedle" llama >&2 || exit
fi
if [ -n "${ARGUMENTS:-}" ]; then
  read -ra arguments <<<"$ARGUMENTS"
  words+=(-- "${arguments[@]}")
fi

# 1: some cells did not finish; whether the pair has numbers is for the check to say.
"$codeneedle" sweep "${words[@]}"
code=$?
[ "$code" -le 1 ] || exit "$code"

line=$("$codeneedle" verdict --out "$out" --check "$CHECK" --max-loss "${MAX_LOSS:-1%}")
code=$?
echo "$line"
case $code in 0) outcome=within ;; 5) outcome=beyond ;; 4) outcome=open ;; *) exit "$code" ;; esac
{ echo "outcome=$outcome"; echo "folder=$out"; } >>"${GITHUB_OUTPUT:-/dev/null}"
{
  printf '%s\n\n' "$line"
  "$codeneedle" verdict --out "$out" --max-loss "${MAX_LOSS:-1%}" --markdown
} >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
exit "$code"
