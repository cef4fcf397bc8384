#!/usr/bin/env bash
# A client that is away from its loop loses nothing.
#
# usage: tests/system/pauses.sh BIN [STORMS] [LONGEST] [SEED] [PYTHON]      BIN: the folder of eps, epsd and eps-worker
#
# Storms of each kind in turn, sixteen at a time, as they mostly wait: a pipe that nobody reads, a terminal with Ctrl-S, a
# client that is stopped, or stopped and killed; with a daemon of its own, or at a shared one while another job waits; a
# person who thinks in eps chat; and, with a PYTHON that has the package, an eps.Engine that thinks between two steps and a
# callback of eps.train. The seed draws how long, up to LONGEST seconds. Then weights, moments, losses and answers are those of the
# same without a pause, and within a minute no process, socket or directory is left.
set -u

bin=$(realpath "${1:?usage: tests/system/pauses.sh BIN [STORMS] [LONGEST] [SEED] [PYTHON]}")
storms=${2:-40} longest=${3:-120} seed=${4:-$$} python=${5:-}
at_once=16

steps=60 every=20
. "$(dirname "$0")/common.sh"
trap 'for XDG_RUNTIME_DIR in "$top"/run/*; do end_all; done; rm -rf "$top"' EXIT
kinds=("--device-mem 64MiB --optimizer adamw --parts 4" "--optimizer adamw --parts 4") # the second at a shared daemon

fail() {
    echo "FAILED: $*"
    tail -n 5 said err log worker.log ./*/log 2>/dev/null
    exit 1
}

# Reads the first argument, a pipe of one page, after so many seconds.
cat >reader.pl <<'PERL'
open(my $pipe, "<", $ARGV[0]) or die;
fcntl($pipe, 1031, 4096) or die; # F_SETPIPE_SZ
sleep $ARGV[1];
print while <$pipe>;
PERL

cat >engine.py <<'PYTHON'
import sys, time
import eps, numpy

pause, out = float(sys.argv[1]), sys.argv[2]
with eps.Engine("../reference/latest", batch=4, seq=32, lr=1e-3, out=out, device_mem="64MiB", deterministic=True) as engine:
    for step in range(6):
        ids = (numpy.arange(128).reshape(4, 32) * (step + 3) % 251).astype(numpy.int32)
        engine.step(ids)
        if step in (1, 4):
            time.sleep(pause / 2)
PYTHON

cat >callback.py <<'PYTHON'
import sys, time
import eps

pause, out = float(sys.argv[1]), sys.argv[2]
eps.train("../book.txt", model="../config.json", steps=60, batch=8, seq=32, seed=7, save_every=20, deterministic=True,
          device_mem="64MiB", optimizer="adamw", parts=4, out=out,
          on_step=lambda step: time.sleep(pause if step.step == 25 else 0))
PYTHON

has_steps() { [ "$(wc -l <"$1/metrics.jsonl" 2>/dev/null || echo 0)" -ge 5 ]; }

await_client() { wait "$1" || fail "the client's status is $?"; }

rest() { sleep "$1"; }

# A storm whose run is over before its pause shows nothing, but its bits are checked.
note_over() { kill -0 "$1" 2>/dev/null || echo "the run was over before its pause"; }

a_pipe() {
    mkfifo pipe
    perl ../reader.pl pipe "$1" >said &
    (begin "${2-0}" run "${3-}") >pipe 2>err &
    await_client $!
    check_bits run ../reference
}

a_terminal() {
    mkfifo keys
    script -qfec "$bin/eps train --model ../config.json --data ../book.txt --steps $steps --batch 8 --seq 32 --seed 7 \
        --save-every $every --deterministic ${kinds[0]} --out run" /dev/null <keys >said 2>err &
    local client=$!
    exec 3<>keys # may be written to when the run is over
    until_true 60 has_steps run || fail "it does not begin"
    note_over $client
    printf '\023' >&3
    rest "$1"
    printf '\021' >&3
    await_client $client
    exec 3>&-
    check_bits run ../reference
}

a_stop() {
    (begin "${2-0}" run "${3-}") >said 2>err &
    local client=$!
    until_true 60 has_steps run || fail "it does not begin"
    note_over $client
    kill -STOP $client 2>/dev/null
    rest "$1"
    kill -CONT $client 2>/dev/null
    await_client $client
    check_bits run ../reference
}

# Its daemon saves; whoever resumes waits for that.
a_death() {
    (begin 0 run) >said 2>err &
    local client=$! before
    until_true 60 has_steps run || fail "it does not begin"
    note_over $client
    kill -STOP $client 2>/dev/null
    rest "$1"
    before=$(wc -l <run/metrics.jsonl)
    kill -KILL $client 2>/dev/null
    wait $client 2>/dev/null
    if "$bin/eps" train --resume run >said 2>err; then
        grep -q "continuing from .*step-[0-9]* after" said err || fail "nothing was saved"
        [ "$(sed -n 's/.* after \([0-9]*\) steps.*/\1/p' said err | head -n 1)" -ge "$before" ] || fail "steps were lost"
    else
        grep -q "the run is complete" err || fail "it does not go on" # it had done all steps when it was stopped
    fi
    check_bits run ../reference
}

start_lab() {
    "$bin/epsd" --listen lab 2>log &
    lab=$!
    until_true 60 "$bin/eps" status lab >/dev/null || fail "the daemon does not come up"
    "$bin/eps-worker" --connect lab --device-mem 64MiB 2>worker.log &
    worker=$!
}

# Another job waits meanwhile, for less than five minutes.
a_queue() {
    start_lab
    "a_$2" "$1" 1 "--connect lab" &
    local first=$! second
    until_true 60 has_steps run || fail "it does not begin"
    (begin 1 second "--connect lab") >second.said 2>second.err &
    second=$!
    await_client $first
    await_client $second
    check_bits second ../reference
    "$bin/eps" stop lab >/dev/null || fail "the daemon does not stop"
    wait $lab || fail "the daemon's status is $?"
    kill $worker 2>/dev/null # it waits for the next daemon
}

a_thought() {
    (echo hello; rest "$1"; echo more) | "$bin/eps" chat --model ../talker --device-mem 64MiB --tokens 8 --seed 3 \
        >said 2>err || fail "the chat's status is not 0"
    cmp -s said ../answers || fail "the answers differ"
}

an_engine() {
    "$python" ../engine.py "$1" run >said 2>err || fail "the engine failed"
    cmp -s run/latest/model.safetensors ../engine/latest/model.safetensors || fail "the engine's weights differ"
    cmp -s run/latest/optimizer.safetensors ../engine/latest/optimizer.safetensors || fail "its moments differ"
}

a_callback() {
    "$python" ../callback.py "$1" run >said 2>err || fail "the run failed"
    check_bits run ../reference
}

# ---- what is right ----

mkdir prepare
cd prepare || exit 1
(begin 0 ../reference) >said 2>err || fail "the run that nobody disturbs"
sed 's/"n_positions": 32/"n_positions": 2048/' ../config.json >talker.json
"$bin/eps" train --model talker.json --data ../book.txt --steps 1 --batch 1 --seq 32 --out run >said 2>err || fail "eps train"
"$bin/eps" export --model run/latest --out ../talker >said 2>err || fail "eps export"
echo '{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]' >../talker/chat_template.jinja
(a_thought 0) >/dev/null 2>&1
cp said ../answers
[ -s ../answers ] || fail "eps chat"
what=("a_pipe" "a_terminal" "a_stop" "a_death" "a_queue pipe" "a_queue stop" "a_thought")
if [ -n "$python" ]; then
    python=$(command -v "$python") || fail "no $python"
    (cd .. && mkdir python && cd python && "$python" ../engine.py 0 ../engine) >said 2>err || fail "eps.Engine"
    what+=("an_engine" "a_callback" "an_engine")
fi
await_nothing
cd .. || exit 1

# ---- the storms ----

# storm NUMBER
storm() {
    local -a call
    RANDOM=$((seed + $1))
    local pause=$((RANDOM % (longest + 1)))
    read -ra call <<<"${what[$(($1 % ${#what[@]}))]}"
    export XDG_RUNTIME_DIR=$top/run/$1
    mkdir -m 700 "$XDG_RUNTIME_DIR" "storm-$1"
    cd "storm-$1" || exit 1
    local began=$SECONDS
    "${call[0]}" $pause "${call[@]:1}"
    [ $((SECONDS - began)) -ge $pause ] || fail "it has not paused"
    await_nothing
    echo "storm $1: ${call[*]}, $pause s"
}

declare -A running=()
n_over=0 n_failed=0
collect() {
    local pid number
    wait -n -p pid "${!running[@]}"
    local status=$?
    number=${running[$pid]}
    unset "running[$pid]"
    cat "storm-$number.said"
    n_over=$((n_over + 1))
    [ $status -eq 0 ] && return
    n_failed=$((n_failed + 1))
    echo "storm $number failed: tests/system/pauses.sh BIN STORMS $longest $seed"
}
for number in $(seq 0 $((storms - 1))); do
    [ ${#running[@]} -lt $at_once ] || collect
    (trap - EXIT; storm "$number") >"storm-$number.said" 2>&1 &
    running[$!]=$number
done
while [ ${#running[@]} -gt 0 ]; do
    collect
done
echo "$n_over storms from seed $seed, $n_failed failed"
[ $n_over -eq "$storms" ] && [ $n_failed -eq 0 ]
