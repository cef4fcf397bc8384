#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs what is missing, builds, trains a small GPT-2 in 128 MiB on real text
# with a private daemon and worker, and generates a few lines. Some 10 minutes on 2 cores.
#
# usage: tools/quickstart.sh [--data FILE]     text to train on; by default the Jargon File, a dictionary
set -euo pipefail
cd "$(dirname "$0")/.."

data=
case "${1-}" in
"") ;;
--data)
    data=${2-}
    [ -f "$data" ] || { echo "quickstart.sh: --data '$data' is not a file" >&2; exit 2; }
    data=$(realpath "$data")
    ;;
--help | -h) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit ;;
*) echo "quickstart.sh: unknown option $1; usage: tools/quickstart.sh [--data FILE]" >&2; exit 2 ;;
esac

tools/setup.sh
echo "Building"
mkdir -p build
log=build/quickstart.log
if ! { cmake --preset release && cmake --build build --target programs; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "quickstart.sh: the build failed; all of it is in $log" >&2
    exit 1
fi

given=(--data "$data")
if [ -z "$data" ]; then
    tools/quickstart_text.sh build/quickstart.txt build/held-out.txt
    echo "Text: $(stat -c %s build/quickstart.txt) bytes of the Jargon File, a dictionary of hackers, in build/quickstart.txt; every tenth entry is held out"
    given=(--data build/quickstart.txt --eval-data build/held-out.txt --device cpu --device-mem 128MiB --steps 750)
fi

echo "Training"
out=runs/quickstart-$(date +%Y%m%d-%H%M%S)
run() { # prints a command, and runs it
    echo "\$ $(printf '%q ' "$@")"
    "$@"
}
run build/bin/eps train "${given[@]}" --out "$out"

prompts=(--prompt ":core salad: n.") # an entry that the dictionary lacks
[ -z "$data" ] || prompts=()
echo
run build/bin/eps generate --model "$out/latest" "${prompts[@]}" --samples 3 --tokens 60 --temperature 0.8 2>>"$log" ||
    { tail -n 1 "$log" >&2; exit 1; }
echo
