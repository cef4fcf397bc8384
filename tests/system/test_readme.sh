#!/usr/bin/env bash
# The commands of README.md's worked session and memory promise, of proto/plan/README.md and of device/cuda/README.md, in
# their order, each as it stands there but for a tenth of the steps, in a folder that looks like a clone in which
# tools/quickstart.sh has built. Blocks of indented lines are what a reader pastes. After a block that leaves something
# running in the background, the script waits until that shows, as a reader would.
#
# usage: tests/system/test_readme.sh BUILD_DIRECTORY
set -euo pipefail

source=$(realpath "$(dirname "$0")/../..") build=$(realpath "$1")
work=$(mktemp -d)
export XDG_RUNTIME_DIR=$work/runtime
# shellcheck disable=SC2317
clean_up() {
    "$build/bin/eps" stop lab >/dev/null 2>&1 || true
    wait
    rm -rf "$work"
}
trap clean_up EXIT
fail() {
    echo "test_readme: $*" >&2
    exit 1
}

mkdir -m 700 "$XDG_RUNTIME_DIR"
mkdir -p "$work/clone/build"
cd "$work/clone"
ln -s "$source"/* . 2>/dev/null || true # build/ stands already
rm -rf runs
ln -s "$build/bin" build/bin
find "$source"/{proto,client,eps} -name "*.[ch]" -exec cat {} + >build/quickstart.txt

# The functions that the tour in eps/README.md names are where it says.
tour=0
while IFS='|' read -r _ file names _; do
    file=$(tr -d ' `' <<<"$file")
    [ -e "$file" ] || fail "eps/README.md names $file, which is not there"
    for name in $(grep -o '`[a-z_]*`' <<<"$names" | tr -d '`'); do
        grep -rqw -- "$name" "$file" || fail "eps/README.md: $file has no $name"
        tour=$((tour + 1))
    done
done < <(grep -E '^\| `[a-z]+/[a-z_/.]+` \|' eps/README.md)
[ "$tour" -ge 20 ] || fail "eps/README.md has too few functions"

# One line for each command, however many it has, and an empty one where a block ends.
awk 'FNR == 1 { fenced = 0; on = FILENAME != "README.md" }
     /^## / && FILENAME == "README.md" { on = /A worked session|The memory promise/ }
     /^```/ { fenced = !fenced } # output
     on && !fenced && /^    / { goes_on = sub(/ *\\$/, ""); printf "%s%s", substr($0, 5), goes_on ? "" : "\n"; open = 1; next }
     open { print ""; open = 0 }' README.md proto/plan/README.md device/cuda/README.md >"$work/commands"
sed -i 's/--steps 3\([02]\)0\b/--steps 3\1/' "$work/commands"
command -v gnuplot >/dev/null || sed -i '/eps report/d' "$work/commands"
[ "$(grep -c . "$work/commands")" -ge 10 ] || fail "README.md's worked session has too few commands"

state() { build/bin/eps status lab --json 2>/dev/null | grep -E '"(state|workers)"' || true; }
# Until what was started in the background shows: the daemon, its worker, the first step.
settle() {
    local i
    for ((i = 0; i < 2400; i++)); do
        case $(state) in
        *loading*) ;;
        *'"workers": 0'*) ;;
        "$1" | "") ;;
        *) return ;;
        esac
        read -rt 0.05 <> <(:) || true
    done
    fail "nothing came of what was started in the background"
}

before=$(state) background=no
while IFS= read -r command <&3; do
    if [ -z "$command" ]; then
        if [ "$background" = yes ]; then
            settle "$before"
            before=$(state) background=no
        fi
        continue
    fi
    echo "\$ $command"
    case $command in *'&') background=yes ;; esac
    eval "$command" >"$work/said" 2>&1 || fail "failed: $command: $(tail -n 5 "$work/said")"
done 3<"$work/commands"
echo "test_readme: all well"
