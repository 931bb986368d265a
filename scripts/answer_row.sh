#!/usr/bin/env bash
# Checks the receipt in a text and prints the answer to who sent it, as Markdown: the rows
# of the same weights, or what is wrong with it.
#
#   scripts/answer_row.sh FILE      exit code 0: it can be added; 2: it cannot be used
set -uo pipefail

if told=$(codeneedle models "$1" --markdown 2>&1); then
  echo "Thank you. Your receipt can be read; here it stands beside the rows of the same weights."
  echo "Rows are never averaged, and one that differs is no mistake."
  echo
  # A comment holds 65,536 characters.
  printf '%s\n' "${told:0:60000}"
else
  echo "This receipt cannot be used:"
  echo
  echo "~~~text"
  # A text of a stranger may hold fences.
  echo "${told//"~~~"/}"
  echo "~~~"
  echo
  echo "Edit the issue, and it is read again."
  exit 2
fi
