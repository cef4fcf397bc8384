#!/usr/bin/env bash
# tools/oracle.sh with a Python of our own: every script that tests/README.md rests on is run, failures count, and what passed
# is not run twice.
#
# usage: tests/tools/test_oracle.sh
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "test_oracle: $*" >&2; exit 1; }

mkdir -p "$work/tools" "$work/build/bin" "$work/tests"
cp "$here/tools/oracle.sh" "$work/tools"
cp -r "$here/tests/oracle" "$work/tests"
for program in eps epsd eps-worker test_exact_logits test_dump test_side test_template test_conversation bench_tokens; do
    printf '#!/bin/sh\n' >"$work/build/bin/$program"
done
cat >"$work/python" <<'END'
#!/bin/sh
echo "$@" >>"$CALLS"
[ "$1" != "tests/oracle/$BROKEN.py" ]
END
chmod +x "$work"/build/bin/* "$work/python"
export CALLS=$work/calls BROKEN=

# oracle STATUS LAST_LINE OPTION...
oracle() {
    local status=0
    : >"$CALLS"
    out=$("$work/tools/oracle.sh" --python "$work/python" "${@:3}" 2>&1) || status=$?
    [ "$status" = "$1" ] || fail "status $status of ${*:3}: $out"
    [[ $(tail -n 1 <<<"$out") == "$2"* ]] || fail "of ${*:3}: $out"
}

n=$("$work/tools/oracle.sh" --list | wc -l)
BROKEN=draw_keys oracle 1 "$((n - 2)) passed, 1 failed, 1 skipped"
grep -q '^FAILED: draw_keys, ' <<<"$out" || fail "$out"
# Scripts that write fixtures alone, and what scripts share.
while read -r name; do
    case ${name##*/} in make_* | handshake.py | check_gguf.py) continue ;; esac
    grep -q "^$name" "$CALLS" || fail "tools/oracle.sh does not run $name, which tests/README.md names"
done < <(grep -o 'tests/oracle/[a-z0-9_]*\.py' "$here/tests/README.md" | sort -u)
oracle 0 "$((n - 1)) passed, 0 failed, 1 skipped" # goes on with what failed
[ "$(cat "$CALLS")" = "tests/oracle/draw_keys.py 100 --bin $work/build/bin" ] || fail "ran $(cat "$CALLS")"
oracle 0 '1 passed, 0 failed' --full draw_keys # what passed was less
[ "$(cat "$CALLS")" = "tests/oracle/draw_keys.py 1000 --bin $work/build/bin" ] || fail "ran $(cat "$CALLS")"
oracle 0 '2 passed, 0 failed' float64 masked
[ ! -s "$CALLS" ] || fail "ran $(cat "$CALLS")"
oracle 0 '1 passed, 0 failed' --again float64
[ -s "$CALLS" ] || fail "--again ran nothing"
touch -d '+1 minute' "$work/build/bin/eps" # other programs
oracle 0 '1 passed, 0 failed' masked
[ -s "$CALLS" ] || fail "another eps, and masked did not run again"
mkdir "$work/llama" && touch "$work/llama/convert_hf_to_gguf.py"
oracle 0 '1 passed, 0 failed, 0 skipped' --llama "$work/llama" check_gguf
oracle 2 'oracle.sh: nothing is none of: float64' nothing
rm "$work/build/bin/test_side"
oracle 1 'oracle.sh: build/bin/test_side is missing' side_tokens
