#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs what is missing, builds, trains a small GPT-2 on real text with a
# private daemon and worker, and generates a few lines. About 5 minutes on 2 cores.
#
# usage: tools/quickstart.sh [--data FILE]     text to train on; by default the documentation of installed packages
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

# CMake's manual (the build needs CMake), Perl's if it is installed, and the licences. They are shuffled, in the same order
# each time, so that the held-out end resembles the rest.
gather() {
    find /usr/share/cmake*/Help /usr/share/perl /usr/share/common-licenses -type f \
        \( -name '*.rst' -o -name '*.pod' -o -path '*/common-licenses/*' \) -print0 2>/dev/null |
        LC_ALL=C sort -z | shuf -z --random-source=<(yes) | xargs -0 cat | iconv -f UTF-8 -t UTF-8 -c
}

if [ -z "$data" ]; then
    data=build/quickstart.txt
    gather >"$data" || true # find fails if one of the folders is missing
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
echo "It continues \"The \":"
build/bin/eps generate --model "$out/latest" --prompt "The " --tokens 100 --temperature 0.8 2>>"$log" ||
    { tail -n 1 "$log" >&2; exit 1; }
echo
