# shellcheck shell=bash
# Whole steps as users run them: daemon and worker, fresh weights, random tokens. A run is interrupted after enough steps,
# and writes no checkpoint.
# shellcheck disable=SC2154,SC2034 # their options and work folder come from outside; print_config reads shapes

vocabulary=50257 heads=0 width=0 layers=0 seq=1024 # as print_config wants them
config=print_config # prints the model's
model='' data='' held='' # other files than shape writes
without='' # how a run's error tells that the device lacks what it asks for, if it may

# shape WIDTH LAYERS HEADS SEQ: writes config.json, and a million tokens
shape() {
    local bytes
    width=$1 layers=$2 heads=$3 seq=$4
    [ -z "$simulate" ] || { width=16 layers=2 heads=2 seq=16 vocabulary=300; }
    $config "$vocabulary" >"$work/config.json"
    [ -s "$work/tokens.bin" ] || random_tokens "$work/tokens.bin" "$vocabulary" $((1024 * 1024 + 1))
    bytes=$(token_bytes "$vocabulary")
    head -c $((bytes * (seq + 1))) "$work/tokens.bin" >"$work/held.bin"
}

# begin WIDTH LAYERS HEADS SEQ: finds the programs, writes the shape, and has a profile for plans, which probe may have measured
begin() {
    eps=$(programs)/eps
    take_cudnn
    shape "$@"
    take_profile "$eps" || return 0
}

# Checks that GIB of host memory are available, and records it if not. A virtual machine may get memory only by using it.
room() {
    local free
    [ -z "$simulate" ] || return 0
    [ "$(free_gib)" -ge "$1" ] || limited 60 "$python" tools/gpu/fill.py "$1"
    free=$(free_gib)
    [ "$free" -ge "$1" ] || fact "host-memory-$part" "$free GiB are free, fewer than the $1 that this takes"
}
free_gib() {
    awk '/^MemAvailable/ { print int($2 / 2^20) }' /proc/meminfo
}

# rows TOKENS
rows() {
    [ -z "$simulate" ] && echo $(($1 / seq)) || echo 2
}

readonly kept_free=4 # GiB of host memory for all else

# fits NAME OPTION...: whether the host has the memory that the run's plan takes; records it as missing if not
fits() {
    local name=$1 bytes gib
    shift
    bytes=$(plan --json "$@" | sed -n 's/^{"host": {"current": \([0-9]*\).*/\1/p')
    if [ -z "$bytes" ]; then
        failed "$name" "eps plan says nothing of its memory, of $*"
        return 1
    fi
    gib=$(((bytes >> 30) + 1 + kept_free))
    room "$gib" >/dev/null
    [ "$(free_gib)" -lt "$gib" ] || return 0
    missing "$name" "it takes $gib GiB of host memory, $kept_free of them for all else, and $(free_gib) are available; $*"
    return 1
}

# steps NAME SECONDS N TOKENS OPTION...: runs N steps of TOKENS tokens in $work/NAME; fails if they take too long
steps() {
    local name=$1 seconds=$2 n=$3 tokens=$4 pid rc deadline
    shift 4
    [ -z "$simulate" ] || seconds=$((20 * seconds))
    printf '\n$ %s: %s steps of %s tokens, %s\n' "$name" "$n" "$tokens" "$*" >>"$log"
    cut="$name $n $tokens"
    "${ours[@]}" "$eps" train --model "${model:-$work/config.json}" --data "${data:-$work/tokens.bin}" \
        --eval-data "${held:-$work/held.bin}" --out "$work/$name" --batch "$(rows "$tokens")" --seq "$seq" --steps 100000 --no-save --eval-every 0 --precision bf16 --device cuda:0 --host-mem 110GiB \
        "$@" >"$work/said" 2>&1 &
    pid=$!
    deadline=$((SECONDS + seconds))
    while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ] &&
        [ "$(field step_ms "$work/$name/metrics.jsonl" 2>/dev/null | wc -l)" -lt "$n" ]; do
        sleep 0.2
    done
    kill -TERM "$pid" 2>/dev/null # an interrupt would be ignored: it runs in the background
    timeout 30 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2>/dev/null
    wait "$pid"
    rc=$?
    cut=''
    cat "$work/said" >>"$log"
    keep "$work/${name%-runs}.trace"
    [ "$(field step_ms "$work/$name/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$n" ] && return
    began_steps "$name" "$tokens"
    [ "$SECONDS" -lt "$deadline" ] || rc=124
    if [ -n "$without" ] && grep -qF -e "$without" "$work/said"; then
        missing "$name" "$(why $rc "$seconds")"
        return 1
    fi
    failed "$name" "$n steps of $tokens tokens: $(why $rc "$seconds")"
    return 1
}

# began_steps NAME TOKENS: records the steps done so far as a fact
began_steps() {
    local ms
    ms=$(field step_ms "$work/$1/metrics.jsonl" 2>/dev/null | paste -sd ' ')
    [ -z "$ms" ] || fact "$1-began" "$ms ms, steps of $2 tokens"
}

# Records the steps that a run had done when the part is told to end.
cut_off_steps() {
    local name n tokens
    [ -n "${cut-}" ] || return 0
    read -r name n tokens <<<"$cut"
    began_steps "$name" "$tokens"
    missing "$name" "$n steps of $tokens tokens: cut off"
    keep "$work/${name%-runs}.trace"
}

cut_off() { cut_off_steps; }

# keep TRACE: compresses a trace beside the findings, if it exists and is small
keep() {
    [ -s "$1" ] || return 0
    local packed
    packed=$out/$(basename "$1").gz
    gzip -c "$1" >"$packed"
    [ "$(wc -c <"$packed")" -le 15000000 ] || rm -f "$packed"
}

# Median milliseconds of the steps after the first two.
step_ms() {
    field step_ms "$work/$1/metrics.jsonl" | tail -n +3 | middle
}

# ratio A B
ratio() {
    awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", (b ? a / b : 0) }'
}

# plan OPTION...: eps plan's answer for the model and the worker's device memory
plan() {
    local free=$((1 << 20))
    [ -n "$simulate" ] || free=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits | head -n 1)
    "${ours[@]}" "$eps" plan --model "$work/config.json" --seq "$seq" --precision bf16 --device cuda --host-mem 1TiB \
        --device-mem $((free - free / 32))MiB "$@"
}

parameters() {
    plan --json | sed -n 's/.*"parameters": *\([0-9]*\).*/\1/p'
}

# rates NAME TOKENS: prints "MS ms a step, N tokens/s, F TFLOP/s at 6 a parameter"
rates() {
    awk -v ms="$(step_ms "$1")" -v tokens="$2" -v n="$(parameters)" 'BEGIN {
        printf "%.1f ms a step, %.0f tokens/s, %.1f TFLOP/s at 6 a parameter", ms, tokens / ms * 1e3, 6 * n * tokens / ms * 1e-9 }'
}

# waits TRACE N: share of the last N steps in which the worker waited for the daemon, and for what
waits() {
    awk -v n="$2" '
        function number(key,    at) {
            at = match($0, "\"" key "\":[0-9.]*")
            return at ? substr($0, at + length(key) + 3, RLENGTH - length(key) - 3) + 0 : 0
        }
        function wait(what) { at[++waits] = number("ts"); us[waits] = number("dur"); of[waits] = what }
        /"name":"step"/ { begin[++steps] = number("ts"); end[steps] = begin[steps] + number("dur") }
        /"name":"wait for weights/ { wait("for weights") }
        /"name":"wait for a slot/ { wait("for a slot") }
        /"name":"wait until folded/ { wait("until folded") }
        END {
            first = steps > n ? steps - n + 1 : 1
            total = steps ? end[steps] - begin[first] : 0
            for (i = 1; i <= waits; i++)
                if (total && at[i] >= begin[first] && at[i] < end[steps]) { sum += us[i]; each[of[i]] += us[i] }
            printf "%.4f", (total ? sum / total : 1)
            for (what in each) printf " %s %.2f %%,", what, 100 * each[what] / total
        }' "$1"
}

waited() { # NAME: a finding
    local found share
    found=$(waits "$work/$1.trace" 4)
    share=${found%% *}
    if awk -v a="${share:-1}" 'BEGIN { exit !(a <= 0.03) }'; then
        passed waits "$share of a step (at most 0.03):${found#"$share"}"
    else
        finding short waits "$share of a step (at most 0.03):${found#"$share"}"
    fi
}

# GPT-2 1.5 B with 16 Ki tokens: relayed; the same code with resident weights and contributions.
part_relay() {
    local relayed alone

    room 40
    begin 1600 48 25 1024
    watch_clocks
    steps relay-runs 80 8 16384 --trace "$work/relay.trace" || { watch_clocks_end; return 0; }
    relayed=$(step_ms relay-runs)
    fact relay-rate "1.5 B, 16 Ki tokens: $(rates relay-runs 16384)"
    fact relay-waits "$(waits "$work/relay.trace" 4)"
    alone=$(resident 16384)
    if [ -n "$alone" ]; then
        measured relay-resident "$(ratio "$alone" "$relayed")" 0.97 "$relayed ms a step; weights that stay $alone ms"
    else
        failed relay-resident "bench_resident: $(why 1 60)"
    fi
    watch_clocks_end
}

# resident TOKENS: milliseconds of a step of the worker's code alone, with resident weights and contributions
resident() {
    limited 60 "${ours[@]}" "$bin/bench_resident" --module "$(module)" --model "$work/config.json" --batch "$(rows "$1")" --seq "$seq" &&
        sed -n 's/^ms //p' "$work/said"
}

# large NAME TOKENS STEPS [SECONDS]: sets $tflops, and $ms of the median step
large() {
    steps "$1-runs" "${4:-$((allowed - SECONDS - 15))}" "$3" "$2" --trace "$work/$1.trace" || return
    ms=$(step_ms "$1-runs")
    said="$(rates "$1-runs" "$2"), seq $seq, $(parameters) parameters"
    tflops=$(sed -n 's/.* \([0-9.]*\) TFLOP.*/\1/p' <<<"$said")
}

# copies: measures this machine's limits
copies() {
    local program=$bin/bench_cuda
    local -a tiny=()

    [ -z "$simulate" ] || { program=$simulate/bench_cuda tiny=(--small); }
    limited 35 "${ours[@]}" "$program" --module "$(module)" "${tiny[@]}" copies
    limits
}

# moves TOKENS: bytes down, bytes up and parameters of a step
moves() {
    plan --json --batch "$(rows "$1")" |
        sed 's/.*"down": *\([0-9]*\), *"up": *\([0-9]*\).*"parameters": *\([0-9]*\).*/\1 \2 \3/'
}

# limits: sets $down and $up, GB/s of pinned memory over the link, and $triad, GB/s of host memory, from the output of
# bench_cuda copies in $work/said
limits() {
    down=$(sed -n 's/^pull-.*cudaMemcpyAsync \([0-9.]*\) GB.*/\1/p' "$work/said" | sort -g | tail -n 1)
    up=$(sed -n 's/^push-.*cudaMemcpyAsync \([0-9.]*\) GB.*/\1/p' "$work/said" | sort -g | tail -n 1)
    triad=$(sed -n 's/^other-triad|\([0-9.]*\)|.*/\1/p' "$work/said")
    fact limits "link ${down:-?} GB/s down, ${up:-?} up, host memory ${triad:-?}"
}

# bounded NAME TOKENS STEPS SECONDS: compares steps with the largest of three limits: computation alone, the link alone, and
# host memory: per parameter a contribution is read, and the weight and two moments are read and written: 28 bytes
bounded() {
    local computing least limit text

    large "$@" || return
    computing=$(resident "$2")
    least=$(printf '%s\n' "${down:-0}" "${up:-0}" "${triad:-0}" "${computing:-0}" | sort -g | head -n 1)
    if [[ ! $least =~ [1-9] ]]; then
        missing "$1" "$said; its limits are not known (computing alone: ${computing:-failed})"
        return
    fi
    read -r limit text < <(moves "$2" |
        awk -v down="$down" -v up="$up" -v triad="$triad" -v ms="$computing" '{
            link = $1 / down * 1e-6; if ($2 / up * 1e-6 > link) link = $2 / up * 1e-6
            host = 28 * $3 / triad * 1e-6
            most = ms; if (link > most) most = link; if (host > most) most = host
            printf "%.1f computing %.1f ms, link %.1f ms, host memory %.1f ms", most, ms, link, host }')
    measured "$1" "$(ratio "$limit" "$ms")" 0.9 "$said; $text"
}

# 5 B: width 4096, 24 layers.
part_large() {
    room 80
    begin 4096 24 32 2048
    watch_clocks
    large large-32k 32768 7 && measured large-32k "$tflops" 300 "TFLOP/s: $said" && waited large-32k
    watch_clocks_end
}

part_larger() {
    room 80
    begin 4096 24 32 2048
    watch_clocks
    large large-128k 131072 5 && measured large-128k "$tflops" 350 "TFLOP/s: $said"
    watch_clocks_end
}

# The same model with few tokens, compared with the limits of the link and of host memory.
part_small() {
    room 80
    begin 4096 24 32 2048
    copies
    watch_clocks
    bounded small-8k 8192 12 70
    bounded small-4k 4096 16 70
    watch_clocks_end
}

# Peak device memory with 12 and with 96 layers of width 2048, activation checkpoints on the host, in the smallest budget
# of the deeper model.
part_depth() {
    local least depth
    local -a peaks=()

    room 48
    begin 2048 96 16 1024
    # The device itself reports its minimum, including its libraries.
    limited 30 "${ours[@]}" "$eps" train --model "$work/config.json" --data "$work/tokens.bin" --out "$work/refused" --batch 4 \
        --seq "$seq" --precision bf16 --device cuda:0 --moments bf16 --device-mem 1MiB
    least=$(sed -n 's/.* needs at least .*(\([0-9]*\) bytes) of device memory.*/\1/p' "$work/said")
    if [ -z "$least" ]; then
        failed depth "no word of the least memory: $(why 1 30)"
        return
    fi
    for depth in 12 96; do
        shape 2048 "$depth" 16 1024
        [ -z "$simulate" ] || { layers=$((depth / 6)); print_config "$vocabulary" >"$work/config.json"; }
        steps "depth-$depth" 45 2 4096 --device-mem "$least" --moments bf16 || return 0
        peaks+=("$(field device_peak_bytes "$work/depth-$depth/metrics.jsonl" | sort -n | tail -n 1)")
    done
    if [ "${peaks[0]}" = "${peaks[1]}" ]; then
        passed depth "12 and 96 layers of width $width: ${peaks[0]} bytes each"
    else
        finding short depth "12 and 96 layers of width $width: ${peaks[0]} and ${peaks[1]} bytes"
    fi
}
