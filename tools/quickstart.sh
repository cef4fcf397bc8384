#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs what is missing, builds, trains a small GPT-2 on real text through a
# daemon and a worker of its own, and lets it write a few lines. About 4 minutes on 2 cores.
#
# usage: tools/quickstart.sh [--data FILE]     text to train on; by default documentation that Debian's packages brought
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

# CMake's manual (building needs CMake, so it is there), Perl's where it is installed, and the licences, in an order
# that is mixed but the same each time, so that the end that is held out is like the rest.
gather() {
    find /usr/share/cmake*/Help /usr/share/perl /usr/share/common-licenses -type f \
        \( -name '*.rst' -o -name '*.pod' -o -path '*/common-licenses/*' \) -print0 2>/dev/null |
        LC_ALL=C sort -z | shuf -z --random-source=<(yes) | xargs -0 cat | iconv -f UTF-8 -t UTF-8 -c
}

if [ -z "$data" ]; then
    data=build/quickstart.txt
    gather >"$data" || true # find fails where one of the folders is missing
    if [ "$(stat -c %s "$data")" -lt 200000 ]; then
        echo "quickstart.sh: no text found on this machine; name some: tools/quickstart.sh --data FILE" >&2
        exit 1
    fi
    echo "Text: $(stat -c %s "$data") bytes of documentation found under /usr/share, in $data"
fi

echo "Training"
out=runs/quickstart-$(date +%Y%m%d-%H%M%S)
build/bin/eps train --data "$data" --out "$out"

echo
echo "What it writes after \"The \""
build/bin/eps generate --model "$out/latest" --prompt "The " --tokens 100 --temperature 0.8 2>>"$log" ||
    { tail -n 1 "$log" >&2; exit 1; }
echo
