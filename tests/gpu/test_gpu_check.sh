#!/usr/bin/env bash
# tools/gpu_check.sh where there is no GPU: what it says, how it gathers findings and writes the record, that a part which
# hangs ends as a failure.
#
# usage: tests/gpu/test_gpu_check.sh BUILD_DIRECTORY
set -uo pipefail
build=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit 1
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
says "name what to run" 2 "${check[@]}"
says "unknown option --fast" 2 "${check[@]}" --fast 1 probe
says "not a number of seconds" 2 "${check[@]}" --seconds soon probe
says "there is no eps-cuda.so" 2 "${check[@]}" --simulate "$work" probe

# Parts that all hang end in the ten minutes of a call, each at its own limit.
eval "$(grep -E '^(first|second|third)=\(' tools/gpu_check.sh)" # they are lists of words
eval "$(sed -n '/^declare -A limit=/,/)$/p' tools/gpu_check.sh)"
# shellcheck disable=SC2154
for call in "${first[*]}" "${second[*]}" "${third[*]}"; do
    sum=0
    for part in $call; do
        sum=$((sum + ${limit[$part]:-1000}))
    done
    [ $sum -le 550 ] || fail "the parts $call may take $sum s"
done

# Calls that are named together have the time of all.
mkdir "$work/named"
printf '#!/bin/sh\necho A GPU\n' >"$work/named/nvidia-smi"
chmod +x "$work/named/nvidia-smi"
PATH=$work/named:$PATH tools/gpu_check.sh --out "$work/gpu" --bin "$work/none" second third >"$work/said" 2>&1
grep -q '^-- findings in .*/second-third.txt, [0-9]* s of 1120$' "$work/said" || fail "two calls in one: $(cat "$work/said")"

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
# findings FILE GPU COMMIT LINE...: of a call
findings() {
    printf '%s\n' "call|gpu|fact|$2" "call|commit|fact|$3" "call|programs|fact|some" "${@:4}" >"$work/$1"
}
says "name the files" 2 "${check[@]}" record
says "is empty, or not there" 1 "${check[@]}" record "$work/none"
echo 'probe|sealing|passed|it seals' >"$work/lost"
says "which GPU and commit" 1 "${check[@]}" record "$work/lost"
findings one "New GPU" abc 'probe|device|fact|New GPU, of 2027' 'probe|sealing|passed|it seals a|b' \
    'copies|pull|short|0.912 (target 0.95): slowly' 'copies|late|missing|cut off' 'small|worse|failed|not so'
findings two "New GPU" abc 'copies|push|failed|not at all' 'copies|pull|passed|0.96' 'copies|late|passed|in time' \
    'small|worse|missing|cut off'
findings old "New GPU" abd 'copies|push|passed|it was well'
says "is of commit abd" 1 "${check[@]}" record "$work/one" "$work/old"
findings other "Old GPU" abc 'copies|push|passed|it was well'
says "is of gpu Old GPU" 1 "${check[@]}" record "$work/one" "$work/other"
findings nameless "New GPU" unknown 'copies|push|passed|it was well'
says "unknown commit" 1 "${check[@]}" record "$work/nameless"
findings tried simulated abc 'call|simulated|fact|nothing here was run on a GPU'
says "simulator" 1 "${check[@]}" record "$work/one" "$work/tried"
"${check[@]}" record "$work/one" "$work/two" >/dev/null || fail "the record is not written"
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
- commit: abc

| what | | found |
|---|---|---|
| sealing | passed | it seals a\\|b |
| pull | short | 0.912 (target 0.95): slowly |
| late | passed | in time |
| worse | failed | not so |
| push | failed | not at all |

### 2026-01-02: Old GPU

- device: Old GPU
MD
diff "$work/RECORD.md" "$work/expected" || fail "the record is not as expected"

# Every line of the record that is yet to verify has a name of its own and a command with parts that there are.
# shellcheck disable=SC2016
names=$(sed -n '/^## Unverified/,/^## Entries/s/^- `\([^`]*\)`.*/\1/p' tests/gpu/RECORD.md)
[ "$(sort <<<"$names" | uniq -d)" = "" ] || fail "named twice in tests/gpu/RECORD.md: $(sort <<<"$names" | uniq -d)"
# shellcheck disable=SC2016
while read -ra command; do
    says "no GPU" 1 env PATH="$work/path:$PATH" "${command[@]}" --out "$work/none"
done < <(sed -n '/^## Unverified/,/^## Entries/s/^- `.*`\(tools[^`]*\)`.*/\1/p' tests/gpu/RECORD.md | sort -u)
while read -r name; do
    [ -n "$(find tests -name "$name.c")" ] || grep -qE "(^|[ \"|])$name(\\||[ \"]|\$)" tools/gpu/*.sh tools/gpu/probe.c || fail "nothing finds $name of tests/gpu/RECORD.md"
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

# Attention stands beside both of PyTorch's ways, each by its name, or alone.
printf '%s\n' 'pytorch|2.0|A GPU' 'cudnn-forward-64-1024|2|' 'default-forward-64-1024|4|, FLASH_ATTENTION' >"$work/theirs"
printf '%s\n' 'own-forward-64-1024|4|5 TFLOP/s' 'agreement-forward-64-1024|0|x' 'own-backward-64-1024|8|6 TFLOP/s' >"$work/ours"
# shellcheck source=/dev/null
diff <(. tools/gpu/measure.sh; beside_peers "$work/theirs" "$work/ours") - <<'TXT' || fail "attention beside its peers"
attention-own-forward-64-1024|0.500|4 ms, 5 TFLOP/s; PyTorch through cuDNN 2 ms
default-own-forward-64-1024|1.000|of PyTorch by default, 4 ms, FLASH_ATTENTION
alone-own-backward-64-1024|8|ms, 6 TFLOP/s
TXT

# A step of few tokens stands beside the largest of its limits. By hand: 20 GB down at 50 GB/s are 400 ms, 10 GB up at 40 are
# 250, 28 bytes each of 1e9 parameters at 100 GB/s 280; computing alone takes 80.
cat >"$work/said" <<'TXT'
pull-100|0.9|40.0 GB/s, cudaMemcpyAsync 45.0 GB/s
pull-800|0.9|45.0 GB/s, cudaMemcpyAsync 50.0 GB/s
push-800|1.0|40.0 GB/s, cudaMemcpyAsync 40.0 GB/s
other-both-ways|70.0|GB/s, both
other-triad|100.0|GB/s, host memory
TXT
# shellcheck disable=SC2317,SC2030 # called by what is sourced, in a shell of its own
found=$(
    . tools/gpu/relay.sh
    simulate='' down='' up='' triad=''
    large() { ms=500 said=rates; }
    resident() { echo 80; }
    plan() { echo '"bytes_per_step": {"down": 20000000000, "up": 10000000000, "stash": 0}, "parameters": 1000000000,'; }
    fact() { :; }
    missing() { echo "missing $*"; }
    measured() { echo "$*"; }
    bounded small-4k 4096 16 70
    limits
    bounded small-4k 4096 16 70
)
[ "$found" = "missing small-4k rates; its limits are not known (computing alone: 80)
small-4k 0.800 0.9 rates; computing 80.0 ms, link 400.0 ms, host memory 280.0 ms" ] || fail "a step's limits: $found"
# shellcheck disable=SC2030
found=$(
    . tools/gpu/relay.sh
    width=16 layers=2 heads=2 seq=16
    print_config() { (. tools/bench/common.sh; print_config "$@"); }
    print_config 300 >"$work/config.json"
    plan() { "$build/bin/eps" plan --model "$work/config.json" --seq 16 --precision bf16 --device cuda --device-mem 1GiB "$@"; }
    simulate=yes
    moves 32
)
[[ $found =~ ^[1-9][0-9]*\ [1-9][0-9]*\ 11648$ ]] || fail "what a step moves: $found"

# A row runs only if the host has its memory: here 12 GiB by its plan, and 4 for all else. Its verdict is by the figure that shows
# its prediction wrong, and it names its options.
# shellcheck disable=SC2317,SC2030,SC2034 # called by what is sourced, in a shell of its own
found=$(
    part=gpt2 results=/dev/null log=/dev/null bin=$work python=false simulate='' out=$work
    # shellcheck source=/dev/null
    . tools/gpu/programs.sh
    # shellcheck source=/dev/null
    . tools/gpu/common.sh
    # shellcheck source=/dev/null
    . tools/gpu/published.sh
    seq=1024 free=15
    plan() { echo '{"host": {"current": 12000000000, "step_ms": 70.5, "measured": true, "parameters": 1000'; }
    free_gib() { echo "$free"; }
    limited() { :; }
    steps() {
        mkdir -p "$work/$1"
        printf '{"step": %d, "step_ms": %s, "loss": 1}\n' 1 900 2 "$ran" 3 "$ran" >"$work/$1/metrics.jsonl"
        echo 'worker: attention: by hand' >"$work/$1/log"
    }
    row big 9 3 2048 80 90 --moments bf16
    free=16
    for ran in 89.5 90.5; do row big 9 3 2048 80 90 --moments bf16; done
)
text='gpt2|big|VERDICT|predicted 80 ms (SAID): MS ms a step, RATE tokens/s, 0.0 TFLOP/s at 6 a parameter; planned 70.5 ms; '
text+='eps train --precision bf16 --batch 2 --seq 1024 --moments bf16 --host-mem 110GiB --no-save'
first=${text/VERDICT/passed} first=${first/SAID/falsified above 90} first=${first/MS/89.5}
last=${text/VERDICT/short} last=${last/SAID/falsified: more than 90 ms} last=${last/MS/90.5}
[ "$found" = "gpt2|big|missing|it takes 16 GiB of host memory, 4 of them for all else, and 15 are available; --batch 2 --moments bf16
gpt2|big-way|fact|attention: by hand
${first/RATE/22883}
gpt2|big-way|fact|attention: by hand
${last/RATE/22630}" ] || fail "rows: $found"

# An explicit EPS_CUDNN stays, also an empty one; else all places are named, of which the newest counts.
mkdir -p "$work/cudnn-a" "$work/cudnn-b"
touch "$work/cudnn-a/libcudnn_graph.so.9" "$work/cudnn-b/libcudnn_graph.so.9"
# cudnn [ASSIGNMENT]...: what take_cudnn leaves in EPS_CUDNN
cudnn() {
    # shellcheck disable=SC2016 # the inner shell's
    env -u EPS_CUDNN bin="$work" python=false simulate='' "$@" bash -c '. tools/gpu/programs.sh; . tools/gpu/common.sh
        take_cudnn; echo "${EPS_CUDNN-unset}"'
}
[ "$(cudnn EPS_CUDNN=/here)" = /here ] || fail "an explicit EPS_CUDNN does not win: $(cudnn EPS_CUDNN=/here)"
[ "$(cudnn EPS_CUDNN=)" = "" ] || fail "an empty EPS_CUDNN does not win: $(cudnn EPS_CUDNN=)"
found=$(cudnn LD_LIBRARY_PATH="$work/cudnn-a:$work/none:$work/cudnn-b")
[[ $found == *$work/cudnn-a:$work/cudnn-b ]] || fail "places of cuDNN: $found"

# A run that is cut off tells the steps that it had made, and keeps its trace.
mkdir -p "$work/large-32k-runs" "$work/kept"
printf '{"step": %d, "step_ms": %s, "loss": 1}\n' 1 812.5 2 640 >"$work/large-32k-runs/metrics.jsonl"
echo '[' >"$work/large-32k.trace"
# shellcheck disable=SC2030,SC2034
found=$(
    part=large out=$work/kept results=/dev/null log=/dev/null bin=$work python=false simulate=''
    . tools/gpu/programs.sh
    . tools/gpu/common.sh
    . tools/gpu/relay.sh
    cut="large-32k-runs 7 32768"
    cut_off
)
[ "$found" = "large|large-32k-runs-began|fact|812.5 640 ms, steps of 32768 tokens
large|large-32k-runs|missing|7 steps of 32768 tokens: cut off" ] || fail "a run cut off: $found"
[ "$(gzip -dc "$work/kept/large-32k.trace.gz")" = '[' ] || fail "the trace of a run cut off is lost"

# A test that was carried along reads its fixtures where it is told.
carried=$work/carried
mkdir -p "$carried"
for test in test_exact_bf16 test_convolutions test_smoothing_loss; do
    CK_FORK=no EPS_TESTS_DIR=$carried "$build/bin/$test" >"$work/said" 2>&1 && fail "$test needs no fixtures"
    grep -qE "open $carried/fixtures/|fixture == " "$work/said" || fail "$test: the fixtures are not read where EPS_TESTS_DIR says"
done

# Programs that were carried along are taken if they are of these sources and start; else some are built first.
tools=$PWD/tools/gpu
mkdir -p "$work/lent/gpu/bin" "$work/lent/device"
# chosen PARTS EXPECTED [ASSIGNMENT...]: what is said and chosen in a tree with that gpu/, in an environment of so much more
chosen() {
    # shellcheck disable=SC2016 # the inner shell's
    (cd "$work/lent" && env parts="$1" results=/dev/null log=/dev/null simulate="$work/lent/device" python=false bin='' "${@:3}" \
        bash -c '. "$1/programs.sh"; choose_programs; echo "$bin ${build_first:-not}"' chosen "$tools") >"$work/said"
    [[ "$(paste -sd ' ' "$work/said")" == *"$2" ]] || fail "expected $2, not $(cat "$work/said")"
}
echo 'int x;' >"$work/lent/source.c"
(cd "$work/lent" && sha256sum source.c >gpu/sources)
chosen copies "none were carried along in gpu/ build/cuda/bin yes"
for program in eps epsd eps-worker; do
    printf '#!/bin/sh\nexit 0\n' >"$work/lent/gpu/bin/$program"
done
printf '#!/bin/sh\nexit 2\n' >"$work/lent/device/bench_cuda"
chmod +x "$work/lent/gpu/bin/"* "$work/lent/device/bench_cuda"
chosen copies "those carried along start here gpu/bin not"
tar -C "$work/lent/gpu" -czf "$work/lent/gpu/programs.tar.gz" bin
rm -r "$work/lent/gpu/bin"
chosen copies "those carried along start here gpu/bin not"
rm "$work/lent/gpu/programs.tar.gz"
printf '#!/bin/sh\necho of another C library\nexit 127\n' >"$work/lent/gpu/bin/epsd"
chosen copies "epsd says: of another C library build/cuda/bin yes"
chosen probe "epsd says: of another C library build/cuda/bin not"

# They find a driver where the machine has its own: on its library path, or in a folder that may hold one.
cp "$work/lent/gpu/bin/eps" "$work/lent/gpu/bin/epsd"
cp "$work/lent/device/bench_cuda" "$work/lent/gpu/bin/"
mkdir "$work/driver"
touch "$work/driver/libcuda.so.1"
cat >"$work/lent/gpu/bin/gpu_probe" <<'SH'
#!/bin/sh
IFS=:
for folder in $LD_LIBRARY_PATH; do
    [ ! -e "$folder/libcuda.so.1" ] || exit 0
done
echo "device|missing|no driver"
exit 1
SH
chmod +x "$work/lent/gpu/bin/gpu_probe"
if [ ! -e /usr/local/nvidia/lib64/libcuda.so.1 ] && [ ! -e /usr/lib/wsl/lib/libcuda.so.1 ]; then
    chosen copies "gpu_probe says: device|missing|no driver build/cuda/bin yes" simulate=
fi
chosen copies "those carried along start here gpu/bin not" simulate= LD_LIBRARY_PATH="$work/driver"
# shellcheck source=/dev/null
found=$(python=false; . tools/gpu/programs.sh; drivers=("$work/none" "$work/driver"); LD_LIBRARY_PATH=/machine/own libraries /packed/bin)
[[ $found == /packed/lib*:/machine/own:$work/driver ]] || fail "the library path is $found"

# probe leaves a profile to the parts after it, where there is a device.
cat >"$work/lent/gpu/bin/eps" <<'SH'
#!/bin/sh
[ "$*" = "bench --device cuda:0 --profile" ] && mkdir "$XDG_CACHE_HOME/eps" && echo '{}' >"$XDG_CACHE_HOME/eps/profile-cuda.json"
SH
mkdir "$work/lent/gpu/cache"
# probed VERDICT TEXT: of the profile, in a probe by those programs
probed() {
    PATH=$work/named:$PATH tools/gpu_check.sh --out "$work/gpu" --bin "$work/lent/gpu/bin" probe >"$work/said" 2>&1
    grep -qxF "probe|profile|$1|$2" "$work/gpu/probe.txt" || fail "expected a profile that $1: $(cat "$work/said")"
}
probed missing "there is no device to measure"
printf '#!/bin/sh\necho "device|fact|A GPU"\n' >"$work/lent/gpu/bin/gpu_probe"
probed passed "eps bench measures the device"
[ -s "$work/lent/gpu/cache/eps/profile-cuda.json" ] || fail "the profile is not where later parts look for it"

echo 'int y;' >>"$work/lent/source.c"
chosen copies "those carried along are of other sources build/cuda/bin yes"

# A part that takes too long tells what it had, and so does one that no time is left for.
mkdir -p "$work/simulated" "$work/bin"
touch "$work/simulated/eps-cuda.so"
# It leaves a daemon behind, in a session of its own, and hangs: long enough that a busy machine has begun it by then.
printf '#!/bin/sh\nsetsid sh -c "echo \\$\\$ >%s; exec sleep 1000" &\necho $$ >%s\necho "pull-100|0.9|so far"\nexec sleep 1000\n' \
    "$work/daemon" "$work/pid" >"$work/simulated/bench_cuda"
cp "$work/simulated/bench_cuda" "$work/bin/eps"
chmod +x "$work/simulated/bench_cuda" "$work/bin/eps"
"${check[@]}" --simulate "$work/simulated" --bin "$work/bin" --seconds 30 copies rows >"$work/said" 2>&1
[ $? -eq 1 ] || fail "a hang is not a failure: $(cat "$work/said")"
found=$work/gpu/copies-rows.txt
grep -q '^copies|copies-ends|missing|the part copies took longer than \([1-9]\|1[0-9]\|2[0-5]\) s, and was cut off' "$found" ||
    fail "a hang is not told: $(cat "$work/said")"
grep -q '^copies|copies-cut|fact|it was at: .*bench_cuda --module .* copies$' "$found" || fail "it is not told where it hung: $(cat "$work/said")"
grep -q '^copies|pull-100|fact|0.9: so far' "$found" || fail "what was measured before a hang is lost: $(cat "$work/said")"
for process in pid daemon; do
    for ((i = 0; i < 600; i++)); do
        kill -0 "$(cat "$work/$process")" 2>/dev/null || break
        sleep 0.1
    done
    [ "$i" -lt 600 ] || fail "what hung runs on: $process"
done
grep -q '^rows: not begun, no time is left' "$work/said" || fail "rows began: $(cat "$work/said")"

# Parts run through on the simulated device, where no figure means anything, and where the machine allows it as on a lent
# one: from a copy of the tree and what is packed, without a compiler or our libraries.
rehearsed="probe profile gpt2 fsdp2 qwen25 qwen8b lengths bert t5 qwen3 copies products attention relay"
tests/gpu/rehearse.sh "$build" "$work/dry" "$rehearsed" >"$work/said" 2>&1
case $? in
0)
    grep -q '^the tree and .* MiB, of 63' "$work/said" || fail "it is not weighed: $(cat "$work/said")"
    [ ! -e "$build/bin/gpu_probe" ] || [ "$(grep -c '^driver .*: the check finds /' "$work/said")" -eq 4 ] ||
        fail "the driver is not looked for in four places: $(cat "$work/said")"
    ;;
77)
    # shellcheck disable=SC2086 # they are words
    "${check[@]}" --out "$work/dry" --simulate "$build/bin/cudasim" --bin "$build/bin" $rehearsed >"$work/said" 2>&1
    ;;
*) fail "the rehearsal: $(cat "$work/said")" ;;
esac
found=$work/dry/${rehearsed// /-}.txt
grep -E '\|failed\|' "$found" && fail "on the simulated device: $(cat "$work/said")"
for name in copies\|pull copies\|push copies\|other-triad attention\|attention-own-forward attention\|attention-own-backward \
    gpt2\|gpt2-fp32 gpt2\|gpt2-masterless fsdp2\|fsdp2-ratio qwen25\|qwen25-moments qwen8b\|qwen8b-16k lengths\|qwen8b-row-own \
    bert\|bert-large t5\|t5-wta t5\|t5-lora qwen3\|qwen3-forward qwen3\|qwen3-backward qwen3\|qwen3-plan relay\|relay-resident; do
    grep -qF "$name|" "$found" || fail "no $name on the simulated device: $(cat "$work/said")"
done
for name in agreement repeat losses; do
    grep -q "^qwen3|qwen3-$name|passed|" "$found" || fail "not passed on the simulated device: qwen3-$name: $(cat "$work/said")"
done
grep '^products|product-4096-up|' "$found" | grep -q 'with a pass over the result' || fail "products-up counts no pass"
grep -q '^products|chosen-4096-qkv|' "$found" || fail "no product by a chosen algorithm"
grep '^products|product-4096-qkv|' "$found" | grep -q 'with a pass' && fail "products-qkv counts a pass"
says "simulator" 1 "${check[@]}" record "$found"
echo "test_gpu_check: all well"
