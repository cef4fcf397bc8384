#!/usr/bin/env bash
# A run at a shared daemon ends as if nobody had disturbed it, whatever becomes of its workers and its client.
#
# usage: tests/system/storm.sh BIN [RUNS] [SEED]      BIN: the folder of eps, epsd and eps-worker
#
# Workers, local ones and some by tcp, are killed, stopped, woken, told to leave, drained, cut off and attached at random
# times; the client is killed, and another takes over. The seed draws what happens, and when. Then, within a minute,
# however busy the machine: no process, socket, segment or directory is left; weights, moments and losses have the same
# bits. A run that has not ended after ten minutes hangs.
set -u

bin=$(realpath "${1:?usage: tests/system/storm.sh BIN [RUNS] [SEED]}")
runs=${2:-200} seed=${3:-$$}

steps=60 every=20
. "$(dirname "$0")/common.sh"
"$bin/epsd" --make-key key || exit 1

kinds=(
    "--optimizer adamw --parts 4"
    "--optimizer adama --parts 4 --precision bf16 --moments bf16 --grad-dtype bf16"
    "--optimizer adamw --parts 8 --commit fenced --clip-norm 0.5"
)

fail() {
    echo "FAILED: $*"
    echo "replay: tests/system/storm.sh BIN 1 $run_seed     what happened:"
    cat events
    tail -n 5 said log worker-* 2>/dev/null
    exit 1
}

is_up() { "$bin/eps" status lab >status; }
says() { "$bin/eps" status lab >status && grep -q "$1" status; }

pick() { draw=$((RANDOM % $1)); }

# Passes bytes between a worker's connections and the daemon's port, until it is killed. Prints its own port, which may be
# given.
cat >cable.pl <<'PERL'
use IO::Socket::INET; use IO::Select; use strict;
my $connection = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $ARGV[1], ReuseAddr => 1, Listen => 8) or die;
my (%other, $bytes);
$| = 1; print $connection->sockport, "\n"; close STDOUT; $SIG{PIPE} = "IGNORE";
my $all = IO::Select->new($connection);
while (my @ready = $all->can_read) {
    for my $from (@ready) {
        if ($from == $connection) {
            my $near = $connection->accept or next;
            my $far = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $ARGV[0]) or next;
            @other{$near, $far} = ($far, $near); $all->add($near, $far); next;
        }
        my $to = $other{$from} or next;
        next if sysread($from, $bytes, 1 << 16) and syswrite($to, $bytes) == length $bytes;
        $all->remove($from, $to); delete @other{$from, $to}; close $from; close $to;
    }
}
PERL

attach() {
    local where=lab
    local -a key=()
    pick 2
    if [ -n "$port" ] && [ $draw -eq 0 ]; then
        n_cables=$((n_cables + 1))
        perl cable.pl "$port" >"cable-$n_cables" &
        cables+=($!)
        disown $!
        until_true 60 test -s "cable-$n_cables" || fail "no cable"
        where=tcp://127.0.0.1:$(cat "cable-$n_cables") key=(--key key)
    fi
    n_workers=$((n_workers + 1))
    "$bin/eps-worker" --connect $where "${key[@]}" --device-mem 64MiB 2>"worker-$n_workers" &
    note "attach $! at $where"
    workers+=($!)
    disown $! # the shell need not report its end
}

note() { echo "$(date +%T.%N) $*" >>events; }

# Forgets workers that have ended, and sets victim to one of the others; false: there is none.
choose() {
    local pid
    local -a left=()
    for pid in "${workers[@]}"; do
        kill -0 "$pid" 2>/dev/null && left+=("$pid")
    done
    workers=("${left[@]}")
    [ ${#workers[@]} -gt 0 ] || return 1
    pick ${#workers[@]}
    victim=${workers[$draw]}
}

start_daemon() {
    local -a network=()
    port=
    pick 2
    if [ $draw -eq 0 ]; then
        port=$((20000 + RANDOM % 20000))
        network=(--listen "tcp://127.0.0.1:$port" --key key)
    fi
    "$bin/epsd" --listen lab "${network[@]}" 2>log &
    daemon=$!
    until_true 60 is_up && return
    grep -q "in use" log || fail "the daemon does not come up"
    end_all
    start_daemon # another port
}

begin_run() {
    rm -rf out
    (begin "$kind" out "--connect lab") >said 2>&1 &
    client=$!
}

# The daemon keeps the job, and another client takes over; or there was none yet.
replace_client() {
    note "kill client $client"
    kill -KILL $client 2>/dev/null
    wait $client 2>/dev/null
    if until_true 60 says 'detached\|^state  *idle' && grep -q detached status; then
        "$bin/eps" train --attach lab >said 2>&1 &
        client=$!
        note "attach client $client"
    elif [ "$(readlink out/latest)" != step-$steps ]; then
        note "begin again"
        begin_run
    else # it was killed after its work was done
        true &
        client=$!
    fi
}

last_attached() { sed -n 's/.*worker \([0-9]*\) attached.*/\1/p' log | tail -n 1; }

cut_off() {
    [ ${#cables[@]} -gt 0 ] || return
    pick ${#cables[@]}
    note "cut off ${cables[$draw]}"
    kill -KILL "${cables[$draw]}" 2>/dev/null
    cut[draw]=1
}

# Lays the cables anew that were cut: their workers wait for the daemon at the same ports, however long.
mend_cables() {
    local i
    for i in "${!cut[@]}"; do
        note "mend ${cables[$i]}"
        perl cable.pl "$port" "$(cat "cable-$((i + 1))")" >/dev/null &
        cables[i]=$!
        disown $!
    done
}

strike() {
    pick 10
    local what=$draw
    case $what in
    0 | 1) attach; return ;;
    2 | 3) kill -0 $client 2>/dev/null && replace_client; return ;;
    4) cut_off; return ;;
    5) note "drain"; "$bin/eps" drain "$(last_attached)" lab >drained 2>&1 & return ;; # it may be gone
    esac
    choose || return
    case $what in
    6 | 7) note "kill $victim"; kill -KILL "$victim" ;;
    8) note "leave $victim"; kill -TERM "$victim" ;;
    9)
        pick 4
        local rest=$((draw == 0 ? 17 : 0)).$((RANDOM % 900 + 100)) # a worker is given up after 15 s
        note "stop $victim for $rest s"
        kill -STOP "$victim"
        (sleep $rest; kill -CONT "$victim") 2>/dev/null & ;;
    esac
}

make_reference() {
    [ ! -e "reference-$kind" ] || return
    (begin "$kind" "reference-$kind" "--device-mem 64MiB") >said 2>&1 || fail "the run that nobody disturbs"
}

declare -A happened
for run in $(seq 0 $((runs - 1))); do
    run_seed=$((seed + run))
    RANDOM=$run_seed
    : >events
    rm -f worker-* cable-*
    workers=() cables=() cut=() n_workers=0 n_cables=0
    pick ${#kinds[@]}
    kind=$draw
    make_reference
    start_daemon
    pick 3
    for _ in $(seq $((draw + 1))); do
        attach
    done
    begin_run
    began=$SECONDS
    pick 8
    for _ in $(seq $((draw + 1))); do
        sleep "0.$((RANDOM % 400 + 100))"
        strike
    done
    mend_cables
    until [ -n "${over-}" ]; do
        while kill -0 $client 2>/dev/null; do
            [ $((SECONDS - began)) -lt 600 ] || fail "it hangs"
            choose || attach
            sleep 0.2
        done
        if wait $client; then
            over=1
        elif grep -q "was lost after 0 steps: .*; the run ends here" said; then # the only worker, before the job was open
            note "begin again"
            begin_run
        else
            fail "the client's status is not 0"
        fi
    done
    over=
    "$bin/eps" stop lab >/dev/null 2>&1
    wait $daemon || fail "the daemon's status is $?"
    for pid in $(ours); do # asleep, or too late to hear of the end: then they wait for another daemon
        kill -CONT "$pid" 2>/dev/null
        kill -TERM "$pid" 2>/dev/null
    done
    for pid in "${cables[@]}"; do
        kill -KILL "$pid" 2>/dev/null
    done
    await_nothing
    check_bits out "reference-$kind"
    for what in $(awk '{ print $2 ($3 == "client" ? "-client" : "") }' events); do
        happened[$what]=$((${happened[$what]:-0} + 1))
    done
done
for what in "${!happened[@]}"; do
    echo "$what: ${happened[$what]} times"
done
echo "$runs runs from seed $seed, each with the bits of the one that nobody disturbed"
