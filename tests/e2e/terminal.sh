#!/usr/bin/env bash
# What a person at a terminal sees of `kakeya chat`, run, quantize and the rest: prompts, editing,
# pasting, completion, history, colours.
. "$(dirname "$0")/lib.sh"
if ! python3 -c 'import pty' 2>/dev/null; then
    skip_all "no python3: the terminal was not tested"
fi
python3 "$(dirname "$0")/terminal_chat.py" "$KAKEYA" "$model" "$work" || fail "chat at a terminal"
finish
