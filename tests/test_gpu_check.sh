#!/usr/bin/env bash
# tools/gpu_check.sh where there is no GPU: what it says, how it gathers findings and writes the record, that a part which
# hangs ends as a failure.
#
# usage: tests/test_gpu_check.sh BUILD_DIRECTORY
set -uo pipefail
build=$(realpath "$1")
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "test_gpu_check: $*" >&2
    exit 1
}
# says TEXT STATUS COMMAND...: on stderr, one line
says() {
    local text=$1 status=$2
    shift 2
    "$@" >"$work/out" 2>"$work/err"
    [ $? -eq "$status" ] || fail "$*: not status $status: $(cat "$work/err")"
    [[ $(cat "$work/err") == *"$text"* ]] || fail "$*: says $(cat "$work/err")"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$*: more than a sentence: $(cat "$work/err")"
}
mkdir "$work/path" # of a machine with a driver, but no GPU
printf '#!/bin/sh\necho No devices were found\nexit 6\n' >"$work/path/nvidia-smi"
chmod +x "$work/path/nvidia-smi"
check=(env PATH="$work/path:$PATH" tools/gpu_check.sh --out "$work/gpu" --record "$work/RECORD.md")

[[ $("${check[@]}" --help | head -n 1) == "Proves on a GPU"* ]] || fail "no help"
says "no GPU" 1 "${check[@]}" probe
says "nothing is not one of" 2 "${check[@]}" nothing
says "name parts" 2 "${check[@]}"
says "unknown option --fast" 2 "${check[@]}" --fast 1 probe
says "not a number of seconds" 2 "${check[@]}" --seconds soon probe
says "there is no eps-cuda.so" 2 "${check[@]}" --simulate "$work" probe

# The record: findings go into a dated entry, lines of the lists move both ways.
cat >"$work/RECORD.md" <<'MD'
# Record

Head.

## Unverified

- `sealing` It seals. `command one`
- `pull` It pulls. `command two`
- `other` It does. `command three`

## Verified

- `push` It pushes. `command four` (2026-01-02, Old GPU)
- `kept` It keeps. `command five` (2026-01-02, Old GPU)

## Entries

### 2026-01-02: Old GPU

- device: Old GPU
MD
says "is empty" 1 "${check[@]}" record
cat >"$work/gpu/results.txt" <<'TXT'
probe|sealing|passed|it seals a|b
copies|pull|short|0.912 (target 0.95): slowly
copies|push|failed|not at all
TXT
says "which GPU" 1 "${check[@]}" record
echo 'probe|device|fact|New GPU, of 2027' >>"$work/gpu/results.txt"
"${check[@]}" record >/dev/null || fail "the record is not written"
today=$(date -u +%Y-%m-%d)
cat >"$work/expected" <<MD
# Record

Head.

## Unverified

- \`pull\` It pulls. \`command two\`
- \`other\` It does. \`command three\`
- \`push\` It pushes. \`command four\`

## Verified

- \`sealing\` It seals. \`command one\` ($today, New GPU)
- \`kept\` It keeps. \`command five\` (2026-01-02, Old GPU)

## Entries

### $today: New GPU

- device: New GPU, of 2027
- commit: COMMIT

| what | | found |
|---|---|---|
| sealing | passed | it seals a\\|b |
| pull | short | 0.912 (target 0.95): slowly |
| push | failed | not at all |

### 2026-01-02: Old GPU

- device: Old GPU
MD
diff <(sed 's/^- commit: .*/- commit: COMMIT/' "$work/RECORD.md") "$work/expected" || fail "the record is not as expected"
echo 'probe|simulated|fact|nothing here was run on a GPU' >>"$work/gpu/results.txt"
says "simulator" 1 "${check[@]}" record

# Every line of the record that is yet to verify has a name of its own and a command with parts that there are.
# shellcheck disable=SC2016
names=$(sed -n '/^## Unverified/,/^## Entries/s/^- `\([^`]*\)`.*/\1/p' tests/gpu/RECORD.md)
[ "$(sort <<<"$names" | uniq -d)" = "" ] || fail "named twice in tests/gpu/RECORD.md: $(sort <<<"$names" | uniq -d)"
# shellcheck disable=SC2016
while read -ra command; do
    says "no GPU" 1 env PATH="$work/path:$PATH" "${command[@]}" --out "$work/none"
done < <(sed -n '/^## Unverified/,/^## Entries/s/^- `.*`\(tools[^`]*\)`.*/\1/p' tests/gpu/RECORD.md | sort -u)
while read -r name; do
    [ -e "tests/$name.c" ] || grep -qE "(^|[ \"|])$name(\\||[ \"]|\$)" tools/gpu/*.sh tools/gpu/probe.c || fail "nothing finds $name of tests/gpu/RECORD.md"
done <<<"$names"

# Of a trace, how long the worker waited in the last two steps: 10 + 20 of 300.
cat >"$work/trace" <<'JSON'
[{"ph":"M","pid":1,"tid":2,"name":"process_name","args":{"name":"eps-worker"}},
{"ph":"X","pid":1,"tid":2,"ts":50.0,"dur":40.0,"name":"wait for weights wte"},
{"ph":"X","pid":1,"tid":2,"ts":0.0,"dur":100.0,"name":"step","args":{"step":1,"parts":1}},
{"ph":"X","pid":1,"tid":2,"ts":120.0,"dur":10.000,"name":"wait for weights h.0"},
{"ph":"X","pid":1,"tid":2,"ts":100.0,"dur":150.0,"name":"step","args":{"step":2,"parts":1}},
{"ph":"X","pid":1,"tid":2,"ts":300.5,"dur":20.0,"name":"wait for a slot h.0"},
{"ph":"X","pid":1,"tid":2,"ts":250.0,"dur":150.0,"name":"step","args":{"step":3,"parts":1}},
JSON
# shellcheck source=/dev/null
found=$(. tools/gpu/relay.sh; waits "$work/trace" 2; echo; ratio 3 4)
[[ $found == 0.1000*"for weights 3.33 %"*"for a slot 6.67 %"* || $found == 0.1000*"for a slot 6.67 %"*"for weights 3.33 %"* ]] ||
    fail "waits: $found"
[[ $found == *$'\n'0.750 ]] || fail "a ratio: $found"

# A part that takes too long is a finding, and so is one that no time is left for.
mkdir -p "$work/simulated"
touch "$work/simulated/eps-cuda.so"
mkdir -p "$work/bin"
printf '#!/bin/sh\necho $$ >%s\necho "pull-100|0.9|so far"\nexec sleep 1000\n' "$work/pid" >"$work/simulated/bench_cuda"
chmod +x "$work/simulated/bench_cuda"
"${check[@]}" --simulate "$work/simulated" --bin "$work/bin" --seconds 10 copies rows >"$work/said" 2>&1
[ $? -eq 1 ] || fail "a hang is not a failure: $(cat "$work/said")"
grep -q '^copies|copies-ends|failed|the part copies took longer than [1-5] s' "$work/gpu/results.txt" || fail "a hang is not told: $(cat "$work/said")"
grep -q '^pull-100|0.9|so far' "$work/gpu/log.txt" || fail "what was measured before a hang is lost"
for ((i = 0; i < 600; i++)); do
    kill -0 "$(cat "$work/pid")" 2>/dev/null || break
    sleep 0.1
done
[ "$i" -lt 600 ] || fail "what hung runs on"
grep -q '^rows: not begun, no time is left' "$work/said" || fail "rows began: $(cat "$work/said")"

# Parts run through on the simulated device, where no figure means anything.
"${check[@]}" --out "$work/dry" --simulate "$build/bin/cudasim" --bin "$build/bin" probe copies attention >"$work/said" 2>&1
grep -E '\|failed\|' "$work/dry/results.txt" && fail "on the simulated device: $(cat "$work/dry/log.txt")"
for name in copies\|pull copies\|push copies\|other-triad attention\|attention-own-forward attention\|attention-own-backward; do
    grep -qF "$name|" "$work/dry/results.txt" || fail "no $name on the simulated device: $(cat "$work/said")"
done
says "simulator" 1 "${check[@]}" --out "$work/dry" record
echo "test_gpu_check: all well"
